"""A particle filter that does not rely on q. It estimates the evidence and the share of the posterior that q misses.

Between two resamplings every particle moves by one of K proposals: the model, q's own transitions, or bridges, which
follow the model until some time before the next observation and are then guided to it. The weights are those of the
mixture of whole stretches of paths, p(stretch)/Σ_k α_k q_k(stretch), so they exceed the weights of any one proposal by
a factor of at most 1/α_k: the filter finds whatever one of the proposals finds. A mixture of single steps would, for
short steps, only average the drifts.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Float, Int

from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov._core.special import LOG_2PI
from girsanov._core.types import Array
from girsanov.chain.moments import Moments
from girsanov.chain.transitions import Transitions
from girsanov.model.path_model import PathModel

_RUNS = 8  # independent runs of the filter
_WORK = 2_400_000  # number of particle moves, over all runs
_LEAST, _MOST = 250, 1000  # smallest and largest number of particles of a run
_MODEL, _OWN, _LED = 0.25, 0.35, 0.4  # shares of the proposals: the model, q, and all the bridges together
_WINDOWS = (1.0, 0.3, 0.1)  # share of the gap before an observation during which a bridge guides the path to it
_TAIL = 4.0  # degrees of freedom of the look-ahead weights, which limit the effect of an outlier
_UNEVEN = 0.5  # particles are resampled when the effective share of them falls below this
_LAG = 5  # number of observations after which an excursion from q is counted
# A path is away from q where its squared distance from q's mean, in q's standard deviations, exceeds _AWAY + 2(d − 1).
# None of some thousand paths of q gets that far.
_AWAY = 30.0


class Proposals(eqx.Module):
    """The proposals x₊ ~ N(F_k μ(x) + B_k x + g_k, R_k R_kᵀ) of every step, where μ(x) is the model's mean of x₊."""

    labels: Int[Array, " n"]  # proposal of each of n particles, ordered so that any stretch has the right shares
    log_shares: Float[Array, " K"]
    mean0: Float[Array, "K d"]
    root0: Float[Array, "K d d"]
    inverse_root0: Float[Array, "K d d"]
    F: Float[Array, "M K d d"]
    B: Float[Array, "M K d d"]
    g: Float[Array, "M K d"]
    root: Float[Array, "M K d d"]
    inverse_root: Float[Array, "M K d d"]
    ahead: Float[Array, "N D d"]  # |ahead x − target|² is the squared distance of x from the next observation
    target: Float[Array, "N D"]
    mean: Float[Array, "N d"]  # means of q
    inverse_S: Float[Array, "N d d"]  # inverse square roots of q's covariances


class Filtered(NamedTuple):
    """The results of the filter, one entry for each run.

    Attributes:
        log_evidence: log of an unbiased estimate of the evidence.
        away: share of the posterior in excursions away from q.
    """

    log_evidence: Float[Array, "*R"]
    away: Float[Array, "*R"]


class _Next(NamedTuple):
    """The observation that follows each node, as y = H x + N(0, R), with H = 0 where there is none.

    `time` is the time of that observation, `gap` its distance from the observation before it, or from the first node.
    """

    H: np.ndarray
    y: np.ndarray
    R: np.ndarray
    time: np.ndarray
    gap: np.ndarray


