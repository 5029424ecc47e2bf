"""The default, accelerated algorithm of CVI-DP: conjugate gradients with the natural gradient.

The natural gradient of the bound is r = g(η) − η, a direction in natural parameters. The ordinary gradient is F r,
where F = ∂μ/∂η is the Fisher matrix; one tangent pass of the smoother computes it. Directions are combined by
Polak–Ribière+,
    d ← r + β d,   β = max(0, (r − r_old)ᵀF r / (r_oldᵀ F_old r_old)).
Since F is symmetric, the one product F r also gives the slope of the bound along the old and the new direction.
`line_search` finds the step along a direction.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from girsanov._core.types import Array
from girsanov.chain.natural import NaturalChain, inner
from girsanov.chain.smoother import Engine, tangent
from girsanov.inference import loop
from girsanov.inference.line_search import Line, Outcome, brings_enough, first_step, judge, new_line, same_line
from girsanov.inference.loop import Algorithm, Carry, Limits, Record, Trial, select
from girsanov.inference.objective import Posed
from girsanov.inference.status import Status

_MAX_IDLE = 3  # lines in a row with a gain below the tolerance, after which the run ends
_QUADRATURE_ERROR = 1e3  # a run that cannot raise the bound has converged if rᵀFr is below this multiple of tolerance


class Products(eqx.Module):
    """Inner products with F r at the current chain.

    Attributes:
        slope: dᵀFr, the slope of the bound along the direction d.
        norm: rᵀFr.
        cross: r_oldᵀFr, where r_old is the natural gradient at the beginning of the line.
    """

    slope: Float[Array, ""]
    norm: Float[Array, ""]
    cross: Float[Array, ""]


class ConjugateCarry(eqx.Module):
    """The state of the algorithm between two passes.

    Attributes:
        common: the part that every algorithm has.
        residual: the natural gradient r at the current chain.
        direction: the direction d of the current line.
        line_residual: r at the beginning of the current line.
        line: the state of the line search.
        products: inner products with F r at the current chain.
        next_step: the step size of the first trial on the next line.
        idle: the number of lines in a row that raised the bound by less than the tolerance.
    """

    common: Carry
    residual: NaturalChain
    direction: NaturalChain
    line_residual: NaturalChain
    line: Line
    products: Products
    next_step: Float[Array, ""]
    idle: Int[Array, ""]


class Conjugate(Algorithm):
    """Conjugate directions with a line search; a line that is completed counts as one iteration."""

    engine: Engine = eqx.field(static=True, default="auto")

    def common(self, carry: ConjugateCarry) -> Carry:
        return carry.common

    def begin(self, problem: Posed, start: Any, given: Bool[Array, ""]) -> ConjugateCarry:
        first = loop.begin_chain(problem, start, given)
        nothing, zero = 0.0 * first.eta, jnp.zeros(())
        none = jnp.asarray(jnp.inf)  # an infinite norm of the previous line makes β = 0: the first direction is r
        return ConjugateCarry(
            common=first,
            residual=nothing,
            direction=nothing,
            line_residual=nothing,
            line=new_line(none, first.elbo, zero, zero, True),
            products=Products(zero, zero, zero),
            next_step=jnp.ones(()),
            idle=jnp.asarray(0),
        )

    def step(self, problem: Posed, carry: ConjugateCarry, limits: Limits) -> tuple[ConjugateCarry, Record]:
        at, line = carry.common, carry.line
        first = at.iteration < 0
        trial = loop.evaluate_trial(problem, at.eta + line.step * carry.direction, self.engine)
        rise = trial.elbo - at.elbo
        noise = jnp.where(first, 0.0, loop.rounding(problem, jnp.where(first, 0.0, at.elbo)))
        accept = trial.ok & (first | brings_enough(line, rise, noise))
        products = self._products(trial, carry, accept)
        outcome = judge(line, first, accept, products.slope)
        eta, elbo, moments, sites, residual = select(
            accept,
            (trial.eta, trial.elbo, trial.moments, trial.sites, trial.residual),
            (at.eta, at.elbo, at.moments, at.sites, carry.residual),
        )
        iteration = at.iteration + outcome.turn
        new_step = jnp.where(accept & ~line.refining & ~first, first_step(line, products.slope), carry.next_step)
        beta, turned = _turned(line, products, elbo, new_step)
        renew = outcome.turn | outcome.restart
        direction = residual + jnp.where(outcome.turn, beta, 0.0) * carry.direction
        again = new_line(line.norm, line.elbo, line.norm, jnp.ones(()), True)
        onwards = same_line(line, outcome, trial.ok, rise, products.slope)

        little = elbo - line.elbo < limits.tolerance
        idle = jnp.where(outcome.turn, jnp.where(little, carry.idle + 1, 0), carry.idle)
        status = _verdict(first, outcome, products.norm, idle, limits, iteration, at.status)
        new = ConjugateCarry(
            common=Carry(eta, elbo, moments, sites, iteration, status),
            residual=residual,
            direction=select(renew, direction, carry.direction),
            line_residual=select(renew, residual, carry.line_residual),
            line=select(outcome.turn, turned, select(outcome.restart, again, onwards)),
            products=products,
            next_step=new_step,
            idle=idle,
        )
        return new, Record(outcome.turn, elbo, line.gone + jnp.where(accept, line.step, 0.0), products.norm)

    def _products(self, trial: Trial, carry: ConjugateCarry, accept: Bool[Array, ""]) -> Products:
        """Return the products at the trial where it is accepted, otherwise those at the current chain."""

        def fresh():
            F_r = tangent(trial.eta, trial.residual, self.engine)
            return Products(*(inner(v, F_r) for v in (carry.direction, trial.residual, carry.line_residual)))

        kept = Products(carry.line.slope, carry.products.norm, carry.products.cross)
        return jax.lax.cond(accept, fresh, lambda: kept)


def _turned(line: Line, at: Products, elbo: Float[Array, ""], step: Float[Array, ""]) -> tuple[Array, Line]:
    """Return β by Polak–Ribière+ and the line along r + β d; β is zero where the bound would not rise along it."""
    beta = jnp.maximum(0.0, (at.norm - at.cross) / line.norm)
    slope = at.norm + beta * at.slope
    steepest = (beta == 0.0) | ~(slope > 0.0)
    line = new_line(at.norm, elbo, jnp.where(steepest, at.norm, slope), step, steepest)
    return jnp.where(steepest, 0.0, beta), line


def _verdict(first, outcome: Outcome, norm, idle, limits: Limits, iteration, status):
    """Return the status after a pass.

    The run has converged when both the gain of the last line and the predicted gain of the next one, ½rᵀFr, are below
    the tolerance. Where the bound cannot be raised any more, the rest of r is quadrature error, and the run has
    converged if it is small. The absolute value of rᵀFr is compared, because rounding can make it negative.
    """
    spent = outcome.stalled | (outcome.turn & (idle >= _MAX_IDLE))
    converged = ~first & (jnp.abs(norm) < jnp.where(idle > 0, 1.0, 1e-2) * limits.tolerance)
    small = jnp.abs(norm) < _QUADRATURE_ERROR * limits.tolerance
    status = jnp.where(spent, jnp.where(small, int(Status.CONVERGED), int(Status.STALLED)), status)
    status = loop.settle(status, iteration, outcome.turn, converged, limits)
    return jnp.where(first & ~outcome.accept, int(Status.BAD_START), status)
