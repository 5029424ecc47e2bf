"""A line search: it backtracks by parabolas, and extends an accepted step once where the slope is still steep.

A line begins at a chain, with a direction along which the bound rises. Step sizes are tried until one raises the bound
enough. Where the slope at the accepted point is still a large share of the first slope, the step is extended once, to
the point at which linear interpolation of the two slopes gives zero. This module works on scalars only: it knows
neither the direction nor how a trial is evaluated.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from girsanov._core.types import Array

_ARMIJO = 1e-4  # a step must raise the bound by at least this share of the predicted rise
_STEEP = 0.3  # an accepted step is extended where the slope left is more than this share of the first slope
_MAX_BACKTRACKS = 12
_STEPS = (0.05, 2.0)  # smallest and largest step size of the first trial on a new line


class Line(eqx.Module):
    """The state of the search along one line.

    Attributes:
        norm: rᵀFr at the beginning of the line.
        elbo: the bound at the beginning of the line.
        slope: slope of the bound along the direction, at the current chain.
        step: step size of the next trial, from the current chain.
        gone: step size from the beginning of the line to the current chain.
        refining: whether the next trial extends a step that has been accepted.
        steepest: whether the direction is the natural gradient r itself.
        backtracks: number of trials in a row that did not raise the bound enough.
    """

    norm: Float[Array, ""]
    elbo: Float[Array, ""]
    slope: Float[Array, ""]
    step: Float[Array, ""]
    gone: Float[Array, ""]
    refining: Bool[Array, ""]
    steepest: Bool[Array, ""]
    backtracks: Int[Array, ""]


def new_line(norm, elbo, slope, step, steepest) -> Line:
    """Return a line before its first trial."""
    return Line(norm, elbo, slope, step, jnp.zeros(()), jnp.asarray(False), jnp.asarray(steepest), jnp.asarray(0))


def brings_enough(line: Line, rise: Float[Array, ""], noise: Float[Array, ""]) -> Bool[Array, ""]:
    """Return whether a step meets Armijo's condition, up to the rounding error (`noise`) of the bound.

    Along the natural gradient r itself any rise is enough. Far from the optimum the slope predicts far too much, for
    instance 1e17 nats where 1e8 are possible, and no step would give the required share of that.
    """
    enough = jnp.where(line.steepest, 0.0, _ARMIJO * line.step * line.slope)
    return rise >= enough - noise


class Outcome(eqx.Module):
    """The consequences of a trial. Where all but `accept` are false, a shorter step is tried on the same line.

    Attributes:
        accept: whether the trial becomes the current chain.
        refine: whether the step is extended from the trial.
        turn: whether the line is complete, and a new one begins at the current chain.
        restart: whether no step along the direction was accepted, and the line begins again along r itself.
        stalled: whether no step along r itself was accepted.
    """

    accept: Bool[Array, ""]
    refine: Bool[Array, ""]
    turn: Bool[Array, ""]
    restart: Bool[Array, ""]
    stalled: Bool[Array, ""]


def judge(line: Line, first: Bool[Array, ""], accept: Bool[Array, ""], end_slope: Float[Array, ""]) -> Outcome:
    """Return the consequences of a trial, from whether it is accepted and the slope along the line at its end."""
    steep = (jnp.abs(end_slope) > _STEEP * jnp.abs(line.slope)) & (end_slope < line.slope)
    refine = accept & ~first & ~line.refining & steep
    turn = (accept & ~refine) | (~accept & line.refining)
    exhausted = ~accept & ~line.refining & (line.backtracks >= _MAX_BACKTRACKS)
    return Outcome(accept, refine, turn, exhausted & ~line.steepest, exhausted & line.steepest)


def _flat(line: Line, end_slope: Float[Array, ""]) -> Float[Array, ""]:
    """Return the step size at which the line through the two slopes is zero, or twice the step if they do not fall."""
    a, slope = line.step, line.slope
    return jnp.where(end_slope < slope, a * slope / (slope - end_slope), 2.0 * a)


def first_step(line: Line, end_slope: Float[Array, ""]) -> Float[Array, ""]:
    """Return the step size of the first trial on the next line: where the slope of this line vanished."""
    return jnp.clip(_flat(line, end_slope), *_STEPS)


def same_line(line: Line, outcome: Outcome, ok: Bool[Array, ""], rise: Float[Array, ""], end_slope) -> Line:
    """Return the line for another trial, which extends the accepted step or takes a shorter one."""
    a = line.step
    onwards = jnp.clip(_flat(line, end_slope), 0.1 * a, 4.0 * a) - a
    step = jnp.where(outcome.refine, onwards, _shorter(ok, rise, line.slope, a))
    backtracks = jnp.where(outcome.accept, 0, line.backtracks + 1)
    gone = jnp.where(outcome.refine, a, 0.0)
    return Line(line.norm, line.elbo, end_slope, step, gone, outcome.refine, line.steepest, backtracks)


def _shorter(ok, rise, slope, a):
    """Return a shorter step size: the maximum of the parabola through the start, its slope and the trial.

    Where the trial could not be evaluated, the step is multiplied by 0.3.
    """
    curvature = (rise - slope * a) / a**2
    top = jnp.where(ok & (curvature < 0.0), -0.5 * slope / curvature, 0.0)
    return jnp.where(ok, jnp.clip(top, 0.1 * a, 0.5 * a), 0.3 * a)
