"""(d) Iterations to within 1e-3 nats of the optimum: the default algorithm against step halving alone.

Work is counted in smoother-sized passes on the final grid. An evaluation of the bound is one, and so is the tangent
pass that the default algorithm adds to each evaluation that it accepts; here it is counted for every one. A pass on a
coarser grid counts by the size of that grid, or, in the second count, by the size that it is padded to.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import girsanov as gv
from benchmarks.measure import Figure
from benchmarks.problems import load_or_simulate
from girsanov.data.grid import Grid, regular_grid
from girsanov.inference.levels import coarser_grids
from girsanov.paper.data import Fold, inference_model
from girsanov.result.posterior import History

_PROCESSES = ("double_well", "van_der_pol")
_STEPS = (0.01, 0.001)
_CLOSE = 1e-3  # nats
_TIGHT = 1e-9  # tolerance of the runs that find the optimum
_PASSES = 2  # smoother-sized passes an evaluation, with its tangent
_REPEATS = 3  # of the timed runs
_MEDIAN, _WORST = 8, 12
_HALVING = gv.CVIDP(rho=1.0, safeguard=True, max_iterations=5000)


@dataclasses.dataclass(frozen=True)
class Count:
    """What one fold took at one step size; iterations are infinite where a run ends short of the optimum."""

    iterations: float
    passes: float
    padded_passes: float
    seconds: float
    halving_iterations: float
    halving_passes: float
    halving_seconds: float


_NAMES = {
    "iterations": ("iterations", ""),
    "passes": ("passes, coarse grids by size", ""),
    "padded_passes": ("passes, coarse grids as padded", ""),
    "seconds": ("run time", "s"),
    "halving_iterations": ("step halving: iterations", ""),
    "halving_passes": ("step halving: passes", ""),
    "halving_seconds": ("step halving: run time", "s"),
}


def first_close(elbo: np.ndarray, optimum: float) -> float:
    close = np.flatnonzero(elbo >= optimum - _CLOSE)
    return float(close[0]) if len(close) else float("inf")


def count(process: str, fold: Fold, dt: float) -> Count:
    def infer(method: gv.CVIDP, **limits) -> gv.Posterior:
        model = inference_model(process, fold)
        return gv.infer(model, fold.train, dt=dt, span=fold.span, method=method, progress=False, **limits)

    methods = (gv.CVIDP(), _HALVING)
    tight = [infer(m, tolerance=_TIGHT) for m in methods]
    optimum = max(post.elbo for post in tight)
    needed = [first_close(post.history.elbo, optimum) for post in tight]
    # The same runs again, stopped there: how often they evaluate the bound, and how long they take.
    limits = [None if np.isinf(n) else int(n) for n in needed]
    stopped = [[infer(m, max_iterations=n) for m, n in zip(methods, limits, strict=True)] for _ in range(_REPEATS)]
    seconds = [min(posts[i].seconds for posts in stopped) for i in range(2)]
    default, halving = (post.history for post in stopped[0])
    passes = passes_of(default, regular_grid(fold.train, dt, fold.span), fold.train.dim)
    return Count(needed[0], *passes, seconds[0], needed[1], halving.passes, seconds[1])


def passes_of(history: History, grid: Grid, d: int) -> tuple[float, float]:
    """Smoother-sized passes of a run with coarser grids, those counted by their size and by their padded size."""
    levels = coarser_grids(grid, d)
    coarse = np.array([p for _, p in history.coarse])
    sizes = np.array([len(g.times) for g, _ in levels]) / len(grid.times)
    padded = np.array([max(g.capacity, capacity) for g, capacity in levels]) / grid.capacity
    by_size, by_padded_size = (_PASSES * (history.passes + float(coarse @ weights)) for weights in (sizes, padded))
    return by_size, by_padded_size


def by_fold(label: str, counts: list[Count]) -> Iterator[Figure]:
    for field, (name, unit) in _NAMES.items():
        values = [getattr(c, field) for c in counts]
        detail = ", ".join(f"{v:.3g}" for v in values)
        yield Figure("d", f"{label}, {name}, median", float(np.median(values)), unit, detail=detail)


def over_all(counts: list[Count]) -> Iterator[Figure]:
    for field, (name, unit) in _NAMES.items():
        values = [getattr(c, field) for c in counts]
        median, worst = (_MEDIAN, _WORST) if field == "iterations" else (None, None)
        yield Figure("d", f"all, {name}, median", float(np.median(values)), unit, at_most=median)
        yield Figure("d", f"all, {name}, worst", max(values), unit, at_most=worst)


def scenario(data: Path | None) -> Iterator[Figure]:
    counts: dict[tuple[str, float], list[Count]] = {}
    for process in _PROCESSES:
        folds = load_or_simulate(data, process)
        for dt in _STEPS:
            counts[process, dt] = [count(process, fold, dt) for fold in folds]
            yield from by_fold(f"{process}, dt={dt:g}", counts[process, dt])
    yield from over_all([c for group in counts.values() for c in group])
    coarse, fine = (np.median([c.iterations for p in _PROCESSES for c in counts[p, dt]]) for dt in _STEPS)
    name = f"all, iterations, median at dt={_STEPS[1]:g} less that at dt={_STEPS[0]:g}"
    yield Figure("d", name, float(fine - coarse), "", at_most=0.0)
