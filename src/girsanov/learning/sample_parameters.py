"""`sample_parameters`: draws of the posterior of the parameters by NUTS on the evidence bound, and their correction."""

import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from girsanov._core.checks import check_whole, is_finite
from girsanov._core.compile import compiled
from girsanov._core.extras import check_extra
from girsanov._core.precision import float64
from girsanov._core.progress import Countdown, reporter
from girsanov._core.versions import versions
from girsanov.baselines.particle_smoother import resampling_nodes
from girsanov.data.on_grid import on_grid
from girsanov.data.series import TimeSeries
from girsanov.inference.cvi_dp import CVIDP, check_method
from girsanov.inference.functional import lay_out
from girsanov.inference.method import Method, reject_unknown
from girsanov.learning.chains import Draws, in_threads, run_chains
from girsanov.learning.checks import check_priors
from girsanov.learning.correction import correct as corrected
from girsanov.learning.correction import log_evidence, noise_of, predictions, resampled
from girsanov.learning.datatree import data_hash, make_tree, statistics_group
from girsanov.learning.parameters import Spec, constrained_entries, entries, make_spec, to_vector
from girsanov.learning.partial_draws import PartialDraws, call_of, check_resume, tell
from girsanov.learning.reference import evaluate_near, make_reference
from girsanov.learning.target import Reference, Target
from girsanov.model.model import Model
from girsanov.model.simulate import check_draws

_TOLERANCE = 1e-4  # in nats, of each inference: a density that is off by this share is as good as exact
_LARGE_RHAT, _SMALL_ESS = 1.01, 100  # R̂ above, or effective numbers a chain below, are warned of
_WELL = "no divergences, and the chains have mixed"
_AGAIN = 50  # draws at which the evidence is estimated twice, for the noise of the estimates


