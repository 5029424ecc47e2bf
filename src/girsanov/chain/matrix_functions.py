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
    total = eye
    for k in range(_TERMS, 0, -1):  # Horner: I + a(I + a/2(I + a/3(…)))
        total = eye + matmul(a, total) / k
    return jax.lax.fori_loop(0, _SQUARINGS, lambda _, e: matmul(e, e), total)


def average_exponential(a: Float[Array, "d d *lanes"]) -> Float[Array, "d d *lanes"]:
    """∫₀¹ exp(a s) ds, from one exponential of twice the size."""
    if a.shape[0] == 1:
        return jnp.where(jnp.abs(a) < 1e-5, 1.0 + 0.5 * a + a * a / 6.0, jnp.expm1(a) / jnp.where(a == 0.0, 1.0, a))
    d = a.shape[0]
    top = jnp.concatenate([a, eye_like(a)], 1)
    return expm(jnp.concatenate([top, jnp.zeros_like(top)], 0))[:d, d:]


def linear_transition(
    A: Float[Array, "d d *lanes"], b: Float[Array, "d *lanes"], Q: Float[Array, "d d"], gap: Float[Array, "*lanes"]
) -> tuple[Float[Array, "d d *lanes"], Float[Array, "d *lanes"], Float[Array, "d d *lanes"]]:
    """dx = (A x + b) dt + L dβ over a gap: x₊ | x ~ N(Φx + c, Σ), exactly (Van Loan's block exponential)."""
    d = A.shape[0]
    Qs = Q.reshape(d, d, *(1,) * (A.ndim - 2))
    if d == 1:
        Phi = jnp.exp(A * gap)
        Sigma = Qs * gap * average_exponential(2.0 * A * gap)
    else:
        spread = jnp.broadcast_to(Qs, A.shape)
        block = jnp.concatenate(
            [jnp.concatenate([A, spread], 1), jnp.concatenate([jnp.zeros_like(A), -transpose(A)], 1)], 0
        )
        E = expm(block * gap)
        Phi = E[:d, :d]
        Sigma = symmetrise(matmul(E[:d, d:], transpose(Phi)))
    return Phi, matvec(average_exponential(A * gap), b) * gap, Sigma
