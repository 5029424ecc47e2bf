"""Does `gv.learn` reach the maximum? Linear models with Gaussian noise, where the bound is the exact likelihood.

    python -m benchmarks.maximum [random] [co2] [seasons] [--models 100] [--seed 0]

- `random`: linear models of 3 to 10 parameters and 1 to 3 states, each from a start that is off by up to a factor of
  ten. The answer is the maximum of an independent Kalman filter by SciPy, from the parameters that made the data, from
  the start and from the fit.
- `co2`: the weekly carbon dioxide record of statsmodels, a seasonal model with 10 parameters, every objective.
- `seasons`: four seasonal series that lie far from where learning starts.

A fit is right if its bound is within 0.01 nats of the maximum. `converged` elsewhere is wrong; any other status is a
warning that the fit gives itself.
"""

import argparse
import dataclasses
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from rich.console import Console

import girsanov as gv
from benchmarks.degenerate import table

NEAR, CLOSE = 0.01, 1e-3  # nats
WANTED = 0.97  # share of models that reach the maximum and say so
OBJECTIVES = ("modified", "standard", "profile")
P0 = 1.0


class Seasonal(eqx.Module):
    """−decay (x − mean − slope t) + Σ_k cosines_k cos 2πkt + sines_k sin 2πkt, one state."""

    decay: jax.Array
    mean: jax.Array
    slope: jax.Array
    cosines: jax.Array
    sines: jax.Array
    constraints = {"decay": "positive"}  # noqa: RUF012

    def __call__(self, x, t):
        phase = 2.0 * jnp.pi * t * jnp.arange(1, self.cosines.shape[0] + 1)
        return (
            -self.decay * (x - self.mean - self.slope * t) + jnp.cos(phase) @ self.cosines + jnp.sin(phase) @ self.sines
        )


@dataclasses.dataclass(frozen=True)
class Kind:
    """A family of models: the drift of its values, which are positive, which are learnt, and what draws true ones."""

    dim: int
    drift: Callable[[dict], Any]
    paths: dict[str, str]  # path in the model, by name
    positive: tuple[str, ...]
    draw: Callable[[np.random.Generator], dict]
    emission: Any = None
    observations: int = 80
    end: float = 10.0


def _linear(v: dict) -> gv.Linear:
    return gv.Linear(v["A"], v["b"])


def _seasonal(v: dict) -> Seasonal:
    return Seasonal(*(v[k] if isinstance(v[k], jax.Array) else np.asarray(v[k]) for k in _SEASONAL))


def _stack(*values: Any) -> Any:
    """Stack numbers, of which some may be traced; numbers that are not stay NumPy's, with all their digits."""
    return (jnp if any(isinstance(v, jax.core.Tracer) for v in values) else np).stack(values)


def _oscillator(v: dict) -> gv.Linear:
    return gv.Linear(_stack(0.0, 1.0, v["stiffness"], v["damping"]).reshape(2, 2))


_NOISES = {"q": "diffusion", "r": "likelihood.variance"}
_POSITIVE = ("decay", "q", "r")
_SEASONAL = ("decay", "mean", "slope", "cosines", "sines")


def _stable(rng: np.random.Generator, d: int) -> np.ndarray:
    return -np.diag(rng.uniform(0.4, 2.0, d)) + 0.4 * rng.normal(size=(d, d)) * (1.0 - np.eye(d))


def _noises(rng: np.random.Generator, d: int | None = None) -> dict:
    q = 10.0 ** rng.uniform(-1.0, 0.5, () if d is None else d)
    return {"q": q, "r": 10.0 ** rng.uniform(-2.5, -0.5)}


