"""The tasks of a reproduction. Each computes one fold of one row of one table; settings and results are JSON."""

import hashlib
import time
from typing import Any

import equinox as eqx
import jax
import numpy as np
from numpyro.distributions import Normal

from girsanov import baselines
from girsanov.data.grid import grid_with
from girsanov.data.series import TimeSeries
from girsanov.inference.method import Method
from girsanov.inference.vdp import VDP
from girsanov.learning.learn import learn
from girsanov.model.drifts import MLP, Linear, OrnsteinUhlenbeck
from girsanov.model.model import Model
from girsanov.paper.data import RealFold, inference_model, learning_model, load_fold, load_real, real_model
from girsanov.paper.settings import experiment
from girsanov.result.fit import Fit
from girsanov.result.infer import infer


def scores(estimate: Any, test: TimeSeries, before: str = "") -> dict[str, float]:
    """Return NLPD and RMSE of an estimate on test data; their names begin with `before`."""
    return {f"{before}nlpd": estimate.nlpd(test), f"{before}rmse": estimate.rmse(test)}


def data_hash(*parts: TimeSeries) -> str:
    """Return the SHA-256 hash of the times and values of these series."""
    arrays = [a for s in parts for a in (s.times, s.values)]
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()


def stated_omega(process: str, dt: float, changes: dict | None = None) -> float:
    """Return the paper's step size ω of VDP for a dt; for a dt that it does not state, that of the next smaller one."""
    stated = {float(k): v for k, v in experiment(process, changes)["inference"]["omega"].items()}
    return stated[max((s for s in stated if s <= dt * (1 + 1e-9)), default=min(stated))]


# --- Table 1: inference


def table1(**settings: Any) -> dict[str, Any]:
    """Compute one fold of one row of Table 1; settings are `data`, `process`, `fold`, `row`, `dt` and `changes`."""
    data, process, row = settings["data"], settings["process"], settings["row"]
    fold = load_fold(data, process, settings["fold"], settings["changes"])
    model = inference_model(process, fold, settings["changes"])
    out = _TABLE1[row](model, fold, settings)
    return {**out, "data_hash": data_hash(fold.train, fold.test)}


def _cvi_dp(model: Model, fold, settings) -> dict[str, Any]:
    return _inferred(model, fold, settings["dt"], None)


def _vdp(model: Model, fold, settings) -> dict[str, Any]:
    """Run VDP with a safeguard until it converges, and also the published iteration with the paper's step size."""
    process, dt, changes = settings["process"], settings["dt"], settings["changes"]
    limit = int(experiment(process, changes)["inference"]["vdp_iterations"])
    omega = stated_omega(process, dt, changes)
    plain = VDP(omega, solver="euler", safeguard=False, begin="prior", max_iterations=limit)
    published = _inferred(model, fold, dt, plain)
    return _inferred(model, fold, dt, VDP(max_iterations=limit)) | {f"plain_{k}": v for k, v in published.items()}


def _inferred(model: Model, fold, dt: float, method: Method | None) -> dict[str, Any]:
    post = infer(model, fold.train, dt=dt, span=fold.span, method=method, progress=False)
    return {
        **scores(post, fold.test), "elbo": post.elbo, "status": post.status, "iterations": len(post.history) - 1,
        "seconds": post.seconds,
    }  # fmt: skip


def _particles(model: Model, fold, settings) -> dict[str, Any]:
    """Draw paths by a conditional particle filter with ancestor sampling (CPF-AS), and score them.

    The Gaussian with their moments is scored as well, and the chains give the Monte Carlo errors of both scores. The
    particles are guided by CVI-DP's posterior: bootstrap particles give a tenth as many effective draws on the sine
    process, and do not mix on van der Pol.
    """
    dt, test = settings["dt"], fold.test
    nodes = grid_with(fold.train, dt, fold.span, test.times).times
    guided = infer(model, fold.train, grid=nodes, progress=False)
    post = baselines.particle_smoother(
        model, fold.train, dt, fold.span, key=jax.random.key(settings["fold"]), guided=guided, at=test.times,
        progress=False, **settings["particles"],
    )  # fmt: skip
    chains = post.by_chain()
    fits = {"": post, "gaussian_": baselines.optimal_gaussian(post)}
    out: dict[str, Any] = {"rhat": post.rhat, "ess": post.ess, "seconds": post.seconds, "status": "sampled"}
    for name, fit in fits.items():
        parts = [c if name == "" else baselines.optimal_gaussian(c) for c in chains]
        apart = [p.nlpd(fold.test) for p in parts]
        out |= scores(fit, fold.test, name)
        out[f"{name}error"] = float(np.std(apart, ddof=1) / np.sqrt(len(apart)))
    return out | {"log_evidence": post.log_evidence, "standard_error": post.standard_error}


