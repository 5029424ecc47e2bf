"""(b) One full update (smoother, expectations, new sites, bound) against its smoother alone."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import programs
from benchmarks.measure import Figure, interleaved
from benchmarks.problems import simulated_series, update_problem
from girsanov._core.precision import float64

_NODES = 20_001
_TARGETS = {"double_well": 4.0, "van_der_pol": 6.0}
_REPEATS = 30


@float64
def measure(process: str, at_most: float) -> list[Figure]:
    grid = 0.001 * np.arange(_NODES)
    problem, eta = update_problem(process, simulated_series(process, grid[500::500]), grid)
    residual = programs.update(problem, eta).residual
    calls = {
        "smoother": lambda: programs.smoother(eta),
        "full update": lambda: programs.update(problem, eta),
        "tangent pass": lambda: programs.fisher(eta, residual),
        "smoother in a loop": lambda: programs.smoother_loop(eta),
        "full update in a loop": lambda: programs.update_loop(problem, eta),
    }
    seconds = interleaved(calls, _REPEATS)
    seconds = {name: s / (programs.LOOP if "loop" in name else 1) for name, s in seconds.items()}
    label = f"d={problem.model.dim}"
    figures = [Figure("b", f"{label}, {name}", 1e3 * s, "ms") for name, s in seconds.items()]
    for where in ("", " in a loop"):
        ratio = seconds[f"full update{where}"] / seconds[f"smoother{where}"]
        figures.append(Figure("b", f"{label}, full update over smoother{where}", ratio, "×", at_most=at_most))
    return figures


def scenario(data: Path | None) -> Iterator[Figure]:
    for process, at_most in _TARGETS.items():
        yield from measure(process, at_most)
