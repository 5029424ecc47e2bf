"""Does `gv.learn` reach the maximum? Linear models with Gaussian noise, where the bound is the exact likelihood.

    python -m benchmarks.maximum [random] [co2] [seasons] [--models 100] [--seed 0] [--only 4 38]

- `random`: linear models of 3 to 10 parameters and 1 to 3 states, each from a start that is off by up to a factor of
  ten. The answer is the maximum of an independent Kalman filter by SciPy, from the parameters that made the data, from
  the start and from the fit.
- `co2`: the weekly carbon dioxide record of statsmodels, a seasonal model with 10 parameters, every objective.
- `seasons`: four seasonal series that lie far from where learning starts.

A fit is right if its bound is within 0.01 nats of the maximum. `converged` elsewhere is wrong; any other status is a
warning that the fit gives itself. Some models have no maximum inside: the likelihood does not fall all the way to a
variance of zero, or to another end, as SciPy finds with that parameter held far out there and all others free. A fit
that is as high and says `edge` is "at an end"; such models do not count among those that have to be right.
"""

import argparse
import dataclasses
import sys
import time
import warnings
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from rich.console import Console

import girsanov as gv
from benchmarks.degenerate import table
from benchmarks.linear_models import KINDS, NOISES, POSITIVE, SEASONAL, Case, Kind, kalman, make, pack, seasonal

NEAR, CLOSE = 0.01, 1e-3  # nats
FAR = 4.0  # how far a logarithm is moved, twice, to see whether the likelihood falls
WANTED = 0.97  # share of the models with a maximum inside that reach it and say so
OUTCOMES = ("right", "WRONG", "at an end", "said so", "there, not sure")
OBJECTIVES = ("modified", "standard", "profile")


def maximum(
    case: Case, grid: np.ndarray, starts: list[np.ndarray], held: int | None = None
) -> tuple[float, np.ndarray]:
    """Return the largest likelihood that SciPy finds from these starts, and where; one coordinate may be held."""
    with jax.enable_x64(True):
        both = jax.jit(jax.value_and_grad(kalman(case, grid)))

        def guarded(theta):
            value, grad = (np.array(a, dtype=float) for a in both(jnp.asarray(theta)))
            if held is not None:
                grad[held] = 0.0
            fine = np.isfinite(value) and np.isfinite(grad).all()
            return (float(value), grad) if fine else (1e10, np.zeros_like(theta))

        best, where = np.inf, starts[0]
        for start in starts:
            for method in ("L-BFGS-B", "BFGS"):
                with np.errstate(all="ignore"):
                    found = scipy.optimize.minimize(guarded, start, jac=True, method=method, options={"maxiter": 500})
                start = found.x
                if found.fun < best:
                    best, where = found.fun, found.x
        return -best, where


def stays_high(case: Case, grid: np.ndarray, theta: np.ndarray, best: float) -> bool:
    """Return whether the likelihood does not fall towards an end of some positive parameter."""
    positive = np.concatenate([np.full(np.size(case.true[k]), k in case.kind.positive) for k in case.kind.paths])
    for i in np.flatnonzero(positive):
        for sign in (-1.0, 1.0):
            values, at = [], theta.copy()
            for _ in range(2):
                at = at.copy()
                at[i] += sign * FAR
                value, at = maximum(case, grid, [at], held=int(i))
                values.append(value)
            if min(values) > best - CLOSE:
                return True
    return False


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
    open: bool  # the likelihood does not fall towards an end of a parameter
    seconds: float
    e_steps: int
    message: str

    @property
    def outcome(self) -> str:
        if self.status == "converged":
            return "right" if self.below <= NEAR else "WRONG"
        if self.status == "edge" and self.open and self.below <= NEAR:
            return "at an end"
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
    best, theta = maximum(case, fit.posterior.times, starts)
    is_open = fit.status == "edge" and stays_high(case, fit.posterior.times, theta, best)
    return Result(name, fit.status, best - fit.elbo, is_open, seconds, int(fit.history.e_steps[-1]), fit.message)


def random_models(console: Console, options: argparse.Namespace) -> bool:
    rng, results = np.random.default_rng(options.seed), []
    for i in range(options.models):
        name, seed = list(KINDS)[i % len(KINDS)], rng.integers(2**32)
        if options.only and i not in options.only:
            continue
        results.append(judge(name, make(name, np.random.default_rng(seed))))
        r = results[-1]
        print(f"{i} {name}: {r.status}, {r.below:.2g} below, {r.seconds:.1f} s, {r.e_steps} E-steps. {r.message}",
              file=sys.stderr, flush=True)  # fmt: skip
    title = f"{len(results)} random models, seed {options.seed}"
    out = table(title, "kind", *OUTCOMES, "median seconds", "median E-steps")
    for name in [*KINDS, "all"]:
        mine = [r for r in results if name in (r.name, "all")]
        if not mine:
            continue
        count = Counter(r.outcome for r in mine)
        figures = f"{np.median([r.seconds for r in mine]):.1f}", f"{np.median([r.e_steps for r in mine]):.0f}"
        out.add_row(name, *(str(count[k]) for k in OUTCOMES), *figures)
    console.print(out)
    count = Counter(r.outcome for r in results)
    return count["right"] >= WANTED * (len(results) - count["at an end"]) and count["WRONG"] == 0


def co2_case() -> Case:
    """Ten parameters: decay, mean and its slope, four of the season, diffusion, noise, mean of the first state."""
    import statsmodels.api as sm

    record = sm.datasets.co2.load_pandas().data["co2"].dropna()
    times = (record.index - record.index[0]).days.to_numpy() / 365.25
    paths = {k: f"drift.{k}" for k in SEASONAL} | NOISES | {"first": "initial.mean"}
    kind = Kind(1, seasonal, paths, POSITIVE, lambda rng: {}, end=float(times[-1]))
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
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="these random models alone")
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
