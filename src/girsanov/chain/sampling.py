"""Joint draws from a Gaussian Markov chain."""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._types import Array
from girsanov.chain import blocks
from girsanov.chain.blocks import matmul, transpose
from girsanov.chain.moments import Moments


def sample(q: Moments, key: Array, n: int) -> Float[Array, "n N d"]:
    """Paths by q's own transitions, x_{m+1} = m_{m+1} + T_m (x_m − m_m) + ε, T = C S⁻¹, Cov ε = S_{m+1} − T Cᵀ."""
    d, N = q.m.shape
    S_inv, _ = blocks.inverse(q.S[..., :-1])
    T = matmul(q.C, S_inv)
    noise = blocks.cholesky(blocks.symmetrise(q.S[..., 1:] - matmul(T, transpose(q.C))))
    xi = jax.random.normal(key, (N, d, n))
    start = blocks.cholesky(q.S[..., 0]) @ xi[0]

    def step(deviation, node):
        T_m, noise_m, xi_m = node
        deviation = T_m @ deviation + noise_m @ xi_m
        return deviation, deviation

    _, rest = jax.lax.scan(step, start, (jnp.moveaxis(T, -1, 0), jnp.moveaxis(noise, -1, 0), xi[1:]))
    deviations = jnp.concatenate([start[None], rest])
    return jnp.moveaxis(deviations + q.m.T[:, :, None], -1, 0)
