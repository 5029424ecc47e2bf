"""The line cut into points: ranges and spacing for every node, and the forward–backward recursion over them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.compile import compiled
from girsanov._core.types import Array
from girsanov.data.grid import Grid
from girsanov.data.series import TimeSeries
from girsanov.model.model import Model

_SPACING = 0.5  # in standard deviations of the narrowest factor
_CONFINED = 45.0  # nats below its maximum at which a factor is taken to vanish
_LEAST, _MOST = 64, 20_000  # points a node
LOG_2PI = 1.8378770664093453


@compiled
def log_likelihood(model: Model, y, observed, x):
    H = jnp.asarray(model.emission)[:, 0]
    return jax.vmap(lambda v: model.likelihood.log_prob(y, observed, H * v))(x)


def _kernel_of(model: Model, x: Float[Array, " n"], after: Float[Array, " k"], t, gap) -> Float[Array, "n k"]:
    """p(after_j | x_i), the Euler–Maruyama transition density."""
    var = gap * jnp.asarray(model.diffusion)[0, 0]
    centre = x + gap * jax.vmap(lambda v: model.drift(v[None], t)[0])(x)
    return jnp.exp(-0.5 * (after[None, :] - centre[:, None]) ** 2 / var) / jnp.sqrt(2.0 * jnp.pi * var)


kernel = compiled(_kernel_of)


@compiled
def forward_backward(model: Model, times, points, log_factor, log_initial):
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


def confine(log_f: Any, lo: float, hi: float, drop: float = _CONFINED, n: int = 2001) -> tuple[float, float]:
    """The interval within [lo, hi] on which log_f is within `drop` of its maximum, found by zooming in."""
    a, b = lo, hi
    for _ in range(8):
        x = np.linspace(a, b, n)
        values = log_f(x)
        if not np.isfinite(values.max()):
            return a, b
        inside = np.flatnonzero(values > values.max() - drop)
        new_a, new_b = float(x[max(inside[0] - 1, 0)]), float(x[min(inside[-1] + 1, n - 1)])
        if new_b - new_a > 0.5 * (b - a):
            return new_a, new_b
        a, b = new_a, new_b
    return a, b


def factors(model: Model, series: TimeSeries) -> list[Any]:
    """log p(y_i | x) of every observation as a function of points; None where all entries are missing."""
    y = np.where(series.observed, series.values, 0.0)

    def of(i: int) -> Any:
        seen = np.array(series.observed[i])
        return (lambda x: np.asarray(log_likelihood(model, y[i], seen, x))) if seen.any() else None

    return [of(i) for i in range(len(series))]


def ranges(model: Model, series: TimeSeries, grid: Grid, lo: float, hi: float, widen: float) -> np.ndarray:
    """(N, 2) ends of every node's points: [lo, hi], or where its likelihood and p(x_0) confine it."""
    ends = np.tile([lo, hi], (len(grid.times), 1))
    m0, P0 = initial(model)
    reach = np.sqrt(2.0 * _CONFINED * P0) * widen
    ends[0] = max(lo, m0 - reach), min(hi, m0 + reach)
    for log_f, node in zip(factors(model, series), grid.node, strict=True):
        if log_f is None:
            continue
        a, b = confine(log_f, lo, hi)
        middle, half = 0.5 * (a + b), 0.5 * (b - a) * widen
        a, b = max(middle - half, lo), min(middle + half, hi)
        if node > 0 or b - a < ends[0, 1] - ends[0, 0]:  # at the first node the narrower of likelihood and p(x_0)
            ends[node] = a, b
    return ends


def resolution(model: Model, series: TimeSeries, grid: Grid, ends: np.ndarray) -> int:
    """Points a node, two to a standard deviation of the narrowest of p(x_0), the transitions and the likelihood."""
    width = ends[:, 1] - ends[:, 0]
    gaps = np.diff(grid.times)
    shortest = np.minimum(np.append(gaps, np.inf), np.insert(gaps, 0, np.inf))  # of the gaps beside a node
    narrowest = np.sqrt(shortest * float(model.diffusion[0, 0]))
    narrowest[0] = min(narrowest[0], np.sqrt(initial(model)[1]))
    for log_f, node in zip(factors(model, series), grid.node, strict=True):
        if log_f is not None:  # half a nat below its maximum is one standard deviation away, were it Gaussian
            a, b = confine(log_f, *ends[node], drop=0.5)
            narrowest[node] = min(narrowest[node], 0.5 * (b - a))
    need = width / (_SPACING * narrowest)
    worst = int(np.argmax(need))
    if need[worst] > _MOST:
        raise ValueError(
            f"{need[worst]:.0f} points would be needed at time {float(grid.times[worst])!r}, where a factor of width "
            f"{narrowest[worst]:.3g} meets a range of {width[worst]:.3g}; the limit is {_MOST}. The shortest gap "
            f"beside it is {shortest[worst]:.3g}: leave times that close out of at=, or give n_points="
        )
    return max(_LEAST, int(np.ceil(need[worst])))


def check_drift(model: Model, times: np.ndarray, points: np.ndarray) -> None:
    f = np.asarray(_drift_values(model, times, points))
    if not np.isfinite(f).all():
        m, i = np.argwhere(~np.isfinite(f))[0]
        raise ValueError(
            f"the drift returned {f[m, i]} at state {float(points[m, i])!r} and time {float(times[m])!r}; it must be "
            "finite wherever the posterior may go"
        )


@compiled
def _drift_values(model: Model, times, points):
    return jax.vmap(lambda t, row: jax.vmap(lambda v: model.drift(v[None], t)[0])(row))(times, points)


def initial(model: Model) -> tuple[float, float]:
    """Mean and variance of the initial state."""
    state = model.initial_state()
    return float(np.asarray(state.mean)[0]), float(np.asarray(state.cov)[0, 0])


def first_range(model: Model, series: TimeSeries, grid: Grid) -> tuple[float, float]:
    """A range to begin with: what the data and the initial state say, and eight deviations of the longest gap."""
    m0, P0 = initial(model)
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


class Solution(NamedTuple):
    """Points (N, n), densities over them, log evidence and E[x_m x_{m+1}]."""

    points: np.ndarray
    forward: np.ndarray
    backward: np.ndarray
    density: np.ndarray
    log_evidence: float
    products: np.ndarray

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance at every node."""
        h = (self.points[:, 1] - self.points[:, 0])[:, None]
        mean = (self.density * self.points * h).sum(1)
        return mean, (self.density * (self.points - mean[:, None]) ** 2 * h).sum(1)


def solve(model: Model, series: TimeSeries, grid: Grid, ends: np.ndarray, n: int) -> Solution:
    points = ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * np.linspace(0.0, 1.0, n)
    check_drift(model, grid.times, points)
    log_factor = np.zeros_like(points)
    for log_f, node in zip(factors(model, series), grid.node, strict=True):
        if log_f is not None:
            log_factor[node] = log_f(points[node])
    m0, P0 = initial(model)
    log_initial = -0.5 * ((points[0] - m0) ** 2 / P0 + np.log(P0) + LOG_2PI)
    forward, backward, density, log_evidence, products = (
        np.asarray(a) for a in forward_backward(model, grid.times, points, log_factor, log_initial)
    )
    return Solution(points, forward, backward, density, float(log_evidence), products)
