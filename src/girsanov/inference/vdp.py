"""VDP: variational inference for diffusion processes by the fixed-point algorithm of Archambeau et al. (2007)."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from girsanov._core.compile import compiled
from girsanov.chain import blocks
from girsanov.chain.conversion import to_natural
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain
from girsanov.chain.smoother import Smoothed
from girsanov.inference.conditioning import flagged
from girsanov.inference.fixed_point import AffineProcess, FixedPoint, moments_of
from girsanov.inference.levels import make_problem
from girsanov.inference.loop import Run
from girsanov.inference.method import Method, Start, check_limits, reject_unknown
from girsanov.inference.objective import Problem, evaluate
from girsanov.inference.schemes import Adaptive, Euler, Scheme
from girsanov.inference.sites import Sites
from girsanov.inference.status import Status
from girsanov.model.quadrature import Quadrature

_SOLVERS = ("euler", "adjoint", "adaptive")
_BEGINNINGS = ("data", "prior")


class VDP(Method):
    """Settings of VDP.

    - omega: the step of the fixed-point iteration, in (0, 1].
    - safeguard: take back and halve steps that lower the bound; False is the plain iteration of the paper, which ends
      with the status "diverged" and the best result met where it breaks down.
    - tolerance: stop when q differs from the process that the equations ask for by less, in nats.
    - solver: "euler" as in the paper; "adjoint", whose multipliers are derivatives of the discretised bound itself and
      stay stable next to sharp observations; "adaptive", a Runge–Kutta method with its own steps inside the intervals.
    - rtol: tolerance of the adaptive solver.
    - begin: start from a rough reading of the "data", or from the "prior".
    - quadrature: as for `CVIDP`.
    """

    omega: float
    safeguard: bool = eqx.field(static=True)
    tolerance: float
    max_iterations: int
    solver: str = eqx.field(static=True)
    rtol: float = eqx.field(static=True)
    begin: str = eqx.field(static=True)
    quadrature: Quadrature | None

    def __init__(
        self,
        omega: float = 1.0,
        *,
        safeguard: bool = True,
        tolerance: float = 1e-6,
        max_iterations: int = 1000,
        solver: str = "adjoint",
        rtol: float = 1e-6,
        begin: str = "data",
        quadrature: Quadrature | None = None,
        **unknown: Any,
    ):
        reject_unknown("VDP", unknown, VDP.__init__)
        if not 0.0 < omega <= 1.0:
            raise ValueError(f"omega must be in (0, 1], got {omega!r}")
        for name, value, known in (("solver", solver, _SOLVERS), ("begin", begin, _BEGINNINGS)):
            if value not in known:
                raise ValueError(f"unknown {name} {value!r}; choose one of {list(known)}")
        if not 0.0 < rtol < 1.0:
            raise ValueError(f"rtol must be in (0, 1), got {rtol!r}")
        check_limits(tolerance, max_iterations, quadrature)
        self.omega, self.safeguard = float(omega), safeguard
        self.tolerance, self.max_iterations = float(tolerance), int(max_iterations)
        self.solver, self.rtol, self.begin, self.quadrature = solver, float(rtol), begin, quadrature

    @property
    def scheme(self) -> Scheme:
        if self.solver == "adaptive":
            return Adaptive(rtol=self.rtol, atol=1e-3 * self.rtol)
        return Euler(adjoint=self.solver == "adjoint")

    def solve(self, model, series, grid, start, progress=None) -> tuple[Problem, Run, list[Run]]:
        problem = make_problem(model, series, grid, self.rule(model.dim))
        begin = None if start is None else start(problem)
        return problem, self._run(problem, begin, progress), []

    def continue_from(self, problem: Problem, start: Start, **limits: Any) -> Run:
        return self._run(problem, start, None, **limits)

    def next_start(self, result: Run, sites: Sites, eta: NaturalChain) -> Start:
        return eta

    def _run(self, problem: Problem, start: Start | None, progress: Any, **limits: Any) -> Run:
        scheme = self.scheme
        algorithm = FixedPoint(
            omega=np.asarray(self.omega), scheme=scheme, safeguard=self.safeguard, from_prior=self.begin == "prior"
        )
        result = self.run(algorithm, problem, start, progress, **limits)
        if result.status is Status.BAD_START:
            return result
        moments, eta, sites = _as_chain(problem, scheme, result.sites)
        return flagged(problem, result._replace(moments=moments, eta=eta, sites=sites))


@compiled
def _as_chain(problem: Problem, scheme: Scheme, q: AffineProcess):
    """q as the chain of its nodes, and the sites that the gradient of the bound asks for there."""
    moments, ok = moments_of(problem, scheme, q)
    inside = problem.in_chain
    S = jnp.where(inside, moments.S, blocks.eye_like(moments.S))
    moments = Moments(jnp.where(inside, moments.m, 0.0), S, jnp.where(inside[1:], moments.C, 0.0))
    _, sites = evaluate(problem, Smoothed(moments, jnp.zeros(()), ok))
    return moments, to_natural(moments), sites
