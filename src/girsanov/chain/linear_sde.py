"""Transitions of linear SDEs, x₊ | x ~ N(Φx + c, Σ), on small blocks with trailing lanes.

Everything is made of short steps put together: a step after another is (Φ₂Φ₁, Φ₂c₁ + c₂, Φ₂Σ₁Φ₂ᵀ + Σ₂), a sum of
positive terms. No exponential of −A is needed, which in a stiff system is larger than all digits can hold.
"""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.types import Array
from girsanov.chain.blocks import eye_like, matmul, matvec, symmetrise, transpose

_SHORT = 1 / 16  # norm of A times the step that the series below sum to machine precision
_TERMS = 11
_MOST_DOUBLINGS = 64
_PIECES = 64  # of half a gap, at the most, where A changes much in it
_TURN = 1.0  # change of A over a piece, times its length, that a piece may have


Time = Literal["discrete", "continuous"]


class Linearisation(eqx.Module):
    """f_L(x) = A x + b: the drift of the base process p_L.

    In discrete time one for every step; in continuous time one for every node, and linear in time between them.
    """

    A: Float[Array, "d d M"]
    b: Float[Array, "d M"]

    def __getitem__(self, lanes: Any) -> "Linearisation":
        return Linearisation(self.A[..., lanes], self.b[..., lanes])


LEFT, RIGHT = slice(None, -1), slice(1, None)  # the two ends of every interval, among the nodes


class Transition(NamedTuple):
    """x₊ | x ~ N(Φx + c, Σ)."""

    Phi: Float[Array, "d d *lanes"]
    c: Float[Array, "d *lanes"]
    Sigma: Float[Array, "d d *lanes"]


def after(first: Transition, second: Transition) -> Transition:
    """One transition and then another."""
    return Transition(
        matmul(second.Phi, first.Phi),
        matvec(second.Phi, first.c) + second.c,
        symmetrise(matmul(second.Phi, matmul(first.Sigma, transpose(second.Phi)))) + second.Sigma,
    )


def linear_transition(
    A: tuple[Float[Array, "d d *lanes"], Float[Array, "d d *lanes"]],
    b: tuple[Float[Array, "d *lanes"], Float[Array, "d *lanes"]],
    Q: Float[Array, "d d"],
    gap: Float[Array, "*lanes"],
) -> Transition:
    """dx = (A x + b) dt + L dβ over a gap, for A and b linear in time between their two ends."""
    return after(*half_transitions(A, b, Q, gap))


def exact_transition(base: Linearisation, Q: Float[Array, "d d"], gaps: Float[Array, " M"]) -> Transition:
    """Φ, c, Σ of every interval for a base given at the nodes."""
    A, b = jnp.asarray(base.A), jnp.asarray(base.b)
    return linear_transition((A[..., LEFT], A[..., RIGHT]), (b[..., LEFT], b[..., RIGHT]), Q, gaps)


def half_transitions(
    A: tuple[Float[Array, "d d *lanes"], Float[Array, "d d *lanes"]],
    b: tuple[Float[Array, "d *lanes"], Float[Array, "d *lanes"]],
    Q: Float[Array, "d d"],
    gap: Float[Array, "*lanes"],
) -> tuple[Transition, Transition]:
    """The same over the first and the second half of the gap.

    A piece is cut in two, with A constant on either part: its mean over the piece less and plus a third of its
    change. That is the commutator-free form of Magnus' expansion, with an error of fifth order in the length of the
    piece, of none where A is constant, and with a positive Σ whatever A does. Many pieces are made where A changes
    much over the gap.
    """
    (A0, A1), (b0, b1) = A, b
    begins = tuple(jnp.stack([x0, 0.5 * (x0 + x1)], -1) for x0, x1 in ((A0, A1), (b0, b1)))
    change, length = tuple(0.5 * (x1 - x0)[..., None] for x0, x1 in ((A0, A1), (b0, b1))), 0.5 * gap[..., None]
    turn = length * _norm(change[0])
    count = jnp.clip(jnp.ceil(jnp.sqrt(jnp.where(jnp.isfinite(turn), turn, 0.0) / _TURN)), 1, _PIECES)

    def add(p, so_far):
        # a lane that needs fewer pieces than another has pieces of no length at its end
        at = [jnp.minimum(p + i, count) / count for i in (0, 1)]
        begin, end = (tuple(x + share * dx for x, dx in zip(begins, change, strict=True)) for share in at)
        return after(so_far, _piece(begin, end, Q, length * (at[1] - at[0])))

    shape = begins[0].shape
    nothing = Transition(eye_like(begins[0]), jnp.zeros((shape[0], *shape[2:])), jnp.zeros(shape))
    both = jax.lax.fori_loop(0, _largest(count).astype(int), add, nothing)
    return Transition(*(x[..., 0] for x in both)), Transition(*(x[..., 1] for x in both))