def _exact(model: Model, fold, settings) -> dict[str, Any]:
    begun = time.perf_counter()
    post = baselines.exact_smoother(model, fold.train, settings["dt"], fold.span, at=fold.test.times)
    return {
        **scores(post, fold.test), **scores(baselines.optimal_gaussian(post), fold.test, "gaussian_"),
        "log_evidence": post.log_evidence, "error": post.error, "status": "exact",
        "seconds": time.perf_counter() - begun,
    }  # fmt: skip


def _gp(model: Model, fold, settings, optimise: bool = False) -> dict[str, Any]:
    """Score Gaussian process regression with an Ornstein–Uhlenbeck kernel, whatever process made the data."""
    begun = time.perf_counter()
    decay = experiment(settings["process"], settings["changes"])["inference"]["gp_decay"]
    kernel = baselines.ornstein_uhlenbeck_kernel(decay, 1.0)
    post = baselines.gp_regression(fold.train, kernel=kernel, noise_variance=fold.sigma**2, optimise=optimise)
    fitted = {"log_evidence": post.log_evidence, "status": "exact", "seconds": time.perf_counter() - begun}
    return {**scores(post, fold.test), **fitted}


_TABLE1 = {"cvi_dp": _cvi_dp, "vdp": _vdp, "particles": _particles, "exact": _exact, "gp_regression": _gp}


# --- Table 2: learning


def table2(**settings: Any) -> dict[str, Any]:
    """Compute one fold of one row of Table 2; settings are those of `table1`."""
    process, row, dt, changes = (settings[k] for k in ("process", "row", "dt", "changes"))
    fold = load_fold(settings["data"], process, settings["fold"], changes)
    known = {"data_hash": data_hash(fold.train, fold.test)}
    if row == "gp_regression":
        return _gp(inference_model(process, fold, changes), fold, settings, optimise=True) | known
    model, trainable = learning_model(process, fold, changes)
    method = VDP(max_iterations=2000) if row == "vdp" else None
    begun = time.perf_counter()
    fit = learn(
        model, fold.train, dt=dt, span=fold.span, trainable=trainable, method=method, standard_errors=False,
        check=False, progress=False,
    )  # fmt: skip
    seconds = time.perf_counter() - begun
    values = {k: float(v) for k, v in fit.parameters.items()}
    early = _on_the_way(model, fit.model, fold, dt) if row == "cvi_dp" else {}
    return {
        **scores(fit.posterior, fold.test), "elbo": fit.elbo, "status": fit.status, "learnt": values, **early,
        "iterations": len(fit.history) - 1, "seconds": seconds, **known,
    }  # fmt: skip


def _on_the_way(start: Model, end: Model, fold, dt: float) -> dict[str, list[float]]:
    """Return scores and bounds at points on the line from the start of learning to its end.

    They show what a run that stops early would report.
    """
    shares = np.linspace(0.0, 1.0, 11)
    out: dict[str, list[float]] = {"early_share": shares.tolist(), "early_nlpd": [], "early_rmse": [], "early_elbo": []}
    for share in shares:
        drift = jax.tree.map(lambda a, b, w=share: (1.0 - w) * a + w * b, start.drift, end.drift)
        model = eqx.tree_at(lambda m: m.drift, start, drift)
        post = infer(model, fold.train, dt=dt, span=fold.span, progress=False)
        for name, value in {**scores(post, fold.test), "elbo": post.elbo}.items():
            out[f"early_{name}"].append(value)
    return out


# --- finance and GPS


