"""Transitions x_{m+1} = m_{m+1} + T_m (x_m − m_m) + root_{m+1} ξ of a chain, with x_0 = m_0 + root_0 ξ.

They are computed from the natural parameters by an elimination from the last node to the first,
    J̃_m = J_m − K_mᵀ J̃_{m+1}⁻¹ K_m,   T_m = −J̃_{m+1}⁻¹ K_m,   root rootᵀ = J̃⁻¹.
Computed from the moments, the covariance S₊ − T Cᵀ with T = C S⁻¹ would be a small difference of large numbers if nodes
are close together.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.types import Array
from girsanov.chain.blocks import cholesky, inverse, inverse_lower, matmul, symmetrise, transpose
from girsanov.chain.natural import NaturalChain


class Transitions(eqx.Module):
    """T of every step, and for every node a root of its noise covariance; time is the last axis."""

    T: Float[Array, "d d M"]
    root: Float[Array, "d d N"]


def transitions(chain: NaturalChain) -> Transitions:
    """Return the transitions of a chain from its natural parameters."""
    J, K = (jnp.moveaxis(jnp.asarray(a), -1, 0) for a in (chain.J, chain.K))

    def backward(Jt, node):
        K_m, J_m = node
        T = -matmul(inverse(Jt)[0], K_m)
        return symmetrise(J_m + matmul(transpose(K_m), T)), (T, Jt)

    first, (T, later) = jax.lax.scan(backward, J[-1], (K, J[:-1]), reverse=True)
    pivots = jnp.moveaxis(jnp.concatenate([first[None], later]), 0, -1)
    return Transitions(jnp.moveaxis(T, 0, -1), transpose(inverse_lower(cholesky(pivots))))
