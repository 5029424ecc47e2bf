"""VDP: variational inference for diffusion processes by the fixed-point algorithm of Archambeau et al. (2007)."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from girsanov._core.compile import compiled
from girsanov._core.extras import check_extra
from girsanov.chain import blocks
from girsanov.chain.conversion import to_natural
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain
from girsanov.chain.smoother import Smoothed
from girsanov.inference.conditioning import flagged
from girsanov.inference.continuous_bound import ContinuousSites
from girsanov.inference.fixed_point import AffineProcess, FixedPoint, moments_of
from girsanov.inference.loop import Run
from girsanov.inference.method import Method, Start, check_limits, reject_unknown
from girsanov.inference.objective import Posed, evaluate
from girsanov.inference.schemes import Adaptive, Euler, Scheme
from girsanov.inference.sites import Sites
from girsanov.inference.status import Status
from girsanov.model.quadrature import Quadrature

_SOLVERS = ("euler", "adjoint", "adaptive")
_BEGINNINGS = ("data", "prior")


class VDP(Method):
    """Settings of VDP, for the argument `method` of `gv.infer` and `gv.learn`.

    Args:
        omega: step size of the fixed-point iteration, in (0, 1]; default 1.
        safeguard: whether to reject and halve steps that lower the bound; default True. False is the plain iteration of
            the paper; where it fails, the run ends with the status "diverged" and its best result.
        tolerance: in nats, default 1e-6. A run has converged when the divergence between q and the right-hand side of
            the fixed-point equations is below it.
        max_iterations: largest number of iterations; default 1000.
        solver: "euler" as in the paper; "adjoint" (the default), whose multipliers are derivatives of the discretised
            bound and stay stable next to precise observations; or "adaptive", a Runge–Kutta method with adaptive steps
            inside the intervals of the grid, which needs the extra `diffrax`.
        rtol: relative tolerance of the adaptive solver, in (0, 1); default 1e-6.
        begin: where to start: from a rough approximation of the "data" (the default), or from the "prior".
        quadrature: rule for expectations of the drift, such as `gv.GaussHermite(10)`. None (the default) takes
            Gauss–Hermite up to d = 3 and cubature above.
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
        """The solver for the differential equations of the moments and the multipliers."""
        if self.solver == "adaptive":
            check_extra("diffrax", 'VDP(solver="adaptive")')
            return Adaptive(rtol=self.rtol, atol=1e-3 * self.rtol)
        return Euler(adjoint=self.solver == "adjoint")

    def solve(self, problem, start=None, progress=None) -> tuple[Run, list[Run]]:
        return self._run(problem, start, progress), []

    def continue_from(self, problem: Posed, start: Start | None, **limits: Any) -> Run:
        return self._run(problem, start, None, **limits)

    def next_start(self, result: Run, sites: Sites | ContinuousSites, eta: NaturalChain) -> Start:
        return eta

    def _run(self, problem: Posed, start: Start | None, progress: Any, **limits: Any) -> Run:
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
def _as_chain(problem: Posed, scheme: Scheme, q: AffineProcess):
    """Return q at the nodes by its moments and natural parameters, and the sites given by the gradient of the bound."""
    moments, ok = moments_of(problem, scheme, q)
    inside = problem.data.in_chain
    S = jnp.where(inside, moments.S, blocks.eye_like(moments.S))
    moments = Moments(jnp.where(inside, moments.m, 0.0), S, jnp.where(inside[1:], moments.C, 0.0))
    _, sites = evaluate(problem, Smoothed(moments, jnp.zeros(()), ok))
    return moments, to_natural(moments), sites