KINDS = {
    "linear, d = 1": Kind(
        1, _linear, {"A": "drift.A", "b": "drift.b", **_NOISES}, _POSITIVE,
        lambda rng: {"A": _stable(rng, 1), "b": rng.normal(size=1), **_noises(rng)},
    ),
    "linear, d = 2": Kind(
        2, _linear, {"A": "drift.A", "b": "drift.b", **_NOISES}, _POSITIVE,
        lambda rng: {"A": _stable(rng, 2), "b": rng.normal(size=2), **_noises(rng, 2)},
    ),
    "ou, d = 2": Kind(
        2, lambda v: gv.OrnsteinUhlenbeck(v["decay"], v["mean"]),
        {"decay": "drift.decay", "mean": "drift.mean", **_NOISES}, _POSITIVE,
        lambda rng: {"decay": rng.uniform(0.4, 2.0, 2), "mean": 3.0 * rng.normal(size=2), **_noises(rng, 2)},
    ),
    "ou, d = 3": Kind(
        3, lambda v: gv.OrnsteinUhlenbeck(v["decay"], v["mean"]),
        {"decay": "drift.decay", "mean": "drift.mean", **_NOISES}, _POSITIVE,
        lambda rng: {"decay": rng.uniform(0.4, 2.0, 3), "mean": 3.0 * rng.normal(size=3), **_noises(rng)},
    ),
    "oscillator, d = 2": Kind(
        2, _oscillator,
        {"stiffness": "drift.A[1,0]", "damping": "drift.A[1,1]", "q": "diffusion[1,1]", "r": "likelihood.variance"},
        ("q", "r"),
        lambda rng: {"stiffness": -rng.uniform(2.0, 10.0), "damping": -rng.uniform(0.2, 1.0), **_noises(rng)},
        emission=[[1.0, 0.0]],
    ),
    "season, d = 1": Kind(
        1, _seasonal,
        {"decay": "drift.decay", "mean": "drift.mean", "cosines": "drift.cosines", "sines": "drift.sines", **_NOISES},
        _POSITIVE,
        lambda rng: {
            "decay": rng.uniform(0.5, 3.0), "mean": rng.normal(), "slope": 0.0,
            "cosines": 3.0 * rng.normal(size=2), "sines": 3.0 * rng.normal(size=2), **_noises(rng),
        },
        observations=150,
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    kind: Kind
    true: dict
    begin: dict
    series: gv.TimeSeries
    dt: float
    first: float = 0.0  # mean of the first state, where it is not a parameter

    def start(self, values: dict) -> gv.GaussianState:
        return gv.GaussianState(values.get("first", self.first), P0)

    def model(self, values: dict) -> gv.Model:
        q = values["q"]
        if self.kind.emission is not None:  # no noise on the position but a little that is known
            q = _stack(1e-3, q)
        return gv.Model(
            self.kind.drift(values), q, self.start(values), gv.likelihoods.Gaussian(values["r"]),
            emission=self.kind.emission,
        )  # fmt: skip


def make(name: str, rng: np.random.Generator) -> Case:
    kind = KINDS[name]
    true = kind.draw(rng)
    begin = {
        k: np.asarray(v) * (10.0 ** rng.uniform(-1.0, 1.0, np.shape(v)) if k in kind.positive else 0.0)
        for k, v in true.items()
    }
    if "A" in true:
        begin["A"] = -np.eye(kind.dim) * 10.0 ** rng.uniform(-1.0, 0.5)
    if "stiffness" in true:
        begin.update(stiffness=-1.0, damping=-1.0)
    times = np.sort(rng.uniform(0.0, kind.end, kind.observations))
    key = jax.random.key(int(rng.integers(2**31)))
    case = Case(kind, true, begin, gv.TimeSeries(times, times), kind.end / 100.0)
    series = gv.simulate(case.model(true), times, key=key, start=0.0, dt=kind.end / 1000.0).series
    return dataclasses.replace(case, series=series)


def pack(case: Case, values: dict) -> np.ndarray:
    parts = [np.ravel(values[k]) for k in case.kind.paths]
    return np.concatenate(
        [np.log(p) if k in case.kind.positive else p for k, p in zip(case.kind.paths, parts, strict=True)]
    )


def unpack(case: Case, theta: Any) -> dict:
    out, i = dict(case.true), 0
    for k in case.kind.paths:
        shape = np.shape(case.true[k])
        part = theta[i : i + int(np.prod(shape))].reshape(shape)
        out[k], i = (jnp.exp(part) if k in case.kind.positive else part), i + int(np.prod(shape))
    return out


def kalman(case: Case, grid: np.ndarray) -> Callable[[Any], Any]:
    """Return minus the log likelihood of the Euler–Maruyama model on a grid as a function of the free coordinates."""
    d = case.kind.dim
    H = jnp.eye(d) if case.kind.emission is None else jnp.asarray(case.kind.emission)
    node = np.searchsorted(grid, case.series.times)
    seen, y = np.zeros(len(grid), bool), np.zeros((len(grid), case.series.dim))
    seen[node], y[node] = True, case.series.values

    def update(m, P, y_n, seen_n, r):
        S = H @ P @ H.T + r * jnp.eye(len(H))
        e = y_n - H @ m
        gain = jnp.linalg.solve(S, H @ P).T
        log_p = -0.5 * (e @ jnp.linalg.solve(S, e) + jnp.linalg.slogdet(2.0 * jnp.pi * S)[1])
        keep = jnp.eye(d) - gain @ H
        new = m + gain @ e, keep @ P @ keep.T + r * gain @ gain.T
        return (*(jnp.where(seen_n, a, b) for a, b in zip(new, (m, P), strict=True)), jnp.where(seen_n, log_p, 0.0))

    def value(theta):
        v = unpack(case, theta)
        model = case.model(v)
        drift, Q, r = model.drift, jnp.asarray(model.diffusion), v["r"]
        zero = jnp.zeros(d)

        def step(carry, here):
            m, P = carry
            t, gap, y_n, seen_n = here
            b = drift(zero, t)
            A = jax.vmap(lambda e: drift(e, t) - b)(jnp.eye(d)).T
            F = jnp.eye(d) + gap * A
            m, P, log_p = update(F @ m + gap * b, F @ P @ F.T + gap * Q, y_n, seen_n, r)
            return (m, P), log_p

        m, P = jnp.broadcast_to(jnp.asarray(v.get("first", case.first)), (d,)), P0 * jnp.eye(d)
        m, P, first = update(m, P, y[0], seen[0], r)
        rest = jax.lax.scan(step, (m, P), (grid[:-1], np.diff(grid), y[1:], seen[1:]))[1]
        return -first - rest.sum()

    return value


def maximum(case: Case, grid: np.ndarray, starts: list[np.ndarray]) -> float:
    """Return the largest likelihood that SciPy finds from these starts."""
    with jax.enable_x64(True):
        both = jax.jit(jax.value_and_grad(kalman(case, grid)))

        def guarded(theta):
            value, grad = (np.asarray(a, dtype=float) for a in both(jnp.asarray(theta)))
            fine = np.isfinite(value) and np.isfinite(grad).all()
            return (float(value), grad) if fine else (1e10, np.zeros_like(theta))

        best = np.inf
        for start in starts:
            for method in ("L-BFGS-B", "BFGS"):
                with np.errstate(all="ignore"):
                    found = scipy.optimize.minimize(guarded, start, jac=True, method=method, options={"maxiter": 500})
                start, best = found.x, min(best, found.fun)
        return -best


def fitted(case: Case, fit: gv.Fit) -> dict:
    """Return the fitted values by the names of the case."""
    out = dict(case.begin)
    for name, path in case.kind.paths.items():
        base = path.split("[")[0]
        value = np.asarray(fit.parameters[base])
        if "[" in path:
            value = value[tuple(int(i) for i in path.split("[")[1].rstrip("]").split(","))]
        elif name == "q":
            value = np.diagonal(value)
            value = value if np.ndim(case.true["q"]) else value[0]
        out[name] = value.reshape(np.shape(case.true[name]))
    return out


@dataclasses.dataclass(frozen=True)
class Result:
    name: str
    status: str
    below: float  # nats below the maximum
    seconds: float
    e_steps: int
    message: str

    @property
    def outcome(self) -> str:
        if self.status == "converged":
            return "right" if self.below <= NEAR else "WRONG"
        return "there, not sure" if self.below <= NEAR else "said so"


def judge(name: str, case: Case, **options: Any) -> Result:
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = gv.learn(
            case.model(case.begin), case.series, case.dt, (0.0, case.kind.end),
            trainable=list(case.kind.paths.values()), progress=False, **options,
        )  # fmt: skip
    seconds = time.perf_counter() - begun
    starts = [pack(case, case.true), pack(case, fitted(case, fit)), pack(case, case.begin)]
    best = maximum(case, fit.posterior.times, starts)
    return Result(name, fit.status, best - fit.elbo, seconds, int(fit.history.e_steps[-1]), fit.message)


def random_models(console: Console, options: argparse.Namespace) -> bool:
    rng, results = np.random.default_rng(options.seed), []
    for i in range(options.models):
        name = list(KINDS)[i % len(KINDS)]
        results.append(judge(name, make(name, np.random.default_rng(rng.integers(2**32)))))
        r = results[-1]
        print(f"{i} {name}: {r.status}, {r.below:.2g} below, {r.seconds:.1f} s, {r.e_steps} E-steps. {r.message}",
              file=sys.stderr, flush=True)  # fmt: skip
    out = table(f"{options.models} random models, seed {options.seed}", "kind", "right", "WRONG", "said so",
                "there, not sure", "median seconds", "median E-steps")  # fmt: skip
    for name in [*KINDS, "all"]:
        mine = [r for r in results if name in (r.name, "all")]
        count = Counter(r.outcome for r in mine)
        figures = f"{np.median([r.seconds for r in mine]):.1f}", f"{np.median([r.e_steps for r in mine]):.0f}"
        out.add_row(name, *(str(count[k]) for k in ("right", "WRONG", "said so", "there, not sure")), *figures)
    console.print(out)
    count = Counter(r.outcome for r in results)
    return count["right"] >= WANTED * len(results) and count["WRONG"] == 0


def co2_case() -> Case:
    """Ten parameters: decay, mean and its slope, four of the season, diffusion, noise, mean of the first state."""
    import statsmodels.api as sm

    record = sm.datasets.co2.load_pandas().data["co2"].dropna()
    times = (record.index - record.index[0]).days.to_numpy() / 365.25
    paths = {k: f"drift.{k}" for k in _SEASONAL} | _NOISES | {"first": "initial.mean"}
    kind = Kind(1, _seasonal, paths, _POSITIVE, lambda rng: {}, end=float(times[-1]))
    begin = {"decay": 1.0, "mean": 0.0, "slope": 0.0, "cosines": np.zeros(2), "sines": np.zeros(2)}
    begin |= {"q": 1.0, "r": 1.0, "first": np.full(1, record.iloc[0])}
    near = {**begin, "mean": float(record.iloc[0]), "slope": 1.3}
    return Case(kind, near, begin, gv.TimeSeries(times, record.to_numpy()), 7.0 / 365.25)


def co2(console: Console, options: argparse.Namespace) -> bool:
    return _each_objective(console, "CO2, 10 parameters", {"CO2": co2_case()}, CLOSE)


def far_seasons() -> dict[str, Case]:
    cases = {}
    for i in range(4):
        case = make("season, d = 1", np.random.default_rng(100 + i))
        true = {**case.true, "mean": np.asarray(20.0 + 10.0 * i)}
        flat = {"cosines": np.zeros(2), "sines": np.zeros(2)}
        begin = {**case.true, "decay": 1.0, "mean": 0.0, **flat, "q": 1.0, "r": 0.1}
        case = dataclasses.replace(case, true=true, begin=begin, first=float(true["mean"]))
        series = gv.simulate(case.model(true), case.series.times, key=jax.random.key(i), start=0.0, dt=0.01).series
        cases[f"season {i}"] = dataclasses.replace(case, series=series)
    return cases


def seasons(console: Console, options: argparse.Namespace) -> bool:
    return _each_objective(console, "Seasonal series far from the start", far_seasons(), NEAR)


def _each_objective(console: Console, title: str, cases: dict[str, Case], near: float) -> bool:
    out = table(title, "series", "objective", "status", "nats below", "seconds", "E-steps")
    results = []
    for name, case in cases.items():
        for objective in OBJECTIVES:
            r = judge(name, case, objective=objective)
            results.append(r)
            out.add_row(name, objective, r.status, f"{r.below:.2g}", f"{r.seconds:.1f}", str(r.e_steps))
            print(name, objective, r.status, r.below, r.seconds, r.message, file=sys.stderr, flush=True)
    console.print(out)
    return all(r.status == "converged" and r.below <= near for r in results)


PARTS = {"random": random_models, "co2": co2, "seasons": seasons}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; all by default")
    parser.add_argument("--models", type=int, default=100, help="random models")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if unknown := [name for name in options.part if name not in PARTS]:
        parser.error(f"no part is called {unknown[0]!r}: choose from {', '.join(PARTS)}")
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=150)
    met = {name: PARTS[name](console, options) for name in options.part or PARTS}
    console.print(", ".join(f"{name}: target {'met' if good else 'NOT met'}" for name, good in met.items()))
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
