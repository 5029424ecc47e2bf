"""The proposals of the particle filter that does not rely on q, and of the conditional one that `refine` runs.

Between two resamplings every particle moves by one of K proposals: the model, q's own transitions, or bridges, which
follow the model until some time before the next observation and are then guided to it. The weights are those of the
mixture of whole stretches of paths, p(stretch)/Σ_k α_k q_k(stretch), so they exceed the weights of any one proposal by
a factor of at most 1/α_k: the filter finds whatever one of the proposals finds. A mixture of single steps would, for
short steps, only average the drifts.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Float, Int

from girsanov._core.compile import compiled
from girsanov._core.special import LOG_2PI
from girsanov._core.types import Array
from girsanov.chain.moments import Moments
from girsanov.chain.transitions import Transitions
from girsanov.model.path_model import PathModel

_MODEL, _OWN, _LED = 0.25, 0.35, 0.4  # shares of the proposals: the model, q, and all the bridges together
_WINDOWS = (1.0, 0.3, 0.1)  # share of the gap before an observation during which a bridge guides the path to it
_TAIL = 4.0  # degrees of freedom of the look-ahead weights, which limit the effect of an outlier


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


class _Next(NamedTuple):
    """The observation that follows each node, as y = H x + N(0, R), with H = 0 where there is none.

    `time` is the time of that observation, `gap` its distance from the observation before it, or from the first node.
    """

    H: np.ndarray
    y: np.ndarray
    R: np.ndarray
    time: np.ndarray
    gap: np.ndarray


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


def picked(values: Float[Array, "K R n d"], label: Int[Array, "R n"]) -> Float[Array, "R n d"]:
    """Return the entry of every particle's own proposal."""
    return jnp.take_along_axis(values, label[None, ..., None], 0)[0]


def log_normals(e: Float[Array, "K R n d"], inverse_root: Float[Array, "K d d"]) -> Float[Array, "K R n"]:
    """Return log N(e; 0, R Rᵀ) for every proposal, from R⁻¹."""
    log_det = jnp.log(jnp.diagonal(inverse_root, axis1=1, axis2=2)).sum(-1) - 0.5 * e.shape[-1] * LOG_2PI
    return log_det[:, None, None] - 0.5 * (jnp.einsum("kij,krnj->krni", inverse_root, e) ** 2).sum(-1)


def mixed(prop: Proposals, log_q: Float[Array, "K R n"]) -> Float[Array, "R n"]:
    """Return the log density of the mixture, from those of the proposals."""
    return logsumexp(log_q + jnp.asarray(prop.log_shares)[:, None, None], 0)


def start(path: PathModel, prop: Proposals, xi: Float[Array, "R n d"], label: Int[Array, "R n"], keep: Any = None):
    """Return first states made from standard normal numbers ξ, their log densities by proposal, and their log weights.

    If `keep` is a pair of a flag and states (R, d), the first particle of each run has this state where the flag is
    True.
    """
    mean = jnp.asarray(prop.mean0)[:, None, None]
    x = kept(picked(mean + jnp.einsum("kij,rnj->krni", prop.root0, xi), label), keep)
    log_q = log_normals(x - mean, prop.inverse_root0)
    return x, log_q, path.log_initial(x) - mixed(prop, log_q) + log_likelihood(path, 0, x)


def move(path: PathModel, prop: Proposals, m: Any, x, label, log_q, xi, keep: Any = None):
    """Return the states after a step, the log densities of the stretch by proposal, and the factor of the log weights.

    `keep` is as in `start`. A path that leaves the domain of the drift stays where it was and gets the weight zero.
    """
    F, B, g, root, inverse_root = (a[m] for a in (prop.F, prop.B, prop.g, prop.root, prop.inverse_root))
    mean = jnp.einsum("kij,rnj->krni", F, path.moved(m, x)) + jnp.einsum("kij,rnj->krni", B, x) + g[:, None, None]
    after = kept(picked(mean + jnp.einsum("kij,rnj->krni", root, xi), label), keep)
    longer = log_q + log_normals(after - mean, inverse_root)
    factor = path.log_step(m, x, after) - mixed(prop, longer) + mixed(prop, log_q)
    factor = jnp.where(jnp.isnan(factor), -jnp.inf, factor)
    return jnp.where(jnp.isfinite(after), after, x), longer, factor


def kept(x: Float[Array, "R n d"], keep: Any) -> Float[Array, "R n d"]:
    """Return the states, with those of `keep` for the first particle of every run."""
    return x if keep is None else x.at[:, 0].set(jnp.where(keep[0], keep[1], x[:, 0]))


def log_likelihood(path: PathModel, m: Any, x: Float[Array, "R n d"]) -> Float[Array, "R n"]:
    """Return log p(y | x) at node m, minus infinity where it is not a number."""
    log_p = path.log_likelihood(m, x.reshape(-1, x.shape[-1])).reshape(x.shape[:-1])
    return jnp.where(jnp.isnan(log_p), -jnp.inf, log_p)


def look_ahead(prop: Proposals, m: Any, x: Float[Array, "R n d"]) -> Float[Array, "R n"]:
    """Return a rough, heavy-tailed log density of the observation that follows node m."""
    r = x @ prop.ahead[m].T - prop.target[m]
    return -0.5 * (_TAIL + r.shape[-1]) * jnp.log1p((r**2).sum(-1) / _TAIL)
