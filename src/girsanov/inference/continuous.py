"""CVI-DP in continuous time: damped steps towards the sites that the gradient of the bound gives."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from girsanov._core.types import Array
from girsanov.chain.linear_sde import LEFT, Linearisation
from girsanov.chain.natural import NaturalChain
from girsanov.chain.smoother import Engine
from girsanov.chain.transitions import Transitions
from girsanov.inference.continuous_bound import (
    ContinuousSites,
    Process,
    distance,
    evaluate_continuous,
    from_discrete,
    mix,
)
from girsanov.inference.loop import Algorithm, Carry, Limits, Record, blank_carry, blank_sites, select, settle
from girsanov.inference.objective import Posed
from girsanov.inference.start import starting_sites
from girsanov.inference.status import Status

# With a safeguard, the step size shrinks by _DAMPING after a step whose decrement has grown, and grows by _GROWTH
# otherwise. A step whose decrement grows by more than the factor _FAR, or whose q is no density, is rejected, and the
# step size shrinks by _SHRINKAGE.
_GROWTH, _DAMPING, _SHRINKAGE = 1.1, 0.7, 0.5
_FAR = 4.0
_SLACK = 1.0  # nats by which a step may lower the bound: the sites follow its trapezoidal approximation
_SMALLEST = 1e-5  # the run has stalled when its step size falls below this
_LOST = 3e-5  # largest estimated rounding error as a share of a variance; actual errors were up to thirty times larger
_UNSTABLE = 2.0  # Euler's scheme is unstable where Δ times the rate of the drift exceeds this


def _from_the_data(problem: Posed) -> ContinuousSites:
    sites = starting_sites(problem, "continuous")
    base = sites.base if problem.data.inputs is None else Linearisation(sites.base.A, sites.base.b, sites.base)
    return ContinuousSites(base, sites.dense, sites.dense, sites.data)


def _resolved(problem: Posed, start: ContinuousSites) -> Bool[Array, ""]:
    """Return whether all steps of a discretised solution are stable, so that it is a useful start for the SDE."""
    rate = jnp.sqrt((start.base.A[..., LEFT] ** 2).sum((0, 1)))
    return jnp.all(jnp.where(problem.data.in_chain[1:], problem.data.gaps * rate, 0.0) < _UNSTABLE)


class ContinuousCarry(eqx.Module):
    """The state of the algorithm between two passes.

    Attributes:
        common: the part that every algorithm has.
        target: the sites given by the gradient at the current q; before the first pass, the start from the data alone.
        rho: the step size of the next trial.
        decrement: symmetrised KL divergence of the last step divided by ρ², in nats.
        own: q's own drift at the ends of all intervals.
    """

    common: Carry
    target: ContinuousSites
    rho: Float[Array, ""]
    decrement: Float[Array, ""]
    own: Linearisation


class Continuous(Algorithm):
    """Damped steps by exact geometric mixing, until the sites of q are those given by the gradient of the bound.

    The sites follow the trapezoidal rule and the bound follows Simpson's, which is more accurate, so a step may lower
    the bound slightly. Messages and moments are computed one node after the other, whatever the engine.
    """

    rho: Float[Array, ""]
    safeguard: bool = eqx.field(static=True)
    engine: Engine = eqx.field(static=True, default="auto")

    def blank_start(self, problem: Posed) -> ContinuousSites:
        return from_discrete(blank_sites(problem), problem.data.inputs is not None)

    def begin(self, problem: Posed, start, given) -> ContinuousCarry:
        given &= _resolved(problem, start)
        own = _from_the_data(problem)
        sites = select(given, start, own)
        d, N = problem.model.dim, problem.data.times.shape[0]
        eta = NaturalChain(jnp.zeros((d, N)), jnp.zeros((d, d, N)), jnp.zeros((d, d, N - 1)))
        common = blank_carry(problem, eta, sites)
        steps = Transitions(jnp.zeros((d, d, N - 1)), jnp.zeros((d, d, N)))
        common = dataclasses.replace(common, iteration=jnp.where(given, -1, -2), steps=steps)
        still = Linearisation(jnp.zeros((d, d, 2 * N - 2)), jnp.zeros((d, 2 * N - 2)))
        return ContinuousCarry(common, own, jnp.asarray(self.rho), jnp.asarray(jnp.inf), still)

    def common(self, carry: ContinuousCarry) -> Carry:
        return carry.common

    def step(self, problem: Posed, carry: ContinuousCarry, limits: Limits) -> tuple[ContinuousCarry, Record]:
        # A run from the data alone has two passes before its first iteration. The first evaluates the start; the second
        # takes the drift linearised there as the base, without dense sites. The trapezoidal rule is accurate only where
        # the base is close to the drift, so the bound counts from the second pass on.
        at = carry.common
        look, first = at.iteration == -2, at.iteration < 0
        unmoved = look | (first & ~jnp.isfinite(at.elbo))
        proposal = mix(problem.model.noise.precision, at.sites, carry.target, jnp.where(unmoved, 0.0, carry.rho))
        trial = evaluate_continuous(problem, proposal)
        new, old = Process(trial.eta, trial.moments, trial.own), Process(at.eta, at.moments, carry.own)
        change = distance(problem, new, old)
        decrement = jnp.where(first, jnp.inf, change / carry.rho**2)
        accept = trial.ok
        if self.safeguard:
            accept &= first | ~((decrement > _FAR * carry.decrement) | (trial.elbo < at.elbo - _SLACK))
        # A symmetrised divergence cannot be negative, and the bound cannot change where q does not. Where the numbers
        # say otherwise, they are rounding errors.
        at_rest = jnp.abs(trial.elbo - at.elbo) < jnp.sqrt(limits.tolerance)
        converged = ~first & (jnp.abs(decrement) < limits.tolerance) & at_rest
        lost = ~first & trial.ok & ~(decrement > -limits.tolerance)
        lost |= converged & ~(trial.lost < _LOST)
        iteration = at.iteration + accept
        rho, failed = carry.rho, int(Status.NOT_A_DENSITY)
        if self.safeguard:
            outwards = decrement > carry.decrement
            rho = jnp.where(first, rho, jnp.minimum(self.rho, jnp.where(outwards, _DAMPING, _GROWTH) * rho))
            rho = jnp.where(accept, rho, _SHRINKAGE * carry.rho)
            failed = int(Status.RUNNING)
        status = jnp.where(accept, at.status, jnp.where(unmoved, int(Status.BAD_START), failed))
        status = jnp.where((rho < _SMALLEST) & ~converged, int(Status.STALLED), status)
        status = jnp.where(lost, int(Status.ILL_CONDITIONED), status)
        status = settle(status, iteration, accept, converged, limits)
        eta, elbo, moments, sites, steps, target, own = select(
            accept,
            (trial.eta, trial.elbo, trial.moments, trial.sites, trial.steps, trial.target, trial.own),
            (at.eta, at.elbo, at.moments, at.sites, at.steps, carry.target, carry.own),
        )
        zero = jax.tree.map(jnp.zeros_like, target.left)
        target = select(look, ContinuousSites(target.base, zero, zero, target.data), target)
        # Where the given start is not a density, the run begins again from the data alone.
        fall_back = unmoved & ~look & ~accept
        sites = select(fall_back, carry.target, sites)
        iteration, status = jnp.where(fall_back, -2, iteration), jnp.where(fall_back, at.status, status)
        common = Carry(eta, elbo, moments, sites, iteration, status, steps)
        # After a rejected step the reference is doubled: the remaining distance may have grown since the last step.
        kept = jnp.where(accept, decrement, carry.decrement / _SHRINKAGE)
        return ContinuousCarry(common, target, rho, kept, own), Record(accept & ~look, elbo, carry.rho, decrement)