def real(**settings: Any) -> dict[str, Any]:
    """Compute one fold of one row of "finance" or "gps".

    The two coordinates of a track are independent processes, so their joint bound is the sum of two bounds, which are
    maximised one by one. Scores are averages over the observations of single coordinates.
    """
    name, changes = settings["experiment"], settings["changes"]
    fold = load_real(settings["data"], name, settings["fold"], changes)
    begun = time.perf_counter()
    parts = [_coordinate(settings, fold.column(i)) for i in range(fold.train.dim)]
    statuses = {p["status"] for p in parts}
    early = {k: np.mean([p[k] for p in parts], axis=0) for k in parts[0] if k.startswith("early")}
    if early:
        early["early_elbo"] = len(parts) * early["early_elbo"]
    return {
        **{k: v.tolist() for k, v in early.items()},
        "nlpd": float(np.mean([p["nlpd"] for p in parts])),
        "rmse": float(np.mean([p["rmse"] for p in parts])),
        "elbo": float(np.sum([p["elbo"] for p in parts])),
        "status": ", ".join(sorted(statuses)),
        "restarts": [p["restarts"] for p in parts],
        "data_hash": data_hash(fold.train, fold.test),
        "seconds": time.perf_counter() - begun,
    }


def _coordinate(settings: dict[str, Any], fold: RealFold) -> dict[str, Any]:
    name, row, changes = settings["experiment"], settings["row"], settings["changes"]
    how = experiment(name, changes)
    options, dt = how["rows"][row], float(how["inference"]["dt"])
    if row == "sparse_gp":
        post = _sparse_gp(fold, how, options)
        return {**scores(post, fold.test), "elbo": post.elbo, "status": "fitted", "restarts": []}
    if not options["learn"]:
        post = infer(real_model(name, real_drift(options), changes), fold.train, dt=dt, span=fold.span, progress=False)
        return {**scores(post, fold.test), "elbo": post.elbo, "status": post.status, "restarts": []}
    fit = learn_real(name, row, fold, settings["fold"], changes)
    bounds = [f.elbo for f in fit.restarts]
    start = real_model(name, real_drift(options), changes) if options["drift"] == "ou" else None
    early = {} if start is None else _on_the_way(start, fit.model, fold, dt)
    return {
        **scores(fit.posterior, fold.test), "elbo": fit.elbo, "status": fit.status, "restarts": bounds,
        **early,
    }  # fmt: skip


def learn_real(name: str, row: str, fold: RealFold, seed: int, changes: dict | None) -> Fit:
    """Learn the parameters that a row names and return the fit, the best one of all restarts."""
    how = experiment(name, changes)
    options = how["rows"][row]
    method = VDP(max_iterations=2000) if options.get("method") == "vdp" else None
    common: dict[str, Any] = {"dt": float(how["inference"]["dt"]), "span": fold.span, "trainable": options["learn"]}
    common |= {"standard_errors": False, "check": False, "progress": False, "method": method}
    key = jax.random.key(seed)
    drift = real_drift(options, key)
    if isinstance(drift, MLP):
        common |= {"restarts": int(options["restarts"]), "key": key}
        if options["prior"] > 0:
            layers = [f"drift.layers[{i}][{j}]" for i in range(len(drift.layers)) for j in range(2)]
            common["priors"] = dict.fromkeys(layers, Normal(0.0, float(options["prior"])))
    return learn(real_model(name, drift, changes), fold.train, **common)


def real_drift(options: dict[str, Any], key: Any = None) -> Any:
    """Return the drift of a row: zero, a constant, that of Ornstein–Uhlenbeck, or a network with random weights."""
    match options["drift"]:
        case "none" | "constant":
            return Linear([[0.0]])
        case "ou":
            return OrnsteinUhlenbeck(float(options["decay"]))
        case "network":
            return MLP(1, int(options["width"]), 1, options["activation"], key=key)
    raise ValueError(f"a row's drift must be none, constant, ou or network, got {options['drift']!r}")


def _sparse_gp(fold: RealFold, how: dict[str, Any], options: dict[str, Any]):
    noise, inducing = float(how["model"]["noise_variance"]), np.linspace(*fold.span, int(options["inducing"]))
    return baselines.sparse_gp_regression(fold.train, noise_variance=noise, inducing=inducing)
