"""Transitions x₊ | x ~ N(Φx + c, Σ) of linear SDEs, for many time gaps at once (in the layout of `blocks`).

A long transition is composed of short ones. Two transitions in sequence give (Φ₂Φ₁, Φ₂c₁ + c₂, Φ₂Σ₁Φ₂ᵀ + Σ₂), where the
covariance is a sum of positive terms. The exponential of −A, which overflows in a stiff system, is never needed.
"""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.types import Array
from girsanov.chain.blocks import eye_like, matmul, matvec, symmetrise, transpose

_SHORT = 1 / 16  # norm of A times the step for which the power series below reach machine precision
_TERMS = 11
_MOST_DOUBLINGS = 64
_PIECES = 64  # largest number of pieces into which half a gap is cut if A changes much in it
_TURN = 1.0  # scale of the number of pieces: √(change of A over half a gap × its length / _TURN)


Time = Literal["discrete", "continuous"]


class Linearisation(eqx.Module):
    """The linear drift f_L(x) = A x + b of the base process p_L.

    In discrete time there is one pair (A, b) for every step. In continuous time there is one pair for every node, and
    A and b are linear in time between the nodes. Where they may jump at nodes, as with inputs, the pair is that from
    the node on, and `before` has the pair up to it.
    """

    A: Float[Array, "d d M"]
    b: Float[Array, "d M"]
    before: "Linearisation | None" = None

    def __getitem__(self, lanes: Any) -> "Linearisation":
        return Linearisation(self.A[..., lanes], self.b[..., lanes])

    @property
    def at_left(self) -> "Linearisation":
        """The pairs at the left ends of all intervals, of a drift that is given at the nodes."""
        return self[LEFT]

    @property
    def at_right(self) -> "Linearisation":
        """The pairs at the right ends of all intervals, of a drift that is given at the nodes."""
        return (self if self.before is None else self.before)[RIGHT]


LEFT, RIGHT = slice(None, -1), slice(1, None)  # these select the left and the right node of every interval


class Transition(NamedTuple):
    """The transition x₊ | x ~ N(Φx + c, Σ)."""

    Phi: Float[Array, "d d *lanes"]
    c: Float[Array, "d *lanes"]
    Sigma: Float[Array, "d d *lanes"]


def after(first: Transition, second: Transition) -> Transition:
    """Return the transition that consists of `first` and then `second`."""
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
    """Return the transition of dx = (A x + b) dt + L dβ over a gap.

    A and b are given as pairs, at the beginning and the end of the gap, and are linear in time between them.
    """
    return after(*half_transitions(A, b, Q, gap))


def exact_transition(base: Linearisation, Q: Float[Array, "d d"], gaps: Float[Array, " M"]) -> Transition:
    """Return the transition over every interval for a linear drift that is given at the nodes."""
    left, right = (jax.tree.map(jnp.asarray, end) for end in (base.at_left, base.at_right))
    return linear_transition((left.A, right.A), (left.b, right.b), Q, gaps)


def half_transitions(
    A: tuple[Float[Array, "d d *lanes"], Float[Array, "d d *lanes"]],
    b: tuple[Float[Array, "d *lanes"], Float[Array, "d *lanes"]],
    Q: Float[Array, "d d"],
    gap: Float[Array, "*lanes"],
) -> tuple[Transition, Transition]:
    """Return the transitions of `linear_transition` over the first and over the second half of the gap.

    Each half is cut into pieces, the more the faster A changes. Each piece is cut in two, and A is constant on either
    part: the mean of A over the piece, minus and plus a third of its change. This is the commutator-free form of the
    Magnus expansion. Its error is of fifth order in the length of the piece and vanishes if A is constant, and Σ is
    positive for every A.
    """
    (A0, A1), (b0, b1) = A, b
    begins = tuple(jnp.stack([x0, 0.5 * (x0 + x1)], -1) for x0, x1 in ((A0, A1), (b0, b1)))
    change, length = tuple(0.5 * (x1 - x0)[..., None] for x0, x1 in ((A0, A1), (b0, b1))), 0.5 * gap[..., None]
    turn = length * _norm(change[0])
    count = jnp.clip(jnp.ceil(jnp.sqrt(jnp.where(jnp.isfinite(turn), turn, 0.0) / _TURN)), 1, _PIECES)

    def add(p, so_far):
        # A lane that needs fewer pieces than another ends with pieces of length zero.
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
    """Return the transition over a gap with constant A, while b changes linearly by `change` from the given value.

    The transition over a short step is a power series,
        Φ − I = Σ Aᵏ/k!,   Σ = Σ Lᵏ(Q)/(k + 1)!  with  L(X) = AX + XAᵀ,   c = Σ Aᵏ(b/(k + 1)! + r/(k + 2)!)
    in units of the step, where r is the change of b over it. Then the step is doubled until it fills the gap. The code
    carries Φ − I instead of Φ, because the rounding of numbers near 1 would hide the small change of a slow state.
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
        c = c + matvec(Phi, c) + jnp.exp2(i.astype(c.dtype)) * w  # the last term: b has changed in the second half
        w = w + matvec(Phi, w)
        return 2.0 * E + matmul(E, E), w, c, Sigma + symmetrise(matmul(Phi, matmul(Sigma, transpose(Phi))))

    E, w, c, Sigma = jax.lax.fori_loop(0, doublings.astype(int), double, (E, w, c, Sigma))
    return Transition(eye_like(E) + E, c, Sigma)


def _norm(a: Float[Array, "d d *lanes"]) -> Float[Array, "*lanes"]:
    return jnp.abs(a).sum(1).max(0)


def _largest(norms: Float[Array, "*lanes"]) -> Float[Array, ""]:
    """Return the largest of the norms that are finite; lanes that are not finite do not influence the others."""
    return jnp.max(jnp.where(jnp.isfinite(norms), norms, 0.0), initial=0.0)


def _phi1(a: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """Return (eᵃ − 1)/a = ∫₀¹ exp(a s) ds."""
    return jnp.where(jnp.abs(a) < 1e-5, 1.0 + 0.5 * a + a * a / 6.0, jnp.expm1(a) / jnp.where(a == 0.0, 1.0, a))


def _phi2(a: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """Return (eᵃ − 1 − a)/a²."""
    small = jnp.where(jnp.abs(a) < 0.5, a, 0.0)
    series = jnp.ones_like(a)
    for k in range(13, 2, -1):
        series = 1.0 + small * series / k
    return jnp.where(jnp.abs(a) < 0.5, 0.5 * series, (_phi1(a) - 1.0) / jnp.where(a == 0.0, 1.0, a))
