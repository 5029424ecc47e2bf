"""CVI-DP: conjugate-computation variational inference for diffusion processes, in discrete or continuous time."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np

from girsanov.chain.linear_sde import Time
from girsanov.chain.natural import NaturalChain
from girsanov.chain.smoother import ENGINES, Engine
from girsanov.inference.careful import Careful, Path, as_chain
from girsanov.inference.conditioning import explained, flagged, ill_conditioned, only_rounding_is_left, rounding_loss
from girsanov.inference.conjugate import Conjugate
from girsanov.inference.continuous import Continuous
from girsanov.inference.continuous_bound import ContinuousSites, from_discrete
from girsanov.inference.levels import coarser, prolong
from girsanov.inference.loop import Algorithm, Run
from girsanov.inference.method import Method, Start, check_limits, reject_unknown, with_limits, with_settings
from girsanov.inference.mirror import Mirror
from girsanov.inference.objective import Posed
from girsanov.inference.sites import Sites
from girsanov.inference.status import Status
from girsanov.model.model import Model
from girsanov.model.quadrature import Quadrature

COARSE_TOLERANCE = 1e-3
COARSE_ITERATIONS = 100


class CVIDP(Method):
    """Settings of CVI-DP, for the argument `method` of `gv.infer`, `gv.learn` and `gv.prepare`.

    Args:
        rho: None (the default) for the accelerated algorithm, or a step size in (0, 1] for mirror descent as in the
            paper. In continuous time, `rho` is the largest step size, 1 by default.
        safeguard: whether to reject steps that lower the bound or leave q without a density; default True. False needs
            a `rho`.
        tolerance: in nats, default 1e-6. A run has converged when both the gain of an iteration and the predicted gain
            of the next one are below it.
        max_iterations: largest number of iterations on the final grid; default 1000.
        coarse_to_fine: whether to start from solutions on coarser grids; default True. It has no effect with a `rho`.
        quadrature: rule for expectations of the drift, such as `gv.GaussHermite(10)`. None (the default) takes
            Gauss–Hermite up to d = 3 and cubature above.
        engine: how the chain is smoothed: "auto" (the default), "sequential" or "partitioned".
        time: "discrete" (the default) for the Euler–Maruyama model on the grid, or "continuous" for the SDE itself,
            with an error of second order in dt. A continuous run starts from the discrete solution. A model with
            singular noise is always solved in continuous time.
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
                "safeguard=False needs plain mirror descent: give a rho, e.g. CVIDP(rho=0.5, safeguard=False)"
            )
        check_limits(tolerance, max_iterations, quadrature)
        if engine not in ENGINES:
            raise ValueError(f"unknown engine {engine!r}; choose one of {list(ENGINES)}")
        self.rho, self.safeguard = rho, safeguard
        self.tolerance, self.max_iterations = float(tolerance), int(max_iterations)
        self.coarse_to_fine, self.quadrature, self.engine, self.time = coarse_to_fine, quadrature, engine, time

    def solve(self, problem, start=None, progress=None) -> tuple[Run, list[Run]]:
        if self.time == "continuous":
            return self._solve_continuous(problem, start, progress)
        coarse: list[Run] = []
        if start is None and self.coarse_to_fine and self.rho is None:
            start = self._coarse_start(problem, coarse, progress)
        result = self.run(discrete_algorithm(self), problem, start, progress)
        if result.status is Status.BAD_START and start is not None:  # the coarse solution does not fit the fine grid
            result = self.run(discrete_algorithm(self), problem, None, progress)
        return self._checked(problem, result, progress), coarse

    def continue_from(self, problem: Posed, start: Start | None, **limits: Any) -> Run:
        if self.time == "continuous":
            return explained(problem, self.run(continuous_algorithm(self), problem, start, **limits))
        if isinstance(start, Path):
            return self._careful(problem, start, None, **limits)
        return self._checked(problem, self.run(discrete_algorithm(self), problem, start, **limits), None, **limits)

    def _checked(self, problem: Posed, result: Run, progress: Any, **limits: Any) -> Run:
        """Return the result, or that of the careful algorithm where rounding may have spoilt the first one.

        Mirror descent (with a `rho`) is not repeated: it gets the status `ill_conditioned` instead.
        """
        if self.rho is not None:
            return flagged(problem, result)
        if not rounding_loss(problem, result).asks_for_care(result.status):
            return result
        return self._careful(problem, None, progress, **limits)

    def _careful(self, problem: Posed, start: Path | None, progress: Any, **limits: Any) -> Run:
        return as_careful_result(problem, self.run(Careful(), problem, start, progress, **limits))

    def next_start(self, result: Run, sites: Sites | ContinuousSites, eta: NaturalChain) -> Start:
        if self.time == "continuous":
            return sites
        if result.root is not None:
            return result.root
        # At the optimum the sites compose the chain exactly, and a start from sites uses the program that the first run
        # compiled. Where the run stopped before the optimum, only the chain represents q exactly.
        return sites if result.trace["decrement"][-1] <= self.tolerance else eta

    def _solve_continuous(self, problem, start, progress) -> tuple[Run, list[Run]]:
        """Solve in continuous time, from a continuous posterior on the same grid or from the discrete solution.

        Per unit of time, the sites of the discrete solution equal the continuous ones up to O(dt). Where there is no
        discrete solution, as with steps that are far too long for Euler's scheme, the run starts from the data alone.
        """
        before: list[Run] = []

        def solve_discrete():
            first, coarse = discrete_method(self).solve(problem, start, progress)
            before.extend([*coarse, first])
            return first.sites, first.status is not Status.BAD_START

        sites = None
        if isinstance(start, Sites) and start.right is not None:
            sites = ContinuousSites(start.base, start.dense, start.right, start.data)
        begin, given = continuous_start(problem, sites, solve_discrete)
        result = self.run(continuous_algorithm(self), problem, begin if given else None, progress)
        return explained(problem, result), before

    def _coarse_start(self, fine: Posed, coarse: list[Run], progress) -> Sites | None:
        """Solve on coarser grids, from the coarsest to the finest, and interpolate the last solution on the fine grid.

        The runs are appended to `coarse`. The result is None where the fine grid has no coarser ones, or where the
        coarsest one cannot be started.
        """
        start, previous, algorithm = None, None, discrete_algorithm(self)
        limits = {"tolerance": max(COARSE_TOLERANCE, self.tolerance), "max_iterations": COARSE_ITERATIONS}
        for here in coarser(fine):
            start = None if previous is None else prolong(coarse[-1].sites, previous, here)
            result = self.run(algorithm, here, start, progress, **limits)
            if result.status is Status.BAD_START:
                if start is None:
                    return None
                result = self.run(algorithm, here, None, progress, **limits)
            previous = here.data.grid.times
            coarse.append(result)
        return None if previous is None else prolong(coarse[-1].sites, previous, fine)


