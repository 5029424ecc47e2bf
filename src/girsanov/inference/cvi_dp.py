"""CVI-DP: conjugate-computation variational inference for diffusion processes, on a discretised model."""

from typing import Any

import equinox as eqx
import numpy as np

from girsanov.chain.linear_sde import Time
from girsanov.chain.natural import NaturalChain
from girsanov.chain.smoother import ENGINES, Engine
from girsanov.inference.careful import Careful, Path, as_chain
from girsanov.inference.conditioning import explained, flagged, ill_conditioned, only_rounding_is_left, rounding_loss
from girsanov.inference.conjugate import Conjugate
from girsanov.inference.continuous import Continuous, ContinuousSites, at_all_nodes
from girsanov.inference.levels import coarser_grids, make_problem, prolong
from girsanov.inference.loop import Algorithm, Run
from girsanov.inference.method import Method, Start, check_limits, reject_unknown, with_limits
from girsanov.inference.mirror import Mirror
from girsanov.inference.objective import Problem
from girsanov.inference.sites import Sites
from girsanov.inference.status import Status
from girsanov.model.quadrature import Quadrature

_COARSE_TOLERANCE = 1e-3
_COARSE_ITERATIONS = 100


class CVIDP(Method):
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
        check_limits(tolerance, max_iterations, quadrature)
        if engine not in ENGINES:
            raise ValueError(f"unknown engine {engine!r}; choose one of {list(ENGINES)}")
        self.rho, self.safeguard = rho, safeguard
        self.tolerance, self.max_iterations = float(tolerance), int(max_iterations)
        self.coarse_to_fine, self.quadrature, self.engine, self.time = coarse_to_fine, quadrature, engine, time

    def solve(self, model, series, grid, start, progress=None) -> tuple[Problem, Run, list[Run]]:
        if self.time == "continuous":
            return self._solve_continuous(model, series, grid, start, progress)
        fine = make_problem(model, series, grid, self.rule(model.dim))
        coarse: list[Run] = []
        begin = None if start is None else start(fine)
        if start is None and self.coarse_to_fine and self.rho is None:
            begin = self._coarse_start(model, series, grid, fine, coarse, progress)
        result = self.run(self.algorithm(), fine, begin, progress)
        if result.status is Status.BAD_START and begin is not None:  # the coarse solution does not fit the fine grid
            result = self.run(self.algorithm(), fine, None, progress)
        return fine, self._checked(fine, result, progress), coarse

    def continue_from(self, problem: Problem, start: Start, **limits: Any) -> Run:
        if isinstance(start, Path):
            return self._careful(problem, start, None, **limits)
        return self._checked(problem, self.run(self.algorithm(), problem, start, **limits), None, **limits)

    def _checked(self, problem: Problem, result: Run, progress: Any, **limits: Any) -> Run:
        """The result itself where rounding left it alone, or that of the careful algorithm."""
        if self.rho is not None:
            return flagged(problem, result)
        if not rounding_loss(problem, result).asks_for_care(result.status):
            return result
        return self._careful(problem, None, progress, **limits)

    def _careful(self, problem: Problem, start: Path | None, progress: Any, **limits: Any) -> Run:
        result = self.run(Careful(), problem, start, progress, **limits)
        if result.status is Status.BAD_START:
            return result
        result = as_chain(problem, result)
        return ill_conditioned(problem, result) if only_rounding_is_left(result) else result

    def next_start(self, result: Run, sites: Sites, eta: NaturalChain) -> Start:
        if result.root is not None:
            return result.root
        # At the optimum the sites compose the chain, and they share the first run's compiled program; where the run
        # stopped short of it, the chain itself loses nothing.
        return sites if result.trace["decrement"][-1] <= self.tolerance else eta

    def _solve_continuous(self, model, series, grid, start, progress) -> tuple[Problem, Run, list[Run]]:
        """From a continuous posterior that is given, on the same grid; else from the solution of the discrete model.

        The sites of that, per unit of time, are those of the continuous one up to O(dt). Where it has none, as with
        steps that are far too long for Euler's scheme, the data alone are the start.
        """
        problem = make_problem(model, series, grid, self.rule(model.dim))
        given = None if start is None else start(problem)
        if isinstance(given, Sites) and given.right is not None:
            begin, before = ContinuousSites(given.base, given.dense, given.right, given.data), []
        else:
            begin, before = self._discrete_start(model, series, grid, start, progress)
        rho = np.asarray(1.0 if self.rho is None else float(self.rho))
        result = self.run(Continuous(rho=rho, safeguard=self.safeguard, engine=self.engine), problem, begin, progress)
        return problem, explained(problem, result), before

    def _discrete_start(self, model, series, grid, start, progress) -> tuple[ContinuousSites | None, list[Run]]:
        """The sites of the discrete model's solution, and the runs that led to it."""
        discrete = CVIDP(
            tolerance=max(_COARSE_TOLERANCE, self.tolerance),
            max_iterations=self.max_iterations,
            coarse_to_fine=self.coarse_to_fine,
            quadrature=self.quadrature,
            engine=self.engine,
        )
        _, first, coarse = discrete.solve(model, series, grid, start, progress)
        sites, runs = first.sites, [*coarse, first]
        if first.status is Status.BAD_START:
            return None, runs
        return ContinuousSites(at_all_nodes(sites.base), sites.dense, sites.dense, sites.data), runs

    def algorithm(self) -> Algorithm:
        if self.rho is None:
            return Conjugate(engine=self.engine)
        return Mirror(rho=np.asarray(float(self.rho)), safeguard=self.safeguard, engine=self.engine)

    def _coarse_start(self, model, series, grid, fine, coarse, progress) -> Sites | None:
        """Solve on coarser and coarser grids' way back up; None where the grid has no coarser one."""
        start, previous, algorithm = None, None, self.algorithm()
        limits = {"tolerance": max(_COARSE_TOLERANCE, self.tolerance), "max_iterations": _COARSE_ITERATIONS}
        for level, capacity in coarser_grids(grid, model.dim):
            here = make_problem(model, series, level, fine.rule, capacity)
            start = None if previous is None else prolong(coarse[-1].sites, previous, here)
            result = self.run(algorithm, here, start, progress, **limits)
            if result.status is Status.BAD_START:
                if start is None:
                    return None
                result = self.run(algorithm, here, None, progress, **limits)
            previous = level.times
            coarse.append(result)
        return None if previous is None else prolong(coarse[-1].sites, previous, fine)


def check_method(method: Any, **limits: Any) -> Method:
    """The method given, or the default, with other limits where they are given."""
    method = CVIDP() if method is None else method
    if not isinstance(method, Method):
        raise ValueError(f"method must be gv.CVIDP(...) or gv.VDP(...), got {method!r}")
    return with_limits(method, **limits)