@float64
def sample_parameters(
    model: Model,
    series: TimeSeries,
    dt: float | None = None,
    span: tuple[float, float] | None = None,
    *,
    priors: Mapping[str, Any] | None = None,
    key: Any,
    trainable: Sequence[str] | str | None = None,
    draws: int = 1000,
    warmup: int = 300,
    chains: int = 4,
    method: Method | None = None,
    grid: Any = None,
    constraints: Mapping[str, Any] | None = None,
    correct: bool = True,
    particles: int = 100,
    target_accept: float = 0.8,
    resume: Any = None,
    progress: bool = True,
    **unknown: Any,
) -> Any:
    """Draw from the posterior of parameters of `model` given `series`, by NUTS.

    The density that is sampled is that of the priors times exp(max over q of the evidence bound). Where the bound is
    the evidence, as for a linear drift with Gaussian noise, the draws follow the posterior of the model. Elsewhere the
    correction says how far they are from it, and weights them; see the group `corrected` below. The result is an
    `xarray.DataTree` as ArviZ has it, and needs the extra `xarray`.

    Args:
        model: the model. Its parameters are the point from which the mode of the posterior is searched; a model from
            `gv.learn` is a good start.
        series: the observations.
        dt: step of the time grid, in the time unit of the series. The observation times are added to the grid.
        span: time of the initial state and end of the horizon; by default the first and last time of the series.
        priors: numpyro distributions by path, one for every parameter that is sampled; by default those that the
            equations of the model state. They are densities of the values themselves. Outside the constraint of its
            parameter a prior is cut off.
        key: a JAX random key.
        trainable: names or paths of the parameters to sample, by default those of `priors`.
        draws: number of draws of each chain, after warm-up; default 1000.
        warmup: number of draws of each chain before that, which adapt the step size and the metric; default 300. They
            start from the curvature at the mode, so that few suffice.
        chains: number of chains; default 4. They run in as many threads as there are processors.
        method: `gv.CVIDP(...)`, in discrete or continuous time; by default `gv.CVIDP(tolerance=1e-4)`.
        grid: times of the nodes, (N,), instead of `dt` and `span`.
        constraints: constraints by path that replace the defaults, as in `gv.learn`.
        correct: whether to estimate the evidence at every draw, and to weight the draws by it; default True.
        particles: number of particles of the filter that estimates the evidence; default 100.
        target_accept: acceptance probability that the step size is adapted to; default 0.8. A larger one makes shorter
            steps, against divergences.
        resume: the attribute `kept` of the KeyboardInterrupt that ended an earlier call with the same arguments, to go
            on from there. The result is that of a call that was not stopped.
        progress: whether to show the progress of runs that take longer than two seconds; default True.

    Returns:
        A DataTree with these groups, with dimensions `chain` and `draw`:

        - `posterior`: the parameters, by path. One with several entries has a dimension for them, with their names.
        - `sample_stats`: `lp` (log density, up to a constant), `diverging`, `n_steps`, `acceptance_rate`, `energy`,
          `step_size`, and `bound`, the evidence bound at the draw.
        - `posterior_predictive`: `y`, observations drawn at the times of the series, along a path drawn from q.
        - `log_likelihood`: `y`, the log density log p(yᵢ | y₋ᵢ, θ) of each observation given all others and the
          parameters, under q without the site of that observation. It is joint over the outputs. This is what
          leave-one-out cross-validation by importance sampling (`arviz.loo`) has to be given where the observations
          depend on each other through a path: the weights of θ are its inverse. The sum over the observations is not
          the log likelihood. It is exact for a linear drift with Gaussian noise, and minus infinity where q without
          the site is no density.
        - `observed_data`: `y`.
        - `corrected`, with `correct=True`: the parameters again, drawn anew by their weights, and for the draws of
          `posterior` the weights: `log_weight`, log p̂(y | θ) − bound, with p̂ an unbiased estimate of the evidence by
          particles that q guides, and `weight`, with a smoothed tail. The attributes are `k_hat` (Pareto's k̂),
          `effective` (effective number of draws), `noise` (standard deviation of log p̂), `verdict` ("trust the
          bound", "trust the corrected posterior" or "trust neither") and `message`.

        The attributes of the tree are the settings, versions, a hash of the data, the number of divergences and of
        inferences that failed (where one fails the density is zero), the largest R̂, and the smallest effective number.

    Raises:
        ValueError: if an argument is not valid, if a parameter has no prior or one that does not cover its range, or if
            inference fails at the parameters of the model.
        KeyboardInterrupt: on Ctrl-C. Its attribute `kept` has the draws until then, for `resume=`, once there are some.
    """
    reject_unknown("sample_parameters", unknown, sample_parameters)
    check_extra("xarray", "gv.sample_parameters")
    check_draws(key, draws, name="draws")
    check_whole(4, draws=draws)
    check_whole(1, chains=chains)
    check_whole(0, warmup=warmup)
    check_whole(2, particles=particles)
    if not (is_finite(target_accept) and 0.0 < target_accept < 1.0):
        raise ValueError(f"target_accept must be between 0 and 1, got {target_accept!r}")
    begun = time.perf_counter()
    settings = {"draws": draws, "warmup": warmup, "chains": chains, "particles": particles, "correct": int(correct)}
    target = _target(model, series, dt, span, grid, method, priors, trainable, constraints)
    chain_key, rest_key = jax.random.split(key)
    call = call_of(target, target.priors, data_hash(series), key, settings | {"target_accept": target_accept})
    kept = PartialDraws(call, chains * (warmup + draws))
    if resume is not None:
        check_resume(resume, call)
        kept = resume.snapshot()
    with reporter(progress) as say:
        try:
            kept.reference = kept.reference or make_reference(target, to_vector(target.spec, model))
            limits = {"chains": chains, "warmup": warmup, "draws": draws, "accept": target_accept}
            found = run_chains(target, kept, chain_key, **limits, say=say)
            values = _values(target, kept.reference, found.u)
            described = _describe(target, series, kept, found.u, rest_key, particles if correct else 0, say)
        except KeyboardInterrupt as interrupt:
            tell(interrupt, kept.snapshot())
            raise
    attrs = _attributes(series, settings, time.perf_counter() - begun) | _diagnosed(target.spec, values, found)
    if attrs["message"] != _WELL:
        warnings.warn(f"sample_parameters: {attrs['message']}", stacklevel=3)
    if not np.isfinite(described["replicates"]).all():
        del described["replicates"]
        lost = "rounding leaves no joint density to draw paths from, so that posterior_predictive is left out"
        warnings.warn(f"sample_parameters: {lost}", stacklevel=3)
    return _tree(target, series, values, found, described, attrs, rest_key)


def _target(model, series, dt, span, grid, method, priors, trainable, constraints) -> Target:
    if priors is None and isinstance(model, Model) and model.equations is not None:
        priors = model.equations.priors
    if not isinstance(priors, Mapping) or not priors:
        raise ValueError(
            "priors must name at least one parameter, e.g. "
            'priors={"drift.scale": numpyro.distributions.LogNormal(0, 1)}'
        )
    method = check_method(CVIDP(tolerance=_TOLERANCE) if method is None else method, model)
    if not isinstance(method, CVIDP):
        raise ValueError(
            f"sample_parameters takes method=gv.CVIDP(...), got {method!r}; VDP is for gv.infer and gv.learn"
        )
    problem = lay_out(model, series, dt, span, grid, method)
    spec = make_spec(model, list(priors) if trainable is None else trainable, constraints)
    _check_proper(spec, priors)
    return Target(spec, model, problem, check_priors(spec, priors))


def _check_proper(spec: Spec, priors: Mapping[str, Any]) -> None:
    """Raise a ValueError unless every parameter has a prior that can be normalised."""
    from numpyro.distributions import ImproperUniform

    paths = [p.path for p in spec]
    missing = [path for path in paths if path not in priors]
    if missing and all(name in paths for name in priors):
        raise ValueError(
            f"{', '.join(missing)} {'has' if len(missing) == 1 else 'have'} no prior: a posterior needs one for every "
            "parameter. Add it to priors=, or leave the parameter out of trainable="
        )
    for path, prior in priors.items():
        if isinstance(prior, ImproperUniform):
            raise ValueError(
                f"the prior of {path!r} is improper: give one that can be normalised, such as a wide Normal"
            )


