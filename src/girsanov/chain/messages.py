"""Moments of a Gaussian Markov process whose states are reweighted by Gaussian factors ("sites").

A backward pass computes messages, and a forward pass the moments. In units of the noise of a step the state is
x₊ = c + Lz with z | x ~ N(Fx, I), LLᵀ = Σ and LF = Φ. A message exp(hᵀx₊ − ½x₊ᵀJx₊) from later states changes this to
z | x ~ N(B⁻¹(Fx + h_z), B⁻¹) with
    h_z = Lᵀ(h − Jc),   J_z = LᵀJL,   B = I + J_z,
and the message before the step has h₋ = FᵀB⁻¹h_z and J₋ = FᵀB⁻¹J_zF. These are sums and products of positive matrices.
No precision or covariance is a difference of two larger ones, however short or stiff a step is.
"""

from typing import NamedTuple

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

_WEAK = 0.25  # a message is weak if all entries of B⁻¹J_z are below this


class Message(eqx.Module):
    """The Gaussian factor exp(hᵀx − ½xᵀJx) of a state x; a sum of messages is a product of factors."""

    h: Float[Array, "d *lanes"]
    J: Float[Array, "d d *lanes"]

    def __add__(self, other: "Message") -> "Message":
        return Message(self.h + other.h, self.J + other.J)


class Step(eqx.Module):
    """A transition in units of its noise: x₊ = c + Lz with z | x ~ N(Fx, I), and Φ = LF."""

    L: Float[Array, "d d *lanes"]
    F: Float[Array, "d d *lanes"]
    c: Float[Array, "d *lanes"]
    Phi: Float[Array, "d d *lanes"]


def whitened(transition: Transition) -> Step:
    """Write a transition in units of its noise, with LLᵀ = Σ and F = L⁻¹Φ."""
    L = blocks.cholesky(transition.Sigma)
    return Step(L, matmul(blocks.inverse_lower(L), transition.Phi), transition.c, transition.Phi)


class Tilted(eqx.Module):
    """A step reweighted by a message: z | x ~ N(V(Fx + h), V), with V = B⁻¹, h = h_z and VJ = B⁻¹J_z.

    `message` is the message, relative to c. It is `weak` if it knows less about the state than the step does. With
    singular noise, L and F have entries of very different sizes, and products of the two lose digits; where a message
    is weak, what it changes is subtracted from what the step has without it.
    """

    message: Message
    weak: Bool[Array, "*lanes"]
    h: Float[Array, "d *lanes"]
    V: Float[Array, "d d *lanes"]
    VJ: Float[Array, "d d *lanes"]
    pivots: Float[Array, "d *lanes"]  # of B; all are positive exactly if the reweighted step is a density


def tilt(step: Step, message: Message) -> Tilted:
    """Reweight a step by the message that its right state receives from later states."""
    J = _in_noise_units(step, message.J)
    V, pivots = inverse(blocks.eye_like(J) + J)
    VJ = symmetrise(matmul(V, J))
    here = Message(message.h - matvec(message.J, step.c), message.J)
    return Tilted(here, jnp.abs(VJ).max((0, 1)) < _WEAK, matvec(transpose(step.L), here.h), V, VJ, pivots)


def back(step: Step, tilted: Tilted) -> Message:
    """Return the message that the reweighted step sends to its left state."""
    given = tilted.message
    J = matmul(transpose(step.F), matmul(tilted.VJ, step.F))
    # L⁻ᵀ(VJ_z)L⁻¹ = J − JLVLᵀJ
    J_weak = given.J - matmul(_taken(step, tilted), given.J)
    J_weak = matmul(transpose(step.Phi), matmul(J_weak, step.Phi))
    h = matvec(_backwards(step, tilted), given.h)
    return Message(h, symmetrise(jnp.where(tilted.weak, J_weak, J)))


def _taken(step: Step, tilted: Tilted) -> Float[Array, "d d *lanes"]:
    """Return JLVLᵀ, the share of a message that its own step takes."""
    return matmul(tilted.message.J, matmul(step.L, matmul(tilted.V, transpose(step.L))))


