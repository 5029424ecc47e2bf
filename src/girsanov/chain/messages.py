"""A Gaussian Markov process reweighted on single states: messages backwards, moments forwards.

In the units of a step's own noise, x₊ = c + Lz with z | x ~ N(Fx, I), LLᵀ = Σ and LF = Φ, a message exp(hᵀx₊ − ½x₊ᵀJx₊)
from later on makes z | x ~ N(B⁻¹(Fx + h_z), B⁻¹) with
    h_z = Lᵀ(h − Jc),   J_z = LᵀJL,   B = I + J_z,
and before the step it reads h₋ = FᵀB⁻¹h_z, J₋ = FᵀB⁻¹J_zF. Everything is sums and products of positive matrices:
no precision or covariance is a difference of two larger ones, however short a step is or however stiff.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from girsanov._core.types import Array
from girsanov.chain import blocks
from girsanov.chain.blocks import inverse, matmul, matvec, symmetrise, transpose
from girsanov.chain.linear_sde import Transition
from girsanov.chain.moments import Moments
from girsanov.chain.transitions import Transitions


class Message(eqx.Module):
    """exp(hᵀx − ½xᵀJx): what is known of a state from elsewhere."""

    h: Float[Array, "d *lanes"]
    J: Float[Array, "d d *lanes"]

    def __add__(self, other: "Message") -> "Message":
        return Message(self.h + other.h, self.J + other.J)


class Step(eqx.Module):
    """x₊ = c + Lz, z | x ~ N(Fx, I)."""

    L: Float[Array, "d d *lanes"]
    F: Float[Array, "d d *lanes"]
    c: Float[Array, "d *lanes"]


def whitened(transition: Transition) -> Step:
    L = blocks.cholesky(transition.Sigma)
    return Step(L, matmul(blocks.inverse_lower(L), transition.Phi), transition.c)


class Tilted(eqx.Module):
    """A step under a message: z | x ~ N(V(Fx + h), V), with V = B⁻¹ and VJ = B⁻¹J_z."""

    h: Float[Array, "d *lanes"]
    V: Float[Array, "d d *lanes"]
    VJ: Float[Array, "d d *lanes"]
    pivots: Float[Array, "d *lanes"]  # of B: all positive exactly if the step is still a density


def tilt(step: Step, message: Message) -> Tilted:
    L_t = transpose(step.L)
    J = symmetrise(matmul(L_t, matmul(message.J, step.L)))
    V, pivots = inverse(blocks.eye_like(J) + J)
    return Tilted(matvec(L_t, message.h - matvec(message.J, step.c)), V, symmetrise(matmul(V, J)), pivots)


def back(step: Step, tilted: Tilted) -> Message:
    """The message before the step."""
    F_t = transpose(step.F)
    return Message(matvec(F_t, matvec(tilted.V, tilted.h)), symmetrise(matmul(F_t, matmul(tilted.VJ, step.F))))


def reweighted(step: Step, tilted: Tilted) -> Transition:
    """The transition of the step under the message."""
    LV = matmul(step.L, tilted.V)
    return Transition(matmul(LV, step.F), step.c + matvec(LV, tilted.h), symmetrise(matmul(LV, transpose(step.L))))


def moved(transition: Transition, m: Float[Array, "d *lanes"], S: Float[Array, "d d *lanes"]) -> tuple[Array, Array]:
    """Mean and covariance after a transition."""
    Phi, c, Sigma = transition
    return matvec(Phi, m) + c, symmetrise(matmul(Phi, matmul(S, transpose(Phi)))) + Sigma


class Reweighted(eqx.Module):
    """Moments of the states, divergence from the process without the messages, and the messages at either end of every
    step, exp(hᵀx − ½xᵀJx) of all that comes later; `ok` is whether every state has a density. What is lost: where a
    message says b times as much of one direction as the step does, B⁻¹ keeps the variance of the others to ε b.

    `steps` are the process' own transitions: with x₊ = c + Lz and z | x ~ N(…, V), a root of their noise is L√V.
    """

    moments: Moments
    steps: Transitions
    divergence: Float[Array, ""]
    left: Message
    right: Message
    ok: Bool[Array, ""]
    lost: Float[Array, ""]  # share of a variance that rounding may have taken, at the worst


def reweight(initial: Transition, transition: Transition, sites: Message, valid: Bool[Array, " M"]) -> Reweighted:
    """The process with x₀ ~ N(c, Σ) of `initial` (its Φ is nothing) times the sites of its states.

    Steps that are not valid stand at the end; the states after them repeat the last one before.
    """
    first, steps = whitened(initial), whitened(transition)
    by_time = jax.tree.map(lambda a: jnp.moveaxis(a, -1, 0), (steps, sites))

    def backward(message: Message, node):
        step, site = node
        tilted = tilt(step, message)
        before = back(step, tilted)
        return site + before, (message, before, tilted)

    (step_t, site_t) = by_time
    last = jax.tree.map(lambda a: a[-1], site_t)
    earlier = jax.tree.map(lambda a: a[:-1], site_t)
    at_first, out = jax.lax.scan(backward, last, (step_t, earlier), reverse=True)
    right, left, tilted = jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), out)

    start = tilt(first, at_first)
    _, m0, S0 = reweighted(first, start)
    q = reweighted(steps, tilted)

    def forward(state, q_step):
        state = moved(Transition(*q_step), *state)
        return state, state

    _, (m, S) = jax.lax.scan(forward, (m0, S0), tuple(jnp.moveaxis(a, -1, 0) for a in q))
    m, S = (jnp.moveaxis(jnp.concatenate([a0[None], a]), 0, -1) for a0, a in ((m0, m), (S0, S)))
    here = jnp.minimum(jnp.arange(m.shape[-1]), valid.sum())
    m, S = m[:, here], S[..., here]
    C = jnp.where(valid, matmul(q.Phi, S[..., :-1]), 0.0)
    divergence = _divergence(first, start, jnp.zeros_like(m0), jnp.zeros_like(S0))
    divergence += jnp.where(valid, _divergence(steps, tilted, m[:, :-1], S[..., :-1]), 0.0).sum()
    pivots = jnp.concatenate([start.pivots[:, None], jnp.where(valid, tilted.pivots, 1.0)], -1)
    ok = jnp.all(pivots > 0.0) & jnp.all(jnp.isfinite(pivots))
    root = matmul(steps.L, blocks.cholesky(tilted.V))
    first_root = matmul(first.L, blocks.cholesky(start.V))
    own = Transitions(q.Phi, jnp.concatenate([first_root[..., None], root], -1))
    return Reweighted(Moments(m, S, C), own, divergence, left, right, ok, _lost(pivots))


def _lost(pivots: Float[Array, "d N"]) -> Float[Array, ""]:
    """Σ ε b over the steps; a single direction has no others."""
    if pivots.shape[0] == 1:
        return jnp.zeros(())
    return jnp.finfo(pivots.dtype).eps * pivots.max(0).sum()


def _divergence(step: Step, tilted: Tilted, m: Float[Array, "d *lanes"], S: Float[Array, "d d *lanes"]):
    """E KL(q(x₊|x) ‖ p(x₊|x)) = ½(log|B| − tr B⁻¹J_z + E‖B⁻¹(h_z − J_zFx)‖²) for x with this mean and covariance."""
    shift = matvec(tilted.V, tilted.h) - matvec(tilted.VJ, matvec(step.F, m))
    G = matmul(tilted.VJ, step.F)
    spread = blocks.trace(matmul(G, matmul(S, transpose(G))))
    return 0.5 * (jnp.log(tilted.pivots).sum(0) - blocks.trace(tilted.VJ) + (shift**2).sum(0) + spread)
