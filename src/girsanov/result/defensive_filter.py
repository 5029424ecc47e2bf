"""A particle filter that does not rely on q: the model's evidence, and the share of the posterior that q never visits.

Between two resamplings every particle moves by one of K proposals: the model, q's own transitions, and bridges that
follow the model until some time before the next observation and are then led to it. Weights are those of the mixture
of whole stretches of paths, p(stretch)/Σ_k α_k q_k(stretch), so that they exceed those of no proposal by more than
1/α_k: what one of them finds is found. Mixing single steps instead would, for short steps, only average the drifts.
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
from girsanov._core.types import Array
from girsanov.chain.moments import Moments
from girsanov.model.path_model import LOG_2PI, PathModel

_RUNS = 8
_WORK = 2_400_000  # moves of particles, over all runs
_LEAST, _MOST = 250, 1000  # particles a run
_MODEL, _OWN, _LED = 0.25, 0.35, 0.4  # shares of the proposals: the model, q, and all the bridges
_WINDOWS = (1.0, 0.3, 0.1)  # the part of the gap before an observation in which a bridge leads to it
_TAIL = 4.0  # degrees of freedom of the look-ahead: an outlier that comes next must not decide
_UNEVEN = 0.5  # effective share of the particles below which they are resampled
_LAG = 5  # observations after which an excursion from q is counted
_AWAY = 30.0  # squared distance from q's mean, less 2(d − 1), that none of some thousand paths of q reaches


class Proposals(eqx.Module):
    """x₊ ~ N(F_k μ(x) + B_k x + g_k, R_k R_kᵀ) with μ(x) the model's mean, for every step and proposal k."""

    labels: Int[Array, " n"]  # proposals of n particles; every stretch of them has the shares asked for
    log_shares: Float[Array, " K"]
    mean0: Float[Array, "K d"]
    root0: Float[Array, "K d d"]
    inverse_root0: Float[Array, "K d d"]
    F: Float[Array, "M K d d"]
    B: Float[Array, "M K d d"]
    g: Float[Array, "M K d"]
    root: Float[Array, "M K d d"]
    inverse_root: Float[Array, "M K d d"]
    ahead: Float[Array, "N D d"]  # |ahead x − target|² is the squared distance of the next observation
    target: Float[Array, "N D"]
    mean: Float[Array, "N d"]  # of q
    inverse_S: Float[Array, "N d d"]  # inverse roots of q's covariances


class Filtered(NamedTuple):
    """Of every run: log of an unbiased estimate of the evidence, and the share of the posterior away from q."""

    log_evidence: Float[Array, "*R"]
    away: Float[Array, "*R"]


class _Next(NamedTuple):
    """The observation that follows each node, as y = H x + N(0, R) with H = 0 where there is none."""

    H: np.ndarray
    y: np.ndarray
    R: np.ndarray
    time: np.ndarray
    gap: np.ndarray  # from the observation before it, or the first node


