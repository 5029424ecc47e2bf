"""CVI-DP: conjugate-computation variational inference for diffusion processes, on a discretised model."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np

from girsanov.chain.natural import NaturalChain
from girsanov.chain.smoother import ENGINES, Engine
from girsanov.grid import Grid
from girsanov.inference.conjugate import Conjugate
from girsanov.inference.continuous import Continuous, ContinuousSites
from girsanov.inference.levels import coarser_grids, make_problem, prolong
from girsanov.inference.loop import Algorithm, Run, run
from girsanov.inference.mirror import Mirror
from girsanov.inference.objective import Problem
from girsanov.inference.status import Status
from girsanov.model import Model
from girsanov.quadrature import Quadrature, default_quadrature
from girsanov.series import TimeSeries
from girsanov.sites import Sites, Time

_COARSE_TOLERANCE = 1e-3
_COARSE_ITERATIONS = 100
Progress = Callable[[str], None]


class CVIDP(eqx.Module):
    """Settings of CVI-DP.

    - rho: None for the accelerated algorithm; a number in (0, 1] for mirror descent with that step, as in the paper.
    - safeguard: accept only steps that keep q a density and do not lower the bound; False needs a `rho`.
    - tolerance: stop when an iteration's gain and its promise of more, both in nats, are below this.
    - max_iterations: on the final grid.
    - coarse_to_fine: start from solutions on coarser grids (only without `rho`).
    - quadrature: a rule for expectations of the drift; None chooses Gauss–Hermite up to d = 3, then cubature.
    - engine: "auto", "sequential" or "partitioned", how the chain is smoothed.
    - time: "discrete" for the Euler–Maruyama model on the grid; "continuous" for the SDE itself, second order in dt
      (started from the discrete solution; `rho` is then the largest step, 1 by default).
    """

    rho: float | None
    safeguard: bool = eqx.field(static=True)
    tolerance: float
    max_iterations: int
    coarse_to_fine: bool = eqx.field(static=True)
    quadrature: Quadrature | None
    engine: Engine = eqx.field(static=True)
    time: Time = eqx.field(static=True)

    def __init__(
        self,
        rho: float | None = None,
        *,
        safeguard: bool = True,
        tolerance: float = 1e-6,
        max_iterations: int = 1000,
        coarse_to_fine: bool = True,
        quadrature: Quadrature | None = None,
        engine: Engine = "auto",
        time: Time = "discrete",
        **unknown: Any,
    ):
        reject_unknown("CVIDP", unknown, CVIDP.__init__)
        if rho is not None and not 0.0 < rho <= 1.0:
            raise ValueError(f"rho must be in (0, 1], got {rho!r}")
        if time not in ("discrete", "continuous"):
            raise ValueError(f"time must be 'discrete' or 'continuous', got {time!r}")
        if rho is None and not safeguard:
            raise ValueError(
                "safeguard=False is for plain mirror descent: give a rho, e.g. CVIDP(rho=0.5, safeguard=False)"
            )
        if not (np.isfinite(tolerance) and tolerance > 0):
            raise ValueError(f"tolerance must be positive and finite, got {tolerance!r}")
        if int(max_iterations) != max_iterations or max_iterations < 0:
            raise ValueError(f"max_iterations must be a whole number ≥ 0, got {max_iterations!r}")
        if engine not in ENGINES:
            raise ValueError(f"unknown engine {engine!r}; choose one of {list(ENGINES)}")
        if quadrature is not None and not hasattr(quadrature, "rule"):
            raise ValueError(f"quadrature must be gv.GaussHermite, gv.Cubature or gv.MonteCarlo, got {quadrature!r}")
        self.rho, self.safeguard = rho, safeguard
        self.tolerance, self.max_iterations = float(tolerance), int(max_iterations)
        self.coarse_to_fine, self.quadrature, self.engine, self.time = coarse_to_fine, quadrature, engine, time

    def solve(
        self,
        model: Model,
        series: TimeSeries,
        grid: Grid,
        start: Callable[[Problem], Sites | NaturalChain] | None,
        progress: Progress | None = None,
    ) -> tuple[Problem, Run, list[Run]]:
        """The run on the grid from a given start or from coarser grids, with the runs on those."""
        if self.time == "continuous":
            return self._solve_continuous(model, series, grid, start, progress)
        rule = (self.quadrature or default_quadrature(model.dim)).rule(model.dim)
        fine = make_problem(model, series, grid, rule)
        coarse: list[Run] = []
        begin = None if start is None else start(fine)
        if start is None and self.coarse_to_fine and self.rho is None:
            begin = self._coarse_start(model, series, grid, fine, coarse, progress)
        result = self._run(self.algorithm(), fine, begin, progress)
        if result.status is Status.BAD_START and begin is not None:  # the coarse solution does not fit the fine grid
            result = self._run(self.algorithm(), fine, None, progress)
        return fine, result, coarse

    def _run(self, algorithm: Algorithm, problem: Problem, start: Any, progress: Progress | None) -> Run:
        return run(
            algorithm,
            problem,
            start,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
            progress=_say(progress, int(problem.size)),
        )

    def _solve_continuous(self, model, series, grid, start, progress) -> tuple[Problem, Run, list[Run]]:
        """The discrete solution first: its sites, per unit of time, are those of the continuous one up to O(dt)."""
        discrete = CVIDP(
            tolerance=max(_COARSE_TOLERANCE, self.tolerance), quadrature=self.quadrature, engine=self.engine
        )
        problem, first, coarse = discrete.solve(model, series, grid, start, progress)
        if first.status is Status.BAD_START:
            return problem, first, coarse
        sites = first.sites
        begin = ContinuousSites(sites.base, sites.dense, sites.dense, sites.data)
        rho = np.asarray(1.0 if self.rho is None else float(self.rho))
        result = self._run(Continuous(rho=rho, safeguard=self.safeguard, engine=self.engine), problem, begin, progress)
        return problem, result, [*coarse, first]

    def algorithm(self) -> Algorithm:
        if self.rho is None:
            return Conjugate(engine=self.engine)
        return Mirror(rho=np.asarray(float(self.rho)), safeguard=self.safeguard, engine=self.engine)

    def _coarse_start(self, model, series, grid, fine, coarse, progress) -> Sites | None:
        """Solve on coarser and coarser grids' way back up; None where the grid has no coarser one."""
        start, previous, algorithm = None, None, self.algorithm()
        tolerance = max(_COARSE_TOLERANCE, self.tolerance)
        for level, capacity in coarser_grids(grid, model.dim):
            here = make_problem(model, series, level, fine.rule, capacity)
            start = None if previous is None else prolong(coarse[-1].sites, previous, here)
            say = _say(progress, len(level.times))
            result = run(algorithm, here, start, tolerance=tolerance, max_iterations=_COARSE_ITERATIONS, progress=say)
            if result.status is Status.BAD_START:
                if start is None:
                    return None
                result = run(algorithm, here, None, tolerance=tolerance, max_iterations=_COARSE_ITERATIONS)
            previous = level.times
            coarse.append(result)
        return None if previous is None else prolong(coarse[-1].sites, previous, fine)


def _say(progress: Progress | None, nodes: int) -> Callable[[int, float], None] | None:
    if progress is None:
        return None
    return lambda iteration, elbo: progress(f"{nodes} nodes, iteration {iteration}, evidence bound {elbo:.6g}")


def reject_unknown(name: str, unknown: dict[str, Any], fn: Callable) -> None:
    """Raise a ValueError that names the options there are."""
    if unknown:
        import inspect

        known = [p for p in inspect.signature(fn).parameters if p not in ("self", "unknown")]
        raise ValueError(f"{name} has no option {sorted(unknown)[0]!r}; its options are {', '.join(known)}")
