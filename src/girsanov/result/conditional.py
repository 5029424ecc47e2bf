"""The conditional version of the particle filter that does not rely on q: sweeps that leave the posterior invariant.

A sweep takes a path and returns another one, as the conditional particle filter with ancestor sampling does (see
`baselines.particle_filter`), with two differences. Particles move by the mixture of proposals of `mixture`, whole
stretches between resamplings at a time, so that a mode which q misses is proposed as well. And they are resampled by
weights that look ahead to the next observation; the past of the old path is drawn by the weights of the posterior.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Float, Int

from girsanov._core.compile import compiled
from girsanov._core.types import Array
from girsanov.model.path_model import PathModel
from girsanov.result.mixture import Proposals, log_likelihood, look_ahead, move, start

_UNEVEN = 0.5  # particles are resampled when the effective share of them falls below this


class _State(NamedTuple):
    """The particles of every chain between two steps."""

    x: Float[Array, "R n d"]
    label: Int[Array, "R n"]
    log_q: Float[Array, "K R n"]  # log density of the stretch since the last resampling, under every proposal
    log_w: Float[Array, "R n"]


@compiled
def sweeps(path: PathModel, prop: Proposals, key, paths: Float[Array, "R N d"], n: int, count: int, conditional: Any):
    """Do some sweeps of every chain; return their paths, (count, R, N, d).

    If `conditional` is False, the paths are those of a particle filter that does not know the old ones.
    """

    def one(paths, key):
        paths = _sweep(path, prop, key, paths, n, conditional)
        return paths, paths

    return jax.lax.scan(one, paths, jax.random.split(key, count))[1]


def _sweep(path: PathModel, prop: Proposals, key, old: Float[Array, "R N d"], n: int, conditional: Any):
    M, (runs, _, d) = path.data.gaps.shape[0], old.shape
    first_key, moves, picks, last_key = jax.random.split(key, 4)
    move_key, label_key = jax.random.split(first_key)
    label = _labels(prop, label_key, (runs, n))
    xi = jax.random.normal(move_key, (runs, n, d))
    x, log_q, log_w = start(path, prop, xi, label, (conditional, old[:, 0]))
    nodes = jnp.moveaxis(old, 1, 0)
    observed = jnp.asarray(path.rows.observed).any(1)
    same = jnp.broadcast_to(jnp.arange(n), (runs, n))

    def step(state, this):
        m, move_key, pick_key, after = this
        state, index = jax.lax.cond(
            observed[m],
            lambda s: _resampled(path, prop, m, s, pick_key, after, conditional),
            lambda s: (s, same),
            state,
        )
        xi = jax.random.normal(move_key, state.x.shape)
        x, log_q, factor = move(path, prop, m, state.x, state.label, state.log_q, xi, (conditional, after))
        log_w = state.log_w + factor + log_likelihood(path, m + 1, x)
        return state._replace(x=x, log_q=log_q, log_w=log_w), (x, index)

    these = jnp.arange(M), jax.random.split(moves, M), jax.random.split(picks, M), nodes[1:]
    last, (rest, ancestors) = jax.lax.scan(step, _State(x, label, log_q, log_w), these)
    index = jax.random.categorical(last_key, last.log_w)

    def back(index, node):
        x, parent = node
        here = jnp.take_along_axis(x, index[:, None, None], 1)[:, 0]
        return jnp.take_along_axis(parent, index[:, None], 1)[:, 0], here

    first, later = jax.lax.scan(back, index, (rest, ancestors), reverse=True)
    begun = jnp.take_along_axis(x, first[:, None, None], 1)
    return jnp.concatenate([begun, jnp.moveaxis(later, 0, 1)], 1)


def _labels(prop: Proposals, key, shape: tuple[int, int]) -> Int[Array, "R n"]:
    """Draw the proposals of the particles, independently: the shares of those beside the old path must not depend on
    which proposal that followed.
    """
    return jax.random.categorical(key, jnp.asarray(prop.log_shares), shape=shape)


def _resampled(path: PathModel, prop: Proposals, m: Any, state: _State, key, after: Float[Array, "R d"], conditional):
    """Resample the runs whose weights have become uneven, and draw a new past of the old path there.

    Whether they are uneven follows from the weights of all particles alike, so the posterior stays invariant.
    """
    runs, n, _ = state.x.shape
    log_a = state.log_w + look_ahead(prop, m, state.x)
    p = jnp.exp(log_a - log_a.max(-1, keepdims=True))
    uneven = (p.sum(-1) ** 2 < _UNEVEN * n * (p**2).sum(-1))[:, None]
    pick_key, past_key, label_key = jax.random.split(key, 3)
    cumulated = jnp.cumsum(p, -1)
    places = jax.random.uniform(pick_key, (runs, n)) * cumulated[:, -1:]
    index = jax.vmap(lambda c, v: jnp.searchsorted(c, v, side="right"))(cumulated, places)
    index = jnp.minimum(index, n - 1)
    join = state.log_w + path.log_step(m, state.x, after[:, None])
    past = jax.random.categorical(past_key, jnp.where(jnp.isnan(join), -jnp.inf, join))
    index = index.at[:, 0].set(jnp.where(conditional, past.astype(index.dtype), index[:, 0]))
    index = jnp.where(uneven, index, jnp.arange(n))
    take = lambda a: jnp.take_along_axis(a, index, -1)  # noqa: E731
    log_w = jnp.where(uneven, take(state.log_w - log_a), state.log_w)
    resampled = _State(
        x=jnp.take_along_axis(state.x, index[..., None], 1),
        label=jnp.where(uneven, _labels(prop, label_key, (runs, n)), state.label),
        log_q=jnp.where(uneven, 0.0, state.log_q),
        log_w=log_w - logsumexp(log_w, -1, keepdims=True),
    )
    return resampled, index