def _backwards(step: Step, tilted: Tilted) -> Float[Array, "d d *lanes"]:
    """Return FᵀVLᵀ = Φᵀ(I − JLVLᵀ), by which a potential at the right state becomes one at the left state."""
    strong = matmul(transpose(step.F), matmul(tilted.V, transpose(step.L)))
    share = _taken(step, tilted)
    weak = matmul(transpose(step.Phi), blocks.eye_like(share) - share)
    return jnp.where(tilted.weak, weak, strong)


def reweighted(step: Step, tilted: Tilted) -> Transition:
    """Return the transition x₊ | x of the reweighted step."""
    LV = matmul(step.L, tilted.V)
    changed = step.Phi - matmul(step.L, matmul(tilted.VJ, step.F))
    Phi = jnp.where(tilted.weak, changed, matmul(LV, step.F))
    root = noise_root(step, tilted)
    return Transition(Phi, step.c + matvec(LV, tilted.h), matmul(root, transpose(root)))


def noise_root(step: Step, tilted: Tilted) -> Float[Array, "d d *lanes"]:
    """Return LG⁻ᵀ with GGᵀ = B, a root of the covariance LB⁻¹Lᵀ of the reweighted step.

    The square of a root has no negative eigenvalue. LB⁻¹Lᵀ itself may have one by rounding, where one direction is
    known some 1e15 times better than another.
    """
    B = blocks.eye_like(tilted.V) + _in_noise_units(step, tilted.message.J)
    return matmul(step.L, transpose(blocks.inverse_lower(blocks.cholesky(B))))


def _in_noise_units(step: Step, J: Float[Array, "d d *lanes"]) -> Float[Array, "d d *lanes"]:
    """Return J_z = LᵀJL."""
    return symmetrise(matmul(transpose(step.L), matmul(J, step.L)))


def moved(transition: Transition, m: Float[Array, "d *lanes"], S: Float[Array, "d d *lanes"]) -> tuple[Array, Array]:
    """Return mean and covariance after a transition from a state with mean m and covariance S."""
    Phi, c, Sigma = transition
    return matvec(Phi, m) + c, symmetrise(matmul(Phi, matmul(S, transpose(Phi)))) + Sigma


class Reweighted(eqx.Module):
    """The result of `reweight`.

    Attributes:
        moments: moments of the states.
        steps: transitions of the reweighted process. With x₊ = c + Lz and z | x ~ N(…, V), their noise has root L√V.
        divergence: Kullback–Leibler divergence from the process without the sites.
        left: for every step, the message that its left state receives from all later sites.
        right: for every step, the message that its right state receives from all later sites, including its own.
        ok: whether every state has a density.
        lost: the largest share of a variance that rounding may have destroyed. If a message is b times as precise in
            one direction as the step, B⁻¹ has the variances of the other directions with a relative error of ε b.
    """

    moments: Moments
    steps: Transitions
    divergence: Float[Array, ""]
    left: Message
    right: Message
    ok: Bool[Array, ""]
    lost: Float[Array, ""]


def reweight(initial: Transition, transition: Transition, sites: Message, valid: Bool[Array, " M"]) -> Reweighted:
    """Multiply a Gaussian Markov process by Gaussian sites on its states.

    The process begins with x₀ ~ N(c, Σ) of `initial`, whose Φ is not used, and moves by `transition`. Steps that are
    not valid are padding at the end; the states after them repeat the last valid state.
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
    S = S[..., here]
    C = jnp.where(valid, matmul(q.Phi, S[..., :-1]), 0.0)
    means = _corrected(first, start, steps, tilted, sites, m, valid)
    m = m[:, here] + means.correction[:, here]
    divergence = _divergence(first, start, means.u0, jnp.zeros_like(m0), jnp.zeros_like(S0))
    each = _divergence(steps, tilted, means.u, means.correction[:, :-1], S[..., :-1])
    divergence += jnp.where(valid, each, 0.0).sum()
    pivots = jnp.concatenate([start.pivots[:, None], jnp.where(valid, tilted.pivots, 1.0)], -1)
    ok = jnp.all(pivots > 0.0) & jnp.all(jnp.isfinite(pivots))
    roots = noise_root(first, start)[..., None], noise_root(steps, tilted)
    own = Transitions(q.Phi, jnp.concatenate(roots, -1))
    left, right = Message(means.left, left.J), Message(means.right, right.J)
    return Reweighted(Moments(m, S, C), own, divergence, left, right, ok, _lost(pivots))


class _Means(NamedTuple):
    """What `_corrected` finds; u = h − Jc is the potential of a step's message relative to its own c."""

    correction: Float[Array, "d N"]
    u0: Float[Array, " d"]
    u: Float[Array, "d M"]
    left: Float[Array, "d M"]
    right: Float[Array, "d M"]