@compiled
def _entries(target: Target, reference: Reference, u):
    return jax.vmap(lambda u: constrained_entries(target.spec, reference.theta(u)))(u)


def _values(target: Target, reference: Reference, u: np.ndarray) -> np.ndarray:
    """Return the values of all entries, (chains, draws, P)."""
    return np.asarray(_entries(target, reference, u.reshape(-1, u.shape[-1]))).reshape(u.shape)


def _describe(target, series, kept: PartialDraws, u: np.ndarray, key, particles: int, say) -> dict[str, np.ndarray]:
    """Return bound, scores, replicates and estimates of the evidence of all draws; the latter with particles only.

    The evidence is estimated once more at some of the draws; elsewhere `again` is NaN.
    """
    flat, grid, reference = u.reshape(-1, u.shape[-1]), target.problem.data.grid, kept.reference
    assert reference is not None
    keys, rows, stop = jax.random.split(key, (len(flat), 3)), kept.rows, threading.Event()
    data, resample = on_grid(series, grid), resampling_nodes(grid, max(particles, 2))
    twice = set(np.linspace(0, len(flat) - 1, min(_AGAIN, len(flat))).astype(int).tolist())

    def one(i: int) -> list:
        here = evaluate_near(target, reference, flat[i])
        theta, solution = reference.theta(flat[i]), here.solution
        out = [solution.elbo, *predictions(target, theta, solution, keys[i, 0])]
        for k, wanted in ((1, particles), (2, particles and i in twice)):
            given = (target, data, theta, solution, keys[i, k], particles, resample)
            out.append(log_evidence(*given) if wanted else np.nan)
        return [np.asarray(a) for a in out]

    @float64
    def many(part: np.ndarray) -> None:
        for i in part.tolist():
            if stop.is_set():
                return
            rows[i] = rows[i] if i in rows else one(i)

    count = Countdown(len(flat), "draws")

    def shown() -> None:
        if say is not None:
            say(f"predictions{' and evidence' if particles else ''}: {count(len(rows))}")

    in_threads(many, np.array_split(np.arange(len(flat)), min(8, len(flat))), stop, shown)
    names = ("bound", "scores", "replicates", "evidence", "again")
    stacked = (np.stack(a) for a in zip(*(rows[i] for i in range(len(flat))), strict=True))
    return {n: a.reshape(*u.shape[:2], *a.shape[1:]) for n, a in zip(names, stacked, strict=True)}


def _diagnosed(spec: Spec, values: np.ndarray, found: Draws) -> dict[str, Any]:
    """Return divergences, failures, R̂ and effective numbers, and a message that says where they are bad."""
    from arviz_stats.base.array import array_stats

    ess = np.asarray(array_stats.ess(values, chain_axis=0, draw_axis=1))
    rhat = np.asarray(array_stats.rhat(values, chain_axis=0, draw_axis=1)) if len(values) > 1 else np.ones(len(ess))
    diverged, worst = int(found.diverging.sum()), int(np.argmax(rhat))
    said = []
    if diverged:
        said.append(
            f"{diverged} of {found.diverging.size} trajectories diverged: the draws may miss a part of the posterior. "
            "Raise target_accept= or warmup=, or give narrower priors"
        )
    if not rhat.max() <= _LARGE_RHAT:
        said.append(
            f"the chains have not mixed: R̂ = {rhat[worst]:.3f} for {entries(spec)[worst]}; raise draws= and warmup="
        )
    if not ess.min() >= _SMALL_ESS * len(values):
        least = entries(spec)[int(np.argmin(ess))]
        said.append(f"only {ess.min():.0f} effective draws of {least}; raise draws=")
    return {
        "divergences": diverged,
        "failed_inferences": found.failed,
        "rhat_max": float(rhat.max()),
        "ess_min": float(ess.min()),
        "message": "; ".join(said) or _WELL,
    }


def _attributes(series: TimeSeries, settings: dict, seconds: float) -> dict[str, Any]:
    made = {"inference_library": "girsanov", "sampler": "NUTS", "data_sha256": data_hash(series), "seconds": seconds}
    return made | settings | {f"{name}_version": version for name, version in versions().items()}


def _tree(target: Target, series, values, found: Draws, described, attrs, key) -> Any:
    correction = chosen = noise = None
    if attrs["correct"]:
        efficiency = min(1.0, attrs["ess_min"] / values[..., 0].size)
        correction = corrected(described["evidence"] - described["bound"], values, efficiency)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
        chosen, twice = resampled(correction.weights, rng), ~np.isnan(described["again"])
        noise = noise_of(described["evidence"][twice], described["again"][twice])
    statistics = statistics_group(found, {"bound": described["bound"]})
    return make_tree(
        target.spec,
        series,
        values,
        statistics,
        described["scores"],
        described.get("replicates"),
        correction,
        chosen,
        attrs,
        noise,
    )