@float64
def defensive_filter(path: PathModel, q: Moments, key: Any) -> Filtered:
    """Independent runs with some hundred particles each."""
    N = len(path.times)
    n = int(np.clip(_WORK // (_RUNS * N), _LEAST, _MOST))
    found = _run(path, proposals(path, q, n), key, _RUNS)
    return Filtered(np.asarray(found.log_evidence), np.asarray(found.away))


def proposals(path: PathModel, q: Moments, n: int) -> Proposals:
    m, S, C = (np.moveaxis(np.asarray(a), -1, 0) for a in (q.m, q.S, q.C))
    N, d = m.shape
    Q = np.asarray(path.model.diffusion)
    coming = _coming(path)
    spread = coming.H @ Q @ _t(coming.H)  # of y, a unit of time, by Brownian motion
    wide = coming.R + (coming.time - path.times)[:, None, None] * spread
    scale = np.linalg.inv(np.linalg.cholesky(wide))
    steps = _own(m, S, C), *_bridges(path, coming, spread)
    eye, zero = np.broadcast_to(np.eye(d), (N - 1, d, d)), np.zeros((N - 1, d, d))
    model = eye, zero, np.zeros((N - 1, d)), path.step_root @ _t(path.step_root)
    F, B, g, cov = (np.stack(part, 1) for part in zip(model, *steps, strict=True))
    root = np.linalg.cholesky(cov)
    mean0, root0 = _first(path, m[0], S[0], _coming(path, include=True), Q)
    shares = np.array([_MODEL, _OWN, *[_LED / len(_WINDOWS)] * len(_WINDOWS)])
    # multiples of the golden ratio fill every stretch evenly; the shares are those that result
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
def _readings(model, y):
    return jax.vmap(model.likelihood.start)(y)


def _coming(path: PathModel, include: bool = False) -> _Next:
    """The first observation after each node, or at or after it."""
    N, D = path.y.shape
    observed = np.asarray(path.observed)
    nodes = np.append(np.flatnonzero(observed.any(1)), N)
    index = np.searchsorted(nodes, np.arange(N), side="left" if include else "right")
    some = nodes[index] < N
    at = np.minimum(nodes[index], N - 1)
    before = np.where(index > 0, nodes[np.maximum(index - 1, 0)], 0)
    reading, precision = (np.asarray(a) for a in _readings(path.model, path.y))
    seen = observed[at] & some[:, None]
    R = np.where(seen, 1.0 / precision[at], 1.0)[:, :, None] * np.eye(D)
    H = np.where(seen[:, :, None], np.asarray(path.model.emission), 0.0)
    return _Next(H, np.where(seen, reading[at], 0.0), R, path.times[at], path.times[at] - path.times[before])


def _updated(P: np.ndarray, H: np.ndarray, R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gain and covariance of N(·, P) once H x + N(0, R) is seen; a sum of squares, hence never indefinite."""
    K = P @ _t(H) @ np.linalg.inv(H @ P @ _t(H) + R)
    rest = np.eye(P.shape[-1]) - K @ H
    return K, rest @ P @ _t(rest) + K @ R @ _t(K)


def _own(m: np.ndarray, S: np.ndarray, C: np.ndarray) -> tuple[np.ndarray, ...]:
    """q's transitions."""
    T = C @ np.linalg.inv(S[:-1])
    cov = S[1:] - T @ _t(C)
    return np.zeros_like(T), T, m[1:] - _mv(T, m[:-1]), 0.5 * (cov + _t(cov))


def _bridges(path: PathModel, coming: _Next, spread: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """The model's step, led to the coming observation within a window before it as if by Brownian motion."""
    step = path.step_root @ _t(path.step_root)
    H, y = coming.H[:-1], coming.y[:-1]
    left = coming.time[:-1] - path.times[1:]
    K, cov = _updated(step, H, coming.R[:-1] + left[:, None, None] * spread[:-1])
    out = []
    for window in _WINDOWS:
        on = (left + path.gaps <= (1.0 + 1e-9) * window * coming.gap[:-1]) | (left <= 0.0)  # at least the last step
        gain = np.where(on[:, None, None], K, 0.0)
        F = np.eye(step.shape[-1]) - gain @ H
        out.append((F, np.zeros_like(step), _mv(gain, y), np.where(on[:, None, None], cov, step)))
    return out


def _first(path: PathModel, m: np.ndarray, S: np.ndarray, coming: _Next, Q: np.ndarray):
    """Means and roots of the first state's proposals: p(x₀), q(x₀), and p(x₀) led to the first observation."""
    mean, P = (np.asarray(a) for a in path.initial())
    H = coming.H[0]
    K, cov = _updated(P, H, coming.R[0] + (coming.time[0] - path.times[0]) * (H @ Q @ H.T))
    led = mean + K @ (coming.y[0] - H @ mean)
    count = len(_WINDOWS)
    return np.stack([mean, m, *[led] * count]), np.linalg.cholesky(np.stack([P, S, *[cov] * count]))


class _State(NamedTuple):
    """Particles (R, n, …) on their way."""

    x: Float[Array, "R n d"]
    label: Int[Array, "R n"]
    log_q: Float[Array, "K R n"]  # of the stretch since the last resampling, by every proposal
    log_w: Float[Array, "R n"]
    total: Float[Array, " R"]  # log evidence up to the last resampling
    now: Any  # whether away from q since the last observation, (R, n)
    before: Any  # whether so between the two observations before
    begun: Any  # whether an excursion began so many observations ago, (_LAG, R, n)
    share: Float[Array, " R"]


@compiled
def _run(path: PathModel, prop: Proposals, key, runs: int) -> Filtered:
    M, n = path.gaps.shape[0], prop.labels.shape[0]
    key, first_key = jax.random.split(key)

    def step(state, this):
        m, key = this
        move_key, pick_key = jax.random.split(key)
        state = _move(path, prop, m, state, move_key)
        seen = jnp.asarray(path.observed)[m + 1].any()
        return jax.lax.cond(seen, lambda s: _observe(path, prop, m + 1, s, pick_key), lambda s: s, state), None

    state, _ = jax.lax.scan(step, _start(path, prop, first_key, runs), (jnp.arange(M), jax.random.split(key, M)))
    late = state.begun.any(0) | (state.now & ~state.before)  # too recent to have been counted
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
    """A rotation by chance: every particle has every proposal with its share."""
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
    # a path that has left the drift's domain stays where it was, and weighs nothing
    log_w = jnp.where(jnp.isnan(log_w), -jnp.inf, log_w)
    after = jnp.where(jnp.isfinite(after), after, x)
    now = state.now | _is_away(prop, m + 1, after)
    return state._replace(x=after, log_q=log_q, log_w=log_w, now=now)


def _log_likelihood(path: PathModel, m: Any, x: Float[Array, "R n d"]) -> Float[Array, "R n"]:
    log_p = path.log_likelihood(m, x.reshape(-1, x.shape[-1])).reshape(x.shape[:-1])
    return jnp.where(jnp.isnan(log_p), -jnp.inf, log_p)


def _look_ahead(prop: Proposals, m: Any, state: _State) -> Float[Array, "R n"]:
    """Weights for choosing: times a rough, heavy-tailed density of the observation that comes next."""
    r = state.x @ prop.ahead[m].T - prop.target[m]
    return state.log_w - 0.5 * (_TAIL + r.shape[-1]) * jnp.log1p((r**2).sum(-1) / _TAIL)


def _observe(path: PathModel, prop: Proposals, m: Any, state: _State, key) -> _State:
    """Weigh by the observation, count excursions, and resample where the weights have become uneven."""
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
    places = (jnp.arange(n) + u[:, :1]) / n * cumulated[:, -1:]  # systematic
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
