"""What every method of inference has: its limits, how it runs, and how its options are checked."""

import abc
import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx

from girsanov._core.checks import check_positive, check_whole
from girsanov.chain.natural import NaturalChain
from girsanov.data.grid import Grid
from girsanov.data.series import TimeSeries
from girsanov.inference.careful import Path
from girsanov.inference.loop import Algorithm, Run, run
from girsanov.inference.objective import Problem
from girsanov.inference.sites import Sites
from girsanov.model.model import Model
from girsanov.model.quadrature import Quadrature, Rule, default_quadrature

Progress = Callable[[str], None]
Start = Sites | NaturalChain | Path


class Method(eqx.Module):
    """Settings of an algorithm; the data enter at `solve`."""

    tolerance: eqx.AbstractVar[float]
    max_iterations: eqx.AbstractVar[int]
    quadrature: eqx.AbstractVar[Quadrature | None]

    @abc.abstractmethod
    def solve(
        self,
        model: Model,
        series: TimeSeries,
        grid: Grid,
        start: Callable[[Problem], Start] | None,
        progress: Progress | None = None,
    ) -> tuple[Problem, Run, list[Run]]:
        """The run on the grid from a given start or from one of its own, with runs that prepared it."""

    @abc.abstractmethod
    def continue_from(self, problem: Problem, start: Start, **limits: Any) -> Run:
        """The run on the grid of a problem from a start: an E-step of learning."""

    @abc.abstractmethod
    def next_start(self, result: Run, sites: Sites, eta: NaturalChain) -> Start:
        """Where to go on after a run: from these sites, or from this chain."""

    def rule(self, d: int) -> Rule:
        return (self.quadrature or default_quadrature(d)).rule(d)

    def run(
        self, algorithm: Algorithm, problem: Problem, start: Any, progress: Progress | None = None, **limits: Any
    ) -> Run:
        limits = {"tolerance": self.tolerance, "max_iterations": self.max_iterations, **limits}
        return run(algorithm, problem, start, progress=sentence(progress, int(problem.size)), **limits)


def sentence(progress: Progress | None, nodes: int) -> Callable[[int, float], None] | None:
    if progress is None:
        return None
    return lambda iteration, elbo: progress(f"{nodes} nodes, iteration {iteration}, evidence bound {elbo:.6g}")


def check_limits(tolerance: Any, max_iterations: Any, quadrature: Any) -> None:
    check_positive(tolerance=tolerance)
    check_whole(0, max_iterations=max_iterations)
    if quadrature is not None and not hasattr(quadrature, "rule"):
        raise ValueError(f"quadrature must be gv.GaussHermite, gv.Cubature or gv.MonteCarlo, got {quadrature!r}")


def with_limits(method: Any, tolerance: float | None = None, max_iterations: int | None = None) -> Any:
    """The same settings with other limits, checked again."""
    changes = {"tolerance": tolerance, "max_iterations": max_iterations}
    settings = {k: getattr(method, k) for k in method.__dataclass_fields__}
    return type(method)(**{**settings, **{k: v for k, v in changes.items() if v is not None}})


def reject_unknown(name: str, unknown: dict[str, Any], fn: Callable) -> None:
    """Raise a ValueError that names the options there are."""
    if unknown:
        known = [p for p in inspect.signature(fn).parameters if p not in ("self", "unknown")]
        raise ValueError(f"{name} has no option {sorted(unknown)[0]!r}; its options are {', '.join(known)}")
