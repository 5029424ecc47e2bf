"""A particle filter that does not rely on q. It estimates the evidence and the share of the posterior that q misses.

Its particles move by the mixture of proposals of `mixture`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Float, Int

from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov._core.types import Array
from girsanov.chain.moments import Moments
from girsanov.chain.transitions import Transitions
from girsanov.model.path_model import PathModel
from girsanov.result.mixture import Proposals, log_likelihood, look_ahead, move, proposals, start

_RUNS = 8  # independent runs of the filter
_WORK = 2_400_000  # number of particle moves, over all runs
_LEAST, _MOST = 250, 1000  # smallest and largest number of particles of a run
_UNEVEN = 0.5  # particles are resampled when the effective share of them falls below this
_LAG = 5  # number of observations after which an excursion from q is counted
# A path is away from q where its squared distance from q's mean, in q's standard deviations, exceeds _AWAY + 2(d − 1).
# None of some thousand paths of q gets that far.
_AWAY = 30.0


class Filtered(NamedTuple):
    """The results of the filter, one entry for each run.

    Attributes:
        log_evidence: log of an unbiased estimate of the evidence.
        away: share of the posterior in excursions away from q.
    """

    log_evidence: Float[Array, "*R"]
    away: Float[Array, "*R"]


@float64
def defensive_filter(
    path: PathModel, q: Moments, steps: Transitions, key: Any, n: int | None = None, runs: int = _RUNS
) -> Filtered:
    """Run the filter several times, independently, with some hundred particles each.

    Args:
        path: the model on the nodes of q.
        q: the moments of q.
        steps: the transitions of q.
        key: a JAX random key.
        n: number of particles of a run; by default as many as the length of the path allows, from 250 to 1000.
        runs: number of runs; default 8.
    """
    if n is None:
        n = int(np.clip(_WORK // (_RUNS * len(path.data.times)), _LEAST, _MOST))
    found = _run(path, proposals(path, q, steps, n), key, runs)
    return Filtered(np.asarray(found.log_evidence), np.asarray(found.away))


class _State(NamedTuple):
    """The state of the filter between two steps: n particles in each of R runs."""

    x: Float[Array, "R n d"]
    label: Int[Array, "R n"]
    log_q: Float[Array, "K R n"]  # log density of the stretch since the last resampling, under every proposal
    log_w: Float[Array, "R n"]
    total: Float[Array, " R"]  # log evidence up to the last resampling
    now: Any  # whether the particle was away from q since the last observation, (R, n)
    before: Any  # whether it was away from q between the two observations before that, (R, n)
    begun: Any  # whether an excursion began i observations ago, (_LAG, R, n) with i along the first axis
    share: Float[Array, " R"]  # share of the posterior in excursions that have been counted


@compiled
def _run(path: PathModel, prop: Proposals, key, runs: int) -> Filtered:
    M, n = path.data.gaps.shape[0], prop.labels.shape[0]
    key, first_key = jax.random.split(key)

    def step(state, this):
        m, key = this
        move_key, pick_key = jax.random.split(key)
        state = _move(path, prop, m, state, move_key)
        seen = jnp.asarray(path.rows.observed)[m + 1].any()
        return jax.lax.cond(seen, lambda s: _observe(path, prop, m + 1, s, pick_key), lambda s: s, state), None

    state, _ = jax.lax.scan(step, _start(path, prop, first_key, runs), (jnp.arange(M), jax.random.split(key, M)))
    late = state.begun.any(0) | (state.now & ~state.before)  # excursions that are too recent to have been counted
    share = state.share + (jax.nn.softmax(state.log_w, -1) * late).sum(-1)
    return Filtered(state.total + logsumexp(state.log_w, -1) - jnp.log(n), share)


def _start(path: PathModel, prop: Proposals, key, runs: int) -> _State:
    n, d = prop.labels.shape[0], path.model.dim
    move_key, label_key = jax.random.split(key)
    label = _labels(prop, jax.random.uniform(label_key, (runs, 1)))
    x, log_q, log_w = start(path, prop, jax.random.normal(move_key, (runs, n, d)), label)
    no = jnp.zeros((runs, n), bool)
    zero = jnp.zeros(runs)
    return _State(x, label, log_q, log_w, zero, _is_away(prop, 0, x), no, jnp.zeros((_LAG, runs, n), bool), zero)


def _labels(prop: Proposals, u: Float[Array, "R 1"]) -> Int[Array, "R n"]:
    """Rotate the labels by a random number of places, so that each particle gets proposal k with probability α_k."""
    n = prop.labels.shape[0]
    return jnp.asarray(prop.labels)[(jnp.arange(n) + jnp.floor(u * n).astype(int)) % n]


def _is_away(prop: Proposals, m: Any, x: Float[Array, "R n d"]):
    e = (x - prop.mean[m]) @ prop.inverse_S[m].T
    return (e**2).sum(-1) > _AWAY + 2.0 * (x.shape[-1] - 1)


def _move(path: PathModel, prop: Proposals, m: Any, state: _State, key) -> _State:
    xi = jax.random.normal(key, state.x.shape)
    x, log_q, factor = move(path, prop, m, state.x, state.label, state.log_q, xi)
    now = state.now | _is_away(prop, m + 1, x)
    return state._replace(x=x, log_q=log_q, log_w=state.log_w + factor, now=now)


def _observe(path: PathModel, prop: Proposals, m: Any, state: _State, key) -> _State:
    """Weight the particles by the observation, count excursions, and resample where the weights have become uneven."""
    runs, n, _ = state.x.shape
    log_w = state.log_w + log_likelihood(path, m, state.x)
    log_a = log_w + look_ahead(prop, m, state.x)
    top = log_a.max(-1, keepdims=True)
    p = jnp.exp(log_a - top)
    total = p.sum(-1)
    share = state.share + (p * state.begun[-1]).sum(-1) / total
    begun = jnp.concatenate([(state.now & ~state.before)[None], state.begun[:-1]])
    uneven = (total**2 < _UNEVEN * n * (p**2).sum(-1))[:, None]
    u = jax.random.uniform(key, (runs, 2))
    cumulated = jnp.cumsum(p, -1)
    places = (jnp.arange(n) + u[:, :1]) / n * cumulated[:, -1:]  # systematic resampling
    index = jax.vmap(lambda c, v: jnp.searchsorted(c, v, side="right"))(cumulated, places)
    index = jnp.where(uneven, jnp.minimum(index, n - 1), jnp.arange(n))
    take = lambda a: jnp.take_along_axis(a, index, -1)  # noqa: E731
    return _State(
        x=jnp.take_along_axis(state.x, index[..., None], 1),
        label=jnp.where(uneven, _labels(prop, u[:, 1:]), state.label),
        log_q=jnp.where(uneven, 0.0, state.log_q),
        log_w=jnp.where(uneven, take(log_w - log_a), log_w),
        total=jnp.where(uneven[:, 0], state.total + top[:, 0] + jnp.log(total / n), state.total),
        now=jnp.zeros_like(state.now),
        before=take(state.now),
        begun=jnp.take_along_axis(begun, index[None], -1),
        share=share,
    )