@float64
def defensive_filter(path: PathModel, q: Moments, steps: Transitions, key: Any) -> Filtered:
    """Run the filter several times, independently, with some hundred particles each.

    Args:
        path: the model on the nodes of q.
        q: the moments of q.
        steps: the transitions of q.
        key: a JAX random key.
    """
    N = len(path.data.times)
    n = int(np.clip(_WORK // (_RUNS * N), _LEAST, _MOST))
    found = _run(path, proposals(path, q, steps, n), key, _RUNS)
    return Filtered(np.asarray(found.log_evidence), np.asarray(found.away))


def proposals(path: PathModel, q: Moments, steps: Transitions, n: int) -> Proposals:
    """Return the proposals of all steps for n particles."""
    m, S = (np.moveaxis(np.asarray(a), -1, 0) for a in (q.m, q.S))
    N, d = m.shape
    Q = path.model.noise.Q
    coming = _coming(path, m)
    spread = coming.H @ Q @ _t(coming.H)  # variance that Brownian motion adds to y in a unit of time
    wide = coming.R + (coming.time - path.data.times)[:, None, None] * spread
    scale = np.linalg.inv(np.linalg.cholesky(wide))
    proposed = _own(m, steps), *_bridges(path, coming, spread)
    eye, zero = np.broadcast_to(np.eye(d), (N - 1, d, d)), np.zeros((N - 1, d, d))
    model = eye, zero, np.zeros((N - 1, d)), path.step_root @ _t(path.step_root)
    F, B, g, cov = (np.stack(part, 1) for part in zip(model, *proposed, strict=True))
    root = np.linalg.cholesky(cov)
    mean0, root0 = _first(path, m[0], S[0], _coming(path, m, include=True), Q)
    shares = np.array([_MODEL, _OWN, *[_LED / len(_WINDOWS)] * len(_WINDOWS)])
    # Multiples of the golden ratio spread the proposals evenly over the particles; log_shares has the resulting shares.
    labels = np.searchsorted(np.cumsum(shares)[:-1], np.arange(n) * 0.6180339887498949 % 1.0)
    return Proposals(
        labels=labels, log_shares=np.log(np.bincount(labels, minlength=len(shares)) / n),
        mean0=mean0, root0=root0, inverse_root0=np.linalg.inv(root0),
        F=F, B=B, g=g, root=root, inverse_root=np.linalg.inv(root),
        ahead=scale @ coming.H, target=_mv(scale, coming.y),
        mean=m, inverse_S=np.linalg.inv(np.linalg.cholesky(S)),
    )  # fmt: skip


def _t(a: np.ndarray) -> np.ndarray:
    return np.swapaxes(a, -1, -2)


def _mv(a: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.einsum("...ij,...j->...i", a, v)


@compiled
def _linearised(model, rows, at):
    return model.observation.linearised(rows, at)


def _coming(path: PathModel, mean: np.ndarray, include: bool = False) -> _Next:
    """Return the first observation after each node, or with `include` the first at or after it.

    A non-linear emission is linearised at the means (N, d).
    """
    observed = np.asarray(path.rows.observed)
    N, D = observed.shape
    nodes = np.append(np.flatnonzero(observed.any(1)), N)
    index = np.searchsorted(nodes, np.arange(N), side="left" if include else "right")
    some = nodes[index] < N
    at = np.minimum(nodes[index], N - 1)
    before = np.where(index > 0, nodes[np.maximum(index - 1, 0)], 0)
    G, reading, precision = (np.asarray(a) for a in _linearised(path.model, path.rows, mean))
    seen = observed[at] & some[:, None]
    R = (1.0 / np.where(seen, precision[at], 1.0))[:, :, None] * np.eye(D)
    H = np.where(seen[:, :, None], G[at], 0.0)
    return _Next(
        H, np.where(seen, reading[at], 0.0), R, path.data.times[at], path.data.times[at] - path.data.times[before]
    )


def _updated(P: np.ndarray, H: np.ndarray, R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the gain and the covariance of N(·, P) after an observation H x + N(0, R).

    The covariance is computed as a sum of squares, so that it is never indefinite.
    """
    K = P @ _t(H) @ np.linalg.inv(H @ P @ _t(H) + R)
    rest = np.eye(P.shape[-1]) - K @ H
    return K, rest @ P @ _t(rest) + K @ R @ _t(K)


def _own(m: np.ndarray, q: Transitions) -> tuple[np.ndarray, ...]:
    """Return the parameters (F, B, g, covariance) of the proposal that follows q's own transitions."""
    T, root = (np.moveaxis(np.asarray(a), -1, 0) for a in (q.T, q.root))
    return np.zeros_like(T), T, m[1:] - _mv(T, m[:-1]), root[1:] @ _t(root[1:])


def _bridges(path: PathModel, coming: _Next, spread: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """Return the parameters of the bridges.

    A bridge is the step of the model; within a window before the next observation it is conditioned on it as if the
    state were a Brownian motion until then.
    """
    step = path.step_root @ _t(path.step_root)
    H, y = coming.H[:-1], coming.y[:-1]
    left = coming.time[:-1] - path.data.times[1:]
    K, cov = _updated(step, H, coming.R[:-1] + left[:, None, None] * spread[:-1])
    out = []
    for window in _WINDOWS:
        on = (left + path.data.gaps <= (1.0 + 1e-9) * window * coming.gap[:-1]) | (
            left <= 0.0
        )  # at least the last step
        gain = np.where(on[:, None, None], K, 0.0)
        F = np.eye(step.shape[-1]) - gain @ H
        out.append((F, np.zeros_like(step), _mv(gain, y), np.where(on[:, None, None], cov, step)))
    return out


def _first(path: PathModel, m: np.ndarray, S: np.ndarray, coming: _Next, Q: np.ndarray):
    """Return means and roots of the proposals of x₀: p(x₀), q(x₀), and p(x₀) conditioned on the first observation."""
    mean, P = (np.asarray(a) for a in path.initial())
    H = coming.H[0]
    K, cov = _updated(P, H, coming.R[0] + (coming.time[0] - path.data.times[0]) * (H @ Q @ H.T))
    led = mean + K @ (coming.y[0] - H @ mean)
    count = len(_WINDOWS)
    return np.stack([mean, m, *[led] * count]), np.linalg.cholesky(np.stack([P, S, *[cov] * count]))


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
    mean = jnp.asarray(prop.mean0)[:, None, None]
    xi = jax.random.normal(move_key, (runs, n, d))
    x = _picked(mean + jnp.einsum("kij,rnj->krni", prop.root0, xi), label)
    log_q = _log_normals(x - mean, prop.inverse_root0)
    log_w = path.log_initial(x) - _mixed(prop, log_q) + _log_likelihood(path, 0, x)
    no = jnp.zeros((runs, n), bool)
    zero = jnp.zeros(runs)
    return _State(x, label, log_q, log_w, zero, _is_away(prop, 0, x), no, jnp.zeros((_LAG, runs, n), bool), zero)


def _labels(prop: Proposals, u: Float[Array, "R 1"]) -> Int[Array, "R n"]:
    """Rotate the labels by a random number of places, so that each particle gets proposal k with probability α_k."""
    n = prop.labels.shape[0]
    return jnp.asarray(prop.labels)[(jnp.arange(n) + jnp.floor(u * n).astype(int)) % n]


def _picked(values: Float[Array, "K R n d"], label: Int[Array, "R n"]) -> Float[Array, "R n d"]:
    return jnp.take_along_axis(values, label[None, ..., None], 0)[0]


def _log_normals(e: Float[Array, "K R n d"], inverse_root: Float[Array, "K d d"]) -> Float[Array, "K R n"]:
    log_det = jnp.log(jnp.diagonal(inverse_root, axis1=1, axis2=2)).sum(-1) - 0.5 * e.shape[-1] * LOG_2PI
    return log_det[:, None, None] - 0.5 * (jnp.einsum("kij,krnj->krni", inverse_root, e) ** 2).sum(-1)


def _mixed(prop: Proposals, log_q: Float[Array, "K R n"]) -> Float[Array, "R n"]:
    return logsumexp(log_q + jnp.asarray(prop.log_shares)[:, None, None], 0)


def _is_away(prop: Proposals, m: Any, x: Float[Array, "R n d"]):
    e = (x - prop.mean[m]) @ prop.inverse_S[m].T
    return (e**2).sum(-1) > _AWAY + 2.0 * (x.shape[-1] - 1)


def _move(path: PathModel, prop: Proposals, m: Any, state: _State, key) -> _State:
    F, B, g, root, inverse_root = (a[m] for a in (prop.F, prop.B, prop.g, prop.root, prop.inverse_root))
    x = state.x
    mean = jnp.einsum("kij,rnj->krni", F, path.moved(m, x)) + jnp.einsum("kij,rnj->krni", B, x) + g[:, None, None]
    xi = jax.random.normal(key, x.shape)
    after = _picked(mean + jnp.einsum("kij,rnj->krni", root, xi), state.label)
    log_q = state.log_q + _log_normals(after - mean, inverse_root)
    log_w = state.log_w + path.log_step(m, x, after) - _mixed(prop, log_q) + _mixed(prop, state.log_q)
    # A path that leaves the domain of the drift stays where it was and gets the weight zero.
    log_w = jnp.where(jnp.isnan(log_w), -jnp.inf, log_w)
    after = jnp.where(jnp.isfinite(after), after, x)
    now = state.now | _is_away(prop, m + 1, after)
    return state._replace(x=after, log_q=log_q, log_w=log_w, now=now)


def _log_likelihood(path: PathModel, m: Any, x: Float[Array, "R n d"]) -> Float[Array, "R n"]:
    log_p = path.log_likelihood(m, x.reshape(-1, x.shape[-1])).reshape(x.shape[:-1])
    return jnp.where(jnp.isnan(log_p), -jnp.inf, log_p)


def _look_ahead(prop: Proposals, m: Any, state: _State) -> Float[Array, "R n"]:
    """Return log weights for resampling: the weights times a rough, heavy-tailed density of the next observation."""
    r = state.x @ prop.ahead[m].T - prop.target[m]
    return state.log_w - 0.5 * (_TAIL + r.shape[-1]) * jnp.log1p((r**2).sum(-1) / _TAIL)


def _observe(path: PathModel, prop: Proposals, m: Any, state: _State, key) -> _State:
    """Weight the particles by the observation, count excursions, and resample where the weights have become uneven."""
    runs, n, _ = state.x.shape
    log_w = state.log_w + _log_likelihood(path, m, state.x)
    log_a = _look_ahead(prop, m, state._replace(log_w=log_w))
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