def _piece(begin: tuple, end: tuple, Q: Float[Array, "d d"], length: Float[Array, "*lanes"]) -> Transition:
    (A0, b0), (A1, b1) = begin, end
    mean, third = 0.5 * (A0 + A1), (A1 - A0) / 3.0
    halves = _constant(
        jnp.stack([mean - third, mean + third], -1),
        jnp.stack([b0, 0.5 * (b0 + b1)], -1),
        0.5 * (b1 - b0)[..., None],
        Q,
        0.5 * length[..., None],
    )
    return after(Transition(*(x[..., 0] for x in halves)), Transition(*(x[..., 1] for x in halves)))


def _constant(
    A: Float[Array, "d d *lanes"],
    b: Float[Array, "d *lanes"],
    change: Float[Array, "d *#lanes"],
    Q: Float[Array, "d d"],
    gap: Float[Array, "*#lanes"],
) -> Transition:
    """The transition over a gap with constant A, and b that begins as given and changes by `change` until the end.

    Power series over a short step,
        Φ − I = Σ Aᵏ/k!,   Σ = Σ Lᵏ(Q)/(k + 1)!  with  L(X) = AX + XAᵀ,   c = Σ Aᵏ(b/(k + 1)! + r/(k + 2)!)
    in units of the step, with r the change of b over it; then the step is doubled. Φ − I is carried, not Φ: what a
    slow state does in a short step would drown in the rounding of one.
    """
    d = A.shape[0]
    Qs = jnp.broadcast_to(Q.reshape(d, d, *(1,) * (A.ndim - 2)), A.shape)
    if d == 1:
        a = gap * A
        c = gap * (_phi1(a)[0] * b + _phi2(a)[0] * change)
        return Transition(jnp.exp(a), c, gap * Qs * _phi1(2.0 * a))
    norm = _largest(gap * _norm(A))
    doublings = jnp.clip(jnp.ceil(jnp.log2(jnp.maximum(norm, _SHORT) / _SHORT)), 0, _MOST_DOUBLINGS)
    steps = jnp.exp2(doublings)
    step = gap / steps
    a, b, r = step * A, step * b, step * jnp.broadcast_to(change, b.shape) / steps
    zero = jnp.zeros_like(a)

    def add_terms(k, sums):
        E, w, c, Sigma, power, b_k, r_k, S_k = sums
        E, w, c, Sigma = E + power, w + r_k, c + b_k + r_k / (k + 2.0), Sigma + S_k
        aS = matmul(a, S_k)
        n = k + 2.0
        return E, w, c, Sigma, matmul(a, power) / n, matvec(a, b_k) / n, matvec(a, r_k) / n, (aS + transpose(aS)) / n

    first = (zero, jnp.zeros_like(b), jnp.zeros_like(b), zero, a, b, r, step * Qs)
    E, w, c, Sigma, *_ = jax.lax.fori_loop(0, _TERMS, add_terms, first)

    def double(i, so_far):
        E, w, c, Sigma = so_far
        Phi = eye_like(E) + E
        c = c + matvec(Phi, c) + jnp.exp2(i.astype(c.dtype)) * w  # b is further on in the second half
        w = w + matvec(Phi, w)
        return 2.0 * E + matmul(E, E), w, c, Sigma + symmetrise(matmul(Phi, matmul(Sigma, transpose(Phi))))

    E, w, c, Sigma = jax.lax.fori_loop(0, doublings.astype(int), double, (E, w, c, Sigma))
    return Transition(eye_like(E) + E, c, Sigma)


def _norm(a: Float[Array, "d d *lanes"]) -> Float[Array, "*lanes"]:
    return jnp.abs(a).sum(1).max(0)


def _largest(norms: Float[Array, "*lanes"]) -> Float[Array, ""]:
    """Of all lanes that are finite; the others come out as they are."""
    return jnp.max(jnp.where(jnp.isfinite(norms), norms, 0.0), initial=0.0)


def _phi1(a: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """(eᵃ − 1)/a = ∫₀¹ exp(a s) ds."""
    return jnp.where(jnp.abs(a) < 1e-5, 1.0 + 0.5 * a + a * a / 6.0, jnp.expm1(a) / jnp.where(a == 0.0, 1.0, a))


def _phi2(a: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """(eᵃ − 1 − a)/a²."""
    small = jnp.where(jnp.abs(a) < 0.5, a, 0.0)
    series = jnp.ones_like(a)
    for k in range(13, 2, -1):
        series = 1.0 + small * series / k
    return jnp.where(jnp.abs(a) < 0.5, 0.5 * series, (_phi1(a) - 1.0) / jnp.where(a == 0.0, 1.0, a))
