"""Mirror descent as in the paper, η ← (1 − ρ) η + ρ g(η), with or without a safeguard."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Bool, Float

from girsanov._core.types import Array
from girsanov.chain.moments import expectations
from girsanov.chain.natural import NaturalChain, inner
from girsanov.chain.smoother import Engine
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
from girsanov.inference.objective import Posed
from girsanov.inference.status import Status

_GROWTH, _SHRINKAGE = 1.5, 0.5
_SMALLEST = 1e-6  # a safeguarded run ends when its step size falls below this
_ROUNDING = 1e3  # a run that cannot raise the bound has converged if `ahead` is below this multiple of the tolerance


class MirrorCarry(eqx.Module):
    """The state of mirror descent between two passes.

    Attributes:
        common: the part that every algorithm has.
        residual: the natural gradient r = g(η) − η at the current chain.
        rho: the step size of the next trial.
        ahead: symmetrised KL divergence of a full step from the current chain, in nats, estimated by the first trial
            from it; negative before that trial.
    """

    common: Carry
    residual: NaturalChain
    rho: Float[Array, ""]
    ahead: Float[Array, ""]


class Mirror(Algorithm):
    """Mirror descent with step size ρ.

    With a safeguard, ρ is halved after a step that lowers the bound or leaves q without a density; it grows again after
    accepted steps.
    """

    rho: Float[Array, ""]
    safeguard: bool = eqx.field(static=True)
    engine: Engine = eqx.field(static=True, default="auto")

    def common(self, carry: MirrorCarry) -> Carry:
        return carry.common

    def begin(self, problem: Posed, start: Any, given: Bool[Array, ""]) -> MirrorCarry:
        first = begin_chain(problem, start, given)
        return MirrorCarry(first, 0.0 * first.eta, jnp.asarray(self.rho), jnp.asarray(-1.0))

    def step(self, problem: Posed, carry: MirrorCarry, limits: Limits) -> tuple[MirrorCarry, Record]:
        at = carry.common
        first = at.iteration < 0
        trial = evaluate_trial(problem, at.eta + carry.rho * carry.residual, self.engine)
        rise = trial.elbo - at.elbo
        raised = first | (rise >= -rounding(problem, at.elbo)) if self.safeguard else True
        accept = trial.ok & raised

        # Symmetrised KL between successive q, in nats: (η_new − η)·(μ_new − μ).
        change = inner(trial.eta - at.eta, expectations(trial.moments) - expectations(at.moments))
        converged = ~first & (jnp.abs(rise) < limits.tolerance) & (jnp.abs(change) < limits.tolerance)
        iteration = at.iteration + accept
        ahead = jnp.where(carry.ahead < 0.0, jnp.abs(change) / carry.rho**2, carry.ahead)
        if self.safeguard:
            rho = jnp.where(accept, jnp.minimum(self.rho, _GROWTH * carry.rho), _SHRINKAGE * carry.rho)
            rho = jnp.where(first, self.rho, rho)
            # Where not even a short step raises the bound, the rest of the residual is rounding or quadrature error.
            # The run has converged if a full step would hardly move q.
            small = (ahead >= 0.0) & (ahead < _ROUNDING * limits.tolerance)
            spent = jnp.where(small, int(Status.CONVERGED), int(Status.STALLED))
            failed = jnp.where(rho < _SMALLEST, spent, int(Status.RUNNING))
        else:
            rho, failed = carry.rho, int(Status.NOT_A_DENSITY)
        status = jnp.where(accept, at.status, jnp.where(first, int(Status.BAD_START), failed))
        status = settle(status, iteration, accept, converged, limits)
        eta, elbo, moments, sites, residual = select(
            accept,
            (trial.eta, trial.elbo, trial.moments, trial.sites, trial.residual),
            (at.eta, at.elbo, at.moments, at.sites, carry.residual),
        )
        common = Carry(eta, elbo, moments, sites, iteration, status)
        return MirrorCarry(common, residual, rho, jnp.where(accept, -1.0, ahead)), Record(
            accept, elbo, carry.rho, change
        )
