"""Draw paths from a Gaussian Markov chain."""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.types import Array
from girsanov.chain.transitions import Transitions


def sample(m: Float[Array, "d N"], q: Transitions, key: Array, n: int) -> Float[Array, "n N d"]:
    """Draw n paths of the chain with means m and transitions q."""
    d, N = m.shape
    T, root = (jnp.moveaxis(jnp.asarray(a), -1, 0) for a in (q.T, q.root))
    xi = jax.random.normal(key, (N, d, n))
    start = root[0] @ xi[0]

    def step(deviation, node):
        T_m, root_m, xi_m = node
        deviation = T_m @ deviation + root_m @ xi_m
        return deviation, deviation

    _, rest = jax.lax.scan(step, start, (T, root[1:], xi[1:]))
    deviations = jnp.concatenate([start[None], rest])
    return jnp.moveaxis(deviations + m.T[:, :, None], -1, 0)
