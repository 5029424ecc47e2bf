"""The exact log evidence of a scalar model on fixed points, as a function that can be differentiated.

It is the forward recursion of `line`. Backwards, every kernel is computed anew instead of being kept, so that the
memory is that of the points.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.special import LOG_2PI
from girsanov._core.types import Array
from girsanov.baselines.line import kernel_of
from girsanov.data.on_grid import SeriesOnGrid
from girsanov.model.model import Model


def log_evidence(
    stated: Model, data: SeriesOnGrid, points: Float[Array, "N n"], tilt: Float[Array, "N n"]
) -> Float[Array, ""]:
    """Return log ∫ p(x, y) exp(Σ tilt) dx, by sums over the points of every node.

    Args:
        stated: the model as it was stated; its arrays may be traced.
        data: the observations on the nodes, without padding.
        points: equally spaced points of every node, in the coordinate in which the noise is constant.
        tilt: zeros. The derivative in them is the share of the posterior at every point.
    """
    model, points = stated.driven_by(data.inputs).latent, jnp.asarray(points)
    spacing = points[:, 1] - points[:, 0]
    of_row = jax.vmap(lambda row, v: model.observation.log_prob(row, v[None]), in_axes=(None, 0))
    log_factor = tilt.at[data.node].add(jax.vmap(of_row)(data.rows, points[data.node]))
    top = jax.lax.stop_gradient(log_factor.max(1))
    factor = jnp.exp(log_factor - top[:, None])
    initial = model.initial_state()
    m0, P0 = initial.mean[0], initial.cov[0, 0]
    first = jnp.exp(-0.5 * ((points[0] - m0) ** 2 / P0 + jnp.log(P0) + LOG_2PI)) * factor[0]
    norm = first.sum() * spacing[0]

    @jax.checkpoint
    def ahead(a, step):
        x, after, t, gap, h, h_after, factor_after = step
        a = ((h * a) @ kernel_of(model, x, after, t, gap)) * factor_after
        c = a.sum() * h_after
        return a / c, jnp.log(c)

    times, gaps = jnp.asarray(data.times), jnp.asarray(data.gaps)
    steps = (points[:-1], points[1:], times[:-1], gaps, spacing[:-1], spacing[1:], factor[1:])
    _, log_c = jax.lax.scan(ahead, first / norm, steps)
    return jnp.log(norm) + log_c.sum() + top.sum()
