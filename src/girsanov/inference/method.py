"""The base class of the methods of inference, `CVIDP` and `VDP`, and checks of their options."""

import abc
import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx

from girsanov._core.checks import check_positive, check_whole
from girsanov.chain.natural import NaturalChain
from girsanov.inference.careful import Path
from girsanov.inference.continuous_bound import ContinuousSites
from girsanov.inference.loop import Algorithm, Run, run
from girsanov.inference.objective import Posed
from girsanov.inference.sites import Sites
from girsanov.model.quadrature import Quadrature, Rule, default_quadrature

Progress = Callable[[str], None]
Start = Sites | ContinuousSites | NaturalChain | Path


class Method(eqx.Module):
    """Settings of a method of inference. The model and the data are given to `solve`."""

    tolerance: eqx.AbstractVar[float]
    max_iterations: eqx.AbstractVar[int]
    quadrature: eqx.AbstractVar[Quadrature | None]

    @abc.abstractmethod
    def solve(
        self, problem: Posed, start: Start | None = None, progress: Progress | None = None
    ) -> tuple[Run, list[Run]]:
        """Solve a problem, from `start` or from a start that the method makes itself.

        Returns:
            The run on the grid of the problem, and the earlier runs that made its start, in their order.
        """

    @abc.abstractmethod
    def continue_from(self, problem: Posed, start: Start | None, **limits: Any) -> Run:
        """Solve a problem from a start on the same grid, or from the data alone; `limits` replace the settings."""

    @abc.abstractmethod
    def next_start(self, result: Run, sites: Sites | ContinuousSites, eta: NaturalChain) -> Start:
        """Return the start of the next E-step after `result`: these sites or this chain, whichever serves better."""

    def rule(self, d: int) -> Rule:
        """Return the quadrature rule for a state of dimension d."""
        return (self.quadrature or default_quadrature(d)).rule(d)

    def run(
        self, algorithm: Algorithm, problem: Posed, start: Any, progress: Progress | None = None, **limits: Any
    ) -> Run:
        """Run an algorithm with the method's tolerance and max_iterations, or those in `limits`."""
        limits = {"tolerance": self.tolerance, "max_iterations": self.max_iterations, **limits}
        return run(algorithm, problem, start, progress=sentence(progress, int(problem.data.size)), **limits)


def sentence(progress: Progress | None, nodes: int) -> Callable[[int, float], None] | None:
    """Wrap a function that shows a text as one that takes the iteration and the bound; None stays None."""
    if progress is None:
        return None
    return lambda iteration, elbo: progress(f"{nodes} nodes, iteration {iteration}, evidence bound {elbo:.6g}")


def check_limits(tolerance: Any, max_iterations: Any, quadrature: Any) -> None:
    """Raise a ValueError unless the settings that all methods have are valid."""
    check_positive(tolerance=tolerance)
    check_whole(0, max_iterations=max_iterations)
    if quadrature is not None and not hasattr(quadrature, "rule"):
        raise ValueError(f"quadrature must be gv.GaussHermite, gv.Cubature or gv.MonteCarlo, got {quadrature!r}")


def with_limits(method: Any, tolerance: float | None = None, max_iterations: int | None = None) -> Any:
    """Return the same settings with another tolerance or max_iterations, which are checked."""
    changes = {"tolerance": tolerance, "max_iterations": max_iterations}
    return with_settings(method, **{k: v for k, v in changes.items() if v is not None})


def with_settings(method: Any, **changes: Any) -> Any:
    """Return the same method with some settings replaced, which are checked."""
    if not changes:
        return method
    settings = {k: getattr(method, k) for k in method.__dataclass_fields__}
    return type(method)(**{**settings, **changes})


def reject_unknown(name: str, unknown: dict[str, Any], fn: Callable) -> None:
    """Raise a ValueError that lists the options of `fn` if an unknown option was given."""
    if unknown:
        known = [p for p in inspect.signature(fn).parameters if p not in ("self", "unknown")]
        raise ValueError(f"{name} has no option {sorted(unknown)[0]!r}; its options are {', '.join(known)}")
