"""Exponentials of small blocks with trailing lanes, and what linear SDEs need of them."""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._types import Array
from girsanov.chain.blocks import eye_like, matmul, matvec, symmetrise, transpose

_SQUARINGS = 7  # exp(M) = exp(M/2⁷)^(2⁷): M of norm up to 60 to machine precision with the series below
_TERMS = 14


def expm(a: Float[Array, "d d *lanes"]) -> Float[Array, "d d *lanes"]:
    """Scaling and squaring of the Taylor series."""
    if a.shape[0] == 1:
        return jnp.exp(a)
    a = a / 2.0**_SQUARINGS
    eye = eye_like(a)
    # Horner: I + a(I + a/2(I + a/3(…))); loops of the device, whose body is compiled once
    total = jax.lax.fori_loop(0, _TERMS, lambda i, e: eye + matmul(a, e) / (_TERMS - i), eye)
    return jax.lax.fori_loop(0, _SQUARINGS, lambda _, e: matmul(e, e), total)


def _average_exponential(a: Float[Array, "1 1 *lanes"]) -> Float[Array, "1 1 *lanes"]:
    """∫₀¹ exp(a s) ds."""
    return jnp.where(jnp.abs(a) < 1e-5, 1.0 + 0.5 * a + a * a / 6.0, jnp.expm1(a) / jnp.where(a == 0.0, 1.0, a))


def linear_transition(
    A: tuple[Float[Array, "d d *lanes"], Float[Array, "d d *lanes"]],
    b: tuple[Float[Array, "d *lanes"], Float[Array, "d *lanes"]],
    Q: Float[Array, "d d"],
    gap: Float[Array, "*lanes"],
) -> tuple[Float[Array, "d d *lanes"], Float[Array, "d *lanes"], Float[Array, "d d *lanes"]]:
    """dx = (A x + b) dt + L dβ over a gap, x₊ | x ~ N(Φx + c, Σ), for A and b linear in time between their two ends.

    For x' = M(t)x with M linear in time, Magnus' Ω = ½Δ(M₀ + M₁) + Δ²/12 [M₁, M₀] leaves an error of order Δ⁵, and none
    where M is constant; here for Van Loan's [[A, Q, b], [0, −Aᵀ, 0], [0, 0, 0]], whose exponential has Φ, ΣΦ⁻ᵀ and c.
    """
    (A0, A1), (b0, b1) = A, b
    d = A0.shape[0]
    Qs = jnp.broadcast_to(Q.reshape(d, d, *(1,) * (A0.ndim - 2)), A0.shape)
    Omega = 0.5 * gap * (A0 + A1) + gap**2 / 12.0 * (matmul(A1, A0) - matmul(A0, A1))
    offset = 0.5 * gap * (b0 + b1) + gap**2 / 12.0 * (matvec(A1, b0) - matvec(A0, b1))
    turn = matmul(A1 - A0, Qs)
    spread = gap * Qs + gap**2 / 12.0 * (turn + transpose(turn))
    if d == 1:
        return jnp.exp(Omega), _average_exponential(Omega)[0] * offset, spread * _average_exponential(2.0 * Omega)
    both = jnp.zeros((2 * d + 1, 2 * d + 1, *A0.shape[2:]))
    both = (
        both.at[:d, :d].set(Omega).at[:d, d:-1].set(spread).at[:d, -1].set(offset).at[d:-1, d:-1].set(-transpose(Omega))
    )
    E = expm(both)
    Phi = E[:d, :d]
    return Phi, E[:d, -1], symmetrise(matmul(E[:d, d:-1], transpose(Phi)))
