"""The score of the evidence by paths (Fisher's identity), and its curvature (Louis' identity).

With x drawn from p(x | y, θ), the gradient of log p(y | θ) is the mean of ∇ log p(x, y | θ), and minus its Hessian is
the mean of −∇² log p(x, y | θ) less the covariance of ∇ log p(x, y | θ). Any other variables that determine x may take
its place. A path itself tells the diffusion as well as it is fine, whatever the data say, and the mean of its gradient
would be lost in its noise. So a path is written as its states at the observations and, between them, its distance from
the straight lines there in units of the root of the diffusion; and the first state in units of its own law, where the
data tell less of it than that does.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.compile import compiled
from girsanov._core.types import Array
from girsanov.data.on_grid import SeriesOnGrid
from girsanov.learning.parameters import Spec, insert
from girsanov.model.path_model import on_nodes

_BATCH = 20  # paths whose derivatives are computed together


class Lines(NamedTuple):
    """The straight lines between observed nodes: for each node the ends of its line, and its place on it.

    Attributes:
        left, right: the nodes at the two ends, (N,).
        place: 0 at the left end and 1 at the right one, (N,).
        inner: whether the node is no end, (N,).
    """

    left: Any
    right: Any
    place: Any
    inner: Any


def lines(data: SeriesOnGrid) -> Lines:
    """Return the lines between the observed nodes, the first node and the last one."""
    times, N = np.asarray(data.times), len(data.times)
    seen = np.asarray(data.node)[np.asarray(data.observed).any(1)]
    ends = np.union1d(seen, [0, N - 1])
    at = np.clip(np.searchsorted(ends, np.arange(N), side="right") - 1, 0, max(len(ends) - 2, 0))
    left, right = ends[at], ends[np.minimum(at + 1, len(ends) - 1)]
    place = (times - times[left]) / np.where(right > left, times[right] - times[left], 1.0)
    return Lines(left, right, place, ~np.isin(np.arange(N), ends))


def _value(theta, here, spec: Spec, stated: Any, data: SeriesOnGrid, along: Lines, own_start, x: Float[Array, "N d"]):
    """Return the log density of a path x and the data at θ, in variables whose values are those of x at θ = `here`."""
    model, old = (insert(spec, t, stated).driven_by(data.inputs).latent for t in (theta, here))
    G = model.noise.root @ old.noise.inverse_root
    start, was = model.initial_state(), old.initial_state()
    C, C_old = (jnp.linalg.cholesky(jnp.asarray(s.cov)) for s in (start, was))
    C = jnp.where(own_start, C @ jnp.linalg.inv(C_old), jnp.eye(len(C)))
    first = jnp.where(own_start, start.mean + C @ (x[0] - was.mean), x[0])
    ends = x.at[0].set(first)
    w, inner = jnp.asarray(along.place)[:, None], jnp.asarray(along.inner)
    line, line_now = ((1.0 - w) * a[along.left] + w * a[along.right] for a in (x, ends))
    moved = jnp.where(inner[:, None], line_now + (x - line) @ G.T, ends)
    volume = inner.sum() * jnp.linalg.slogdet(G)[1] + jnp.linalg.slogdet(C)[1]
    return on_nodes(model, data).log_joint(moved) + volume


@compiled
def scores(theta, spec: Spec, stated: Any, data: SeriesOnGrid, along: Lines, own_start, paths: Float[Array, "n N d"]):
    """Return the gradient in θ for each path, (n, P), and the mean of the Hessians, (P, P)."""
    here = jax.lax.stop_gradient(theta)

    def one(x):
        value = lambda t: _value(t, here, spec, stated, data, along, own_start, x)  # noqa: E731
        return jax.grad(value)(theta), jax.hessian(value)(theta)

    grads, hessians = jax.lax.map(one, paths, batch_size=_BATCH)
    return grads, hessians.mean(0)
