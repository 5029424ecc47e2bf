"""The exact answer for scalar states: forward–backward recursion of the discretised model on the line.

The model x_{m+1} | x_m ~ N(x_m + Δf(x_m, t_m), ΔQ) is a hidden Markov chain with a continuous scalar state. Every node
gets its own uniform points, wide ones between observations and narrow ones where an observation or the initial state
confines the path; sums over them are trapezoidal rules on smooth functions that vanish at both ends, so the error
falls faster than any power of the spacing. Cost and memory are linear in the number of nodes.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._compile import compiled
from girsanov._precision import float64
from girsanov._types import Array
from girsanov.estimate import Marginals, PathEstimate
from girsanov.grid import Grid, grid_with
from girsanov.model import Model
from girsanov.series import TimeSeries

_SPACING = 0.5  # in standard deviations of the narrowest transition
_CONFINED = 45.0  # nats below its maximum at which a factor is taken to vanish
_EDGE = 1e-12  # share of the largest density that the ends of a range may have
_MAX_WIDENINGS = 12
LOG_2PI = 1.8378770664093453


@dataclasses.dataclass(frozen=True)
class ExactPosterior(PathEstimate):
    """The exact marginals of the discretised model with a scalar state.

    - log_evidence: log p(y); error: its change when the points are refined by half.
    - points, density: (N, n) points of every node and the smoothing density there.
    - lag_cov: Cov(x_{m+1}, x_m), (N − 1, 1, 1).
    """

    model: Model
    series: TimeSeries
    times: np.ndarray
    log_evidence: float
    error: float
    mean: np.ndarray
    cov: np.ndarray
    lag_cov: np.ndarray
    points: np.ndarray
    density: np.ndarray
    forward: np.ndarray  # filtering densities, (N, n)
    backward: np.ndarray  # p(later data | x) up to a factor, times the node's own likelihood, (N, n)

    def _nodes(self, times: Any) -> np.ndarray:
        t = self._inside(times)
        index = np.clip(np.searchsorted(self.times, t), 0, len(self.times) - 1)
        index = np.where(
            np.abs(self.times[np.maximum(index - 1, 0)] - t) < np.abs(self.times[index] - t), index - 1, index
        )
        off = np.abs(self.times[index] - t) > 1e-9 * max(1.0, abs(float(self.times[-1])))
        if off.any():
            i = int(np.argmax(off))
            raise ValueError(f"times[{i}] = {float(t[i])!r} is not a node: pass it to exact_smoother(..., at=[...])")
        return index

    def marginals(self, times: Any) -> Marginals:
        """Mean and covariance at nodes; for other times name them in `at=`."""
        index = self._nodes(times)
        return Marginals(self.mean[index], self.cov[index])

    @float64
    def density_at(self, node: int, x: Any) -> np.ndarray:
        """The smoothing density of one node at any points, by one step of the recursion from either side."""
        x = np.asarray(x, dtype=np.float64)
        own = self.points[node]
        if node == 0:
            state = self.model.initial_state()
            m0, P0 = float(state.mean[0]), float(state.cov[0, 0])
            prior = lambda at: np.exp(-0.5 * (at - m0) ** 2 / P0)  # noqa: E731
        else:
            prior = lambda at: _weights(self, node - 1) @ _transition(self, node - 1, self.points[node - 1], at)  # noqa: E731
        last = node == len(self.times) - 1

        def after(at):
            if last:
                return np.ones_like(at)
            h = self.points[node + 1, 1] - self.points[node + 1, 0]
            return _transition(self, node, at, self.points[node + 1]) @ self.backward[node + 1] * h

        unnormalised = lambda at: prior(at) * after(at) * np.exp(_log_factor(self, node, at))  # noqa: E731
        total = unnormalised(own).sum() * (own[1] - own[0])
        return unnormalised(x) / total

    @float64
    def nlpd_values(self, test: TimeSeries) -> np.ndarray:
        """−log ∫ p(y | x) p(x | data) dx with the exact density, for test times that are nodes."""
        self._check_test(test)
        out = np.empty(len(test))
        for i, node in enumerate(self._nodes(test.times).tolist()):
            lo, hi = self.points[node, 0], self.points[node, -1]
            y, seen = np.where(test.observed[i], test.values[i], 0.0), np.array(test.observed[i])
            log_lik = lambda at, y=y, seen=seen: np.asarray(_log_likelihood(self.model, y, seen, at))  # noqa: E731
            a, b = _confine(log_lik, lo, hi)
            x = np.linspace(a, b, 801)
            out[i] = -np.log(np.sum(np.exp(log_lik(x)) * self.density_at(node, x)) * (x[1] - x[0]))
        return out


def _weights(post: ExactPosterior, node: int) -> np.ndarray:
    return post.forward[node] * (post.points[node, 1] - post.points[node, 0])


def _transition(post: ExactPosterior, node: int, x: np.ndarray, after: np.ndarray) -> np.ndarray:
    gap, t = post.times[node + 1] - post.times[node], post.times[node]
    return np.asarray(_kernel(post.model, x, after, np.float64(t), np.float64(gap)))


def _log_factor(post: ExactPosterior, node: int, x: np.ndarray) -> np.ndarray:
    hit = np.flatnonzero(np.abs(post.series.times - post.times[node]) <= 1e-12 * max(1.0, abs(post.times[node])))
    if len(hit) == 0:
        return np.zeros_like(x)
    i = hit[0]
    y, seen = np.where(post.series.observed[i], post.series.values[i], 0.0), np.array(post.series.observed[i])
    return np.asarray(_log_likelihood(post.model, y, seen, x))


@compiled
def _log_likelihood(model: Model, y, observed, x):
    H = jnp.asarray(model.emission)[:, 0]
    return jax.vmap(lambda v: model.likelihood.log_prob(y, observed, H * v))(x)


def _kernel_of(model: Model, x: Float[Array, " n"], after: Float[Array, " k"], t, gap) -> Float[Array, "n k"]:
    """p(after_j | x_i), the Euler–Maruyama transition density."""
    var = gap * jnp.asarray(model.diffusion)[0, 0]
    centre = x + gap * jax.vmap(lambda v: model.drift(v[None], t)[0])(x)
    return jnp.exp(-0.5 * (after[None, :] - centre[:, None]) ** 2 / var) / jnp.sqrt(2.0 * jnp.pi * var)


_kernel = compiled(_kernel_of)


@compiled
def _forward_backward(model: Model, times, points, log_factor, log_initial):
    """Filtering densities, normalised backward factors, log evidence, and E[x_m x_{m+1}]."""
    spacing = points[:, 1] - points[:, 0]
    top = log_factor.max(1)
    factor = jnp.exp(log_factor - top[:, None])
    first = jnp.exp(log_initial) * factor[0]
    norm = first.sum() * spacing[0]
    steps = (points[:-1], points[1:], times[:-1], jnp.diff(times), spacing[:-1], spacing[1:], factor[1:])

    def ahead(a, step):
        x, after, t, gap, h, h_after, factor_after = step
        predicted = (h * a) @ _kernel_of(model, x, after, t, gap)
        a = predicted * factor_after
        c = a.sum() * h_after
        return a / c, (a / c, jnp.log(c))

    _, (rest, log_c) = jax.lax.scan(ahead, first / norm, steps)
    forward = jnp.concatenate([(first / norm)[None], rest])
    log_evidence = jnp.log(norm) + log_c.sum() + top.sum()

    def back(b, step):
        x, after, t, gap, h, h_after, factor_after, a = step
        K = _kernel_of(model, x, after, t, gap)
        weighted = factor_after * b * h_after
        b = K @ weighted
        scale = (a * b).sum() * h
        product = (a * x * (K @ (weighted * after))).sum() * h / scale
        return b / scale, (b / scale, weighted / h_after, product)

    last = jnp.ones(points.shape[1])
    _, (later, weighted, products) = jax.lax.scan(back, last, (*steps, forward[:-1]), reverse=True)
    smoothing = forward * jnp.concatenate([later, last[None]])
    smoothing = smoothing / (smoothing.sum(1) * spacing)[:, None]
    backward = jnp.concatenate([(factor[0] * later[0])[None] if len(times) > 1 else last[None], weighted])
    return forward, backward, smoothing, log_evidence, products


def _confine(log_f: Any, lo: float, hi: float) -> tuple[float, float]:
    """The interval within [lo, hi] on which log_f is within `_CONFINED` of its maximum, found by zooming in."""
    a, b = lo, hi
    for _ in range(8):
        x = np.linspace(a, b, 2001)
        values = log_f(x)
        inside = np.flatnonzero(values > values.max() - _CONFINED)
        new_a, new_b = float(x[max(inside[0] - 1, 0)]), float(x[min(inside[-1] + 1, 2000)])
        if new_b - new_a > 0.5 * (b - a):
            return new_a, new_b
        a, b = new_a, new_b
    return a, b


def _ranges(model: Model, series: TimeSeries, grid: Grid, lo: float, hi: float, widen: float) -> np.ndarray:
    """(N, 2) ends of every node's points: [lo, hi], or where its likelihood and p(x_0) confine it."""
    ends = np.tile([lo, hi], (len(grid.times), 1))
    state = model.initial_state()
    m0, sd0 = float(np.asarray(state.mean)[0]), float(np.sqrt(np.asarray(state.cov)[0, 0]))
    y = np.where(series.observed, series.values, 0.0)
    reach = np.sqrt(2.0 * _CONFINED) * sd0 * widen
    ends[0] = max(lo, m0 - reach), min(hi, m0 + reach)
    for i, node in enumerate(grid.node):
        seen = np.array(series.observed[i])
        if not seen.any():
            continue
        a, b = _confine(lambda x, i=i, seen=seen: np.asarray(_log_likelihood(model, y[i], seen, x)), lo, hi)
        middle, half = 0.5 * (a + b), 0.5 * (b - a) * widen
        a, b = max(middle - half, lo), min(middle + half, hi)
        if node > 0:
            ends[node] = a, b
        elif b - a < ends[0, 1] - ends[0, 0]:  # the narrower of likelihood and initial state
            ends[0] = a, b
    return ends