def _corrected(first: Step, start: Tilted, steps: Step, tilted: Tilted, sites: Message, m, valid) -> _Means:
    """Compute the means again, relative to the path m that a first pass found.

    A precise observation far from zero has a potential h = Jy of many digits, of which Vh_z keeps too few: its error is
    ε|h_z| in every direction, those that are known precisely too. Relative to m the potentials h − Jm are small. The
    messages' precisions, and so V, do not depend on the path.
    """
    q, at_first = reweighted(steps, tilted), reweighted(first, start).Sigma
    rest = sites.h - matvec(sites.J, m)
    c = jnp.where(valid, matvec(steps.Phi, m[:, :-1]) + steps.c - m[:, 1:], 0.0)
    J_c = matvec(tilted.message.J, c)
    gain = _backwards(steps, tilted)

    def earlier(h, node):
        gain, J_c, rest = node
        u = h - J_c
        before = gain @ u
        return rest + before, (h, u, before)

    in_time = tuple(jnp.moveaxis(a, -1, 0) for a in (gain, J_c, rest[:, :-1]))
    h0, (right, u, left) = jax.lax.scan(earlier, rest[:, -1], in_time, reverse=True)
    c0 = first.c - m[:, 0]
    u0 = h0 - start.message.J @ c0

    def later(e, node):
        Phi, shift = node
        e = Phi @ e + shift
        return e, e

    shift = c + matvec(q.Sigma, u.T)
    e0 = c0 + at_first @ u0
    _, e = jax.lax.scan(later, e0, (jnp.moveaxis(q.Phi, -1, 0), shift.T))
    correction = jnp.concatenate([e0[:, None], e.T], -1)
    J_left = matmul(gain, matmul(tilted.message.J, steps.Phi))  # the precision of the message to the left state
    absolute = left.T + matvec(J_left, m[:, :-1]), right.T + matvec(tilted.message.J, m[:, 1:])
    return _Means(correction, u0, u.T, *absolute)


def _lost(pivots: Float[Array, "d N"]) -> Float[Array, ""]:
    """Return Σ ε b over the steps (see `Reweighted.lost`), or zero for a scalar state, which has one direction only."""
    if pivots.shape[0] == 1:
        return jnp.zeros(())
    return jnp.finfo(pivots.dtype).eps * pivots.max(0).sum()


def _divergence(
    step: Step,
    tilted: Tilted,
    u: Float[Array, "d *lanes"],
    m: Float[Array, "d *lanes"],
    S: Float[Array, "d d *lanes"],
):
    """Return E KL(q(x₊|x) ‖ p(x₊|x)) for a state x with mean m and covariance S, where h_z = Lᵀu.

    It is ½(log|B| − tr B⁻¹J_z + E‖B⁻¹(h_z − J_zFx)‖²).
    """
    h = matvec(transpose(step.L), u)
    shift = matvec(tilted.V, h) - matvec(tilted.VJ, matvec(step.F, m))
    G = matmul(tilted.VJ, step.F)
    spread = blocks.trace(matmul(G, matmul(S, transpose(G))))
    return 0.5 * (jnp.log(tilted.pivots).sum(0) - blocks.trace(tilted.VJ) + (shift**2).sum(0) + spread)