def as_careful_result(problem: Posed, result: Run) -> Run:
    """Return a run of the careful algorithm in natural parameters, with its final status."""
    if result.status is Status.BAD_START:
        return result
    result = as_chain(problem, result)
    return ill_conditioned(problem, result) if only_rounding_is_left(result) else result


def continuous_start(
    problem: Posed, sites: ContinuousSites | None, solve_discrete: Callable[[], tuple[Sites, Any]]
) -> tuple[ContinuousSites | None, Any]:
    """Return the sites from which a run in continuous time starts, and whether to use them instead of the data alone.

    They are those given, or else those of the discrete model, which `solve_discrete` returns with whether it has a
    solution. With singular noise there is no discrete solution: Euler's steps would have no density.
    """
    if sites is not None:
        return sites, True
    if problem.model.noise.is_singular:
        return None, False
    first, solved = solve_discrete()
    return from_discrete(first, problem.data.inputs is not None), solved


def discrete_method(method: CVIDP) -> CVIDP:
    """Return the settings of the discrete run from whose solution a continuous run starts."""
    return CVIDP(
        tolerance=max(COARSE_TOLERANCE, method.tolerance),
        max_iterations=method.max_iterations,
        coarse_to_fine=method.coarse_to_fine,
        quadrature=method.quadrature,
        engine=method.engine,
    )


def continuous_algorithm(method: CVIDP) -> Continuous:
    """Return the algorithm for continuous time, where `rho` is the largest step size."""
    rho = np.asarray(1.0 if method.rho is None else float(method.rho))
    return Continuous(rho=rho, safeguard=method.safeguard, engine=method.engine)


def discrete_algorithm(method: CVIDP) -> Algorithm:
    """Return the algorithm for discrete time: conjugate directions, or mirror descent where `rho` is given."""
    if method.rho is None:
        return Conjugate(engine=method.engine)
    return Mirror(rho=np.asarray(float(method.rho)), safeguard=method.safeguard, engine=method.engine)


def check_method(method: Any, model: Any, **limits: Any) -> Method:
    """Return the given method, `CVIDP()` for None, with its `tolerance` and `max_iterations` replaced where given.

    A model with singular noise is solved in continuous time, whatever the method says.
    """
    method = CVIDP() if method is None else method
    if not isinstance(method, Method):
        raise ValueError(f"method must be gv.CVIDP(...) or gv.VDP(...), got {method!r}")
    method = with_limits(method, **limits)
    if not (isinstance(model, Model) and model.latent.noise.is_singular):
        return method
    if not isinstance(method, CVIDP):
        raise ValueError(
            "the diffusion of this model is singular, and VDP needs noise in every coordinate: use method=gv.CVIDP()"
        )
    return with_settings(method, time="continuous")
