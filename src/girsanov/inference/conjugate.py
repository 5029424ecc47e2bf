"""Conjugate directions in the information geometry: the default, accelerated algorithm.

The natural gradient of the bound is r = g(η) − η, a direction in natural parameters; the ordinary gradient is F r with
F = ∂μ/∂η the Fisher matrix, one tangent pass of the smoother. Directions are combined by Polak–Ribière+,
    d ← r + β d,   β = max(0, (r − r_old)ᵀF r / (r_oldᵀ F_old r_old)),
and since F is symmetric that one product also gives the slope of the bound along the old and the new direction. A
line is searched by backtracking with quadratic interpolation; when the slope at the accepted point is still large, the
line is followed once more, to where the two slopes say it is zero.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from girsanov._core.types import Array
from girsanov.chain.natural import NaturalChain, inner
from girsanov.chain.smoother import Engine, tangent
from girsanov.inference.loop import (
    Algorithm,
    Carry,
    Limits,
    Record,
    begin_chain,
    evaluate_trial,
    rounding,
    select,
    settle,
)
from girsanov.inference.objective import Problem
from girsanov.inference.status import Status

_ARMIJO = 1e-4  # share of the predicted rise that a step must bring
_STEEP = 0.3  # share of the slope that may be left at the end of a line
_MAX_BACKTRACKS = 12
_MAX_IDLE = 3
_QUADRATURE_ERROR = 1e3  # tolerances that rᵀFr may keep when the bound cannot be raised any more
_STEPS = (0.05, 2.0)  # range of the first step of a new line


class ConjugateCarry(eqx.Module):
    common: Carry
    residual: NaturalChain  # r at the current chain
    direction: NaturalChain
    line_residual: NaturalChain  # r where this line began
    line_norm: Float[Array, ""]  # rᵀFr there
    line_elbo: Float[Array, ""]
    slope: Float[Array, ""]  # of the bound along the direction, at the current chain
    norm: Float[Array, ""]  # rᵀFr at the current chain
    cross: Float[Array, ""]  # line_residualᵀ F r at the current chain
    step: Float[Array, ""]  # of the next trial
    line_step: Float[Array, ""]  # gone along this line so far
    next_step: Float[Array, ""]  # first step of the next line
    refining: Bool[Array, ""]
    steepest: Bool[Array, ""]  # whether the direction is r itself
    backtracks: Int[Array, ""]
    idle: Int[Array, ""]  # lines in a row that brought less than the tolerance


class Conjugate(Algorithm):
    engine: Engine = eqx.field(static=True, default="auto")

    def common(self, carry: ConjugateCarry) -> Carry:
        return carry.common

    def begin(self, problem: Problem, start: Any, given: Bool[Array, ""]) -> ConjugateCarry:
        first = begin_chain(problem, start, given)
        zero_chain = 0.0 * first.eta
        zero, one, no = jnp.zeros(()), jnp.ones(()), jnp.asarray(False)
        none = jnp.asarray(jnp.inf)  # as the norm of the line before: β = 0, the first line is r itself
        return ConjugateCarry(
            first, zero_chain, zero_chain, zero_chain, none, first.elbo, zero, zero, zero, zero, zero, one, no,
            jnp.asarray(True), jnp.asarray(0), jnp.asarray(0),
        )  # fmt: skip

    def step(self, problem: Problem, carry: ConjugateCarry, limits: Limits) -> tuple[ConjugateCarry, Record]:
        at = carry.common
        first = at.iteration < 0
        a, slope = carry.step, carry.slope
        trial = evaluate_trial(problem, at.eta + a * carry.direction, self.engine)
        rise = trial.elbo - at.elbo
        noise = jnp.where(first, 0.0, rounding(problem, jnp.where(first, 0.0, at.elbo)))
        # Along r itself any rise will do, a full natural step before all: far from the optimum the slope promises more
        # than there is, 1e17 nats say where 1e8 are to be had, and no step would bring its share of that.
        enough = jnp.where(carry.steepest, 0.0, _ARMIJO * a * slope)
        accept = trial.ok & (first | (rise >= enough - noise))

        def tangent_products():
            F_r = tangent(trial.eta, trial.residual, self.engine)
            return inner(carry.direction, F_r), inner(trial.residual, F_r), inner(carry.line_residual, F_r)

        kept = (slope, carry.norm, carry.cross)
        end_slope, norm, cross = jax.lax.cond(accept, tangent_products, lambda: kept)
        secant = jnp.where(end_slope < slope, a * slope / (slope - end_slope), 2.0 * a)
        steep = (jnp.abs(end_slope) > _STEEP * jnp.abs(slope)) & (end_slope < slope)
        refine = accept & ~first & ~carry.refining & steep
        turn = (accept & ~refine) | (~accept & carry.refining)

        eta, elbo, moments, sites, residual = select(
            accept,
            (trial.eta, trial.elbo, trial.moments, trial.sites, trial.residual),
            (at.eta, at.elbo, at.moments, at.sites, carry.residual),
        )
        iteration = at.iteration + turn

        # A new line from the current chain; or the same line again, with a shorter step after a rejected trial; or from
        # r itself when the line gives nothing.
        beta, new_slope, steepest = _new_line(carry, norm, cross, end_slope)
        next_step = jnp.where(accept & ~carry.refining & ~first, jnp.clip(secant, *_STEPS), carry.next_step)
        shorter = _shorter_step(trial.ok, rise, slope, a)
        backtracks = carry.backtracks + 1
        exhausted = ~accept & ~carry.refining & (backtracks > _MAX_BACKTRACKS)
        restart = exhausted & ~carry.steepest
        stalled = exhausted & carry.steepest

        renew = turn | restart
        direction = select(renew, residual + jnp.where(turn, beta, 0.0) * carry.direction, carry.direction)
        idle = jnp.where(turn, jnp.where(elbo - carry.line_elbo < limits.tolerance, carry.idle + 1, 0), carry.idle)
        spent = stalled | (turn & (idle >= _MAX_IDLE))
        status = _verdict(first, spent, norm, idle, limits, iteration, turn, at.status)
        status = jnp.where(first & ~accept, int(Status.BAD_START), status)

        follow = jnp.clip(secant, 0.1 * a, 4.0 * a) - a
        new = ConjugateCarry(
            Carry(eta, elbo, moments, sites, iteration, status),
            residual,
            direction,
            select(renew, residual, carry.line_residual),
            jnp.where(turn, norm, carry.line_norm),
            jnp.where(turn, elbo, carry.line_elbo),
            jnp.where(turn, new_slope, jnp.where(restart, carry.line_norm, end_slope)),
            norm,
            cross,
            jnp.where(turn, next_step, jnp.where(refine, follow, jnp.where(restart, 1.0, shorter))),
            jnp.where(refine, a, 0.0),
            next_step,
            refine,
            jnp.where(turn, steepest, jnp.where(restart, True, carry.steepest)),
            jnp.where(accept | restart | turn, 0, backtracks),
            idle,
        )
        return new, Record(turn, elbo, carry.line_step + jnp.where(accept, a, 0.0), norm)


def _new_line(carry: ConjugateCarry, norm, cross, end_slope):
    """Polak–Ribière+: β, the slope along r + β d, and whether the direction fell back to r."""
    beta = jnp.maximum(0.0, (norm - cross) / carry.line_norm)
    slope = norm + beta * end_slope
    steepest = (beta == 0.0) | ~(slope > 0.0)
    return jnp.where(steepest, 0.0, beta), jnp.where(steepest, norm, slope), steepest


def _shorter_step(ok, rise, slope, a):
    """Where the parabola through the start, its slope and the trial has its top; blindly shorter without a trial."""
    curvature = (rise - slope * a) / a**2
    top = jnp.where(ok & (curvature < 0.0), -0.5 * slope / curvature, 0.0)
    return jnp.where(ok, jnp.clip(top, 0.1 * a, 0.5 * a), 0.3 * a)


def _verdict(first, spent, norm, idle, limits: Limits, iteration, turn, status):
    """Converged: the last line and what the next one promises (½rᵀFr) are both below the tolerance.

    Where the bound cannot be raised any more, quadrature error is what is left of r: fine while it is small. A square
    that rounding made negative is no smaller for it.
    """
    converged = ~first & (jnp.abs(norm) < jnp.where(idle > 0, 1.0, 1e-2) * limits.tolerance)
    small = jnp.abs(norm) < _QUADRATURE_ERROR * limits.tolerance
    status = jnp.where(spent, jnp.where(small, int(Status.CONVERGED), int(Status.STALLED)), status)
    return settle(status, iteration, turn, converged, limits)