def _solve(model: Model, series: TimeSeries, grid: Grid, ends: np.ndarray, n: int):
    u = np.linspace(0.0, 1.0, n)
    points = ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * u
    log_factor = np.zeros_like(points)
    y = np.where(series.observed, series.values, 0.0)
    for i, node in enumerate(grid.node):
        log_factor[node] = np.asarray(_log_likelihood(model, y[i], np.array(series.observed[i]), points[node]))
    state = model.initial_state()
    m0, P0 = float(np.asarray(state.mean)[0]), float(np.asarray(state.cov)[0, 0])
    log_initial = -0.5 * ((points[0] - m0) ** 2 / P0 + np.log(P0) + LOG_2PI)
    out = _forward_backward(model, grid.times, points, log_factor, log_initial)
    return points, *(np.asarray(a) for a in out)


@float64
def exact_smoother(
    model: Model,
    series: TimeSeries,
    dt: float,
    span: tuple[float, float] | None = None,
    *,
    key: Any = None,
    at: Any = None,
    n_points: int | None = None,
) -> ExactPosterior:
    """Exact posterior and evidence of a model with a scalar state, on the grid that `infer` would use.

    - at: further times to make nodes, such as those of held-out observations.
    - n_points: points a node; by default half a transition's standard deviation apart. The range widens by itself until
      the density vanishes at its ends; the error is estimated by running again with half as many points again.
    """
    if model.dim != 1:
        raise ValueError(f"exact_smoother works for scalar states; this model's state has dimension {model.dim}")
    grid = grid_with(series, dt, span, at)
    lo, hi = _first_range(model, series, grid)
    widen = 1.0
    narrowest = np.sqrt(np.diff(grid.times).min() * model.diffusion[0, 0]) if len(grid.times) > 1 else 1.0
    for _ in range(_MAX_WIDENINGS):
        ends = _ranges(model, series, grid, lo, hi, widen)
        n = n_points or int(np.clip(np.ceil((hi - lo) / (_SPACING * narrowest)), 64, 20_000))
        points, forward, backward, density, log_evidence, products = _solve(model, series, grid, ends, n)
        leak = density[:, [0, -1]] / density.max(1, keepdims=True)
        if np.isfinite(log_evidence) and not (leak > _EDGE).any():
            break
        wide = leak[(ends[:, 0] <= lo) | (ends[:, 1] >= hi)]
        if not np.isfinite(log_evidence) or (len(wide) and (wide > _EDGE).any()):
            lo, hi = lo - 0.25 * (hi - lo), hi + 0.25 * (hi - lo)
        widen *= 1.25
    else:
        raise ValueError(
            "the posterior does not vanish at the ends of any range tried; is the drift explosive at this dt?"
        )
    finer = _solve(model, series, grid, ends, int(np.ceil(1.5 * n)))[4]
    h = (points[:, 1] - points[:, 0])[:, None]
    mean = (density * points * h).sum(1)
    var = (density * (points - mean[:, None]) ** 2 * h).sum(1)
    lag = products - mean[1:] * mean[:-1]
    return ExactPosterior(
        model, series, grid.times, float(finer), abs(float(finer - log_evidence)), mean[:, None], var[:, None, None],
        lag[:, None, None], points, density, forward, backward,
    )  # fmt: skip


def _first_range(model: Model, series: TimeSeries, grid: Grid) -> tuple[float, float]:
    """A range to begin with: what the data and the initial state say, and eight deviations of the longest gap."""
    state = model.initial_state()
    m0, P0 = float(np.asarray(state.mean)[0]), float(np.asarray(state.cov)[0, 0])
    y, w = (np.asarray(a) for a in _readings(model, np.where(series.observed, series.values, 0.0)))
    H = np.asarray(model.emission)[:, 0]
    weight = np.where(series.observed, w * H**2, 0.0).sum(1)
    x = np.where(series.observed, w * H * y, 0.0).sum(1)[weight > 0] / weight[weight > 0]
    gaps = np.diff(np.concatenate([grid.times[:1], series.times, grid.times[-1:]]))
    reach = 6.0 * np.sqrt(float(model.diffusion[0, 0]) * gaps.max() + P0)
    return float(min(x.min(), m0)) - reach, float(max(x.max(), m0)) + reach


@compiled
def _readings(model: Model, y):
    return jax.vmap(model.likelihood.start)(y)
