"""Points on the line for a scalar state: their range and spacing, and the forward–backward recursion over them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.compile import compiled
from girsanov._core.special import LOG_2PI
from girsanov._core.types import Array
from girsanov.data.grid import Grid
from girsanov.data.rows import Rows, rows_of
from girsanov.data.series import TimeSeries
from girsanov.model.driven import driven_on
from girsanov.model.model import Model
from girsanov.model.simulate import states

_SPACING = 0.5  # spacing of the points in standard deviations of the narrowest factor
_CONFINED = 45.0  # a factor counts as zero where it is this many nats below its maximum
_LEAST, _MOST = 64, 20_000  # smallest and largest number of points per node
_EDGE = 1e-12  # the density at the ends of a range may be at most this share of its maximum
_MAX_WIDENINGS = 12
_NOTHING = 1e-20  # share of the largest density below which a point is left out


@compiled
def log_likelihood(model: Model, row: Rows, x):
    """Return log p(y | x) of one observation at each state of x, shape (n,)."""
    return jax.vmap(lambda v: model.observation.log_prob(row, v[None]))(x)


def kernel_of(model: Model, x: Float[Array, " n"], after: Float[Array, " k"], t, gap) -> Float[Array, "n k"]:
    """Return the Euler–Maruyama transition density p(after_j | x_i) for all i and j."""
    var = gap * model.noise.Q[0, 0]
    centre = x + gap * jax.vmap(lambda v: model.drift(v[None], t)[0])(x)
    return jnp.exp(-0.5 * (after[None, :] - centre[:, None]) ** 2 / var) / jnp.sqrt(2.0 * jnp.pi * var)


kernel = compiled(kernel_of)


@compiled
def forward_backward(model: Model, times, points, values, log_factor, log_initial):
    """Run the forward–backward recursion over the points of all nodes.

    Returns:
        Filtering densities, backward factors, smoothing densities, the log evidence and E[v_m v_{m+1} | data], where
        v are the `values` at the points.
    """
    spacing = points[:, 1] - points[:, 0]
    top = log_factor.max(1)
    factor = jnp.exp(log_factor - top[:, None])
    first = jnp.exp(log_initial) * factor[0]
    norm = first.sum() * spacing[0]
    steps = (points[:-1], points[1:], times[:-1], jnp.diff(times), spacing[:-1], spacing[1:], factor[1:])

    def ahead(a, step):
        x, after, t, gap, h, h_after, factor_after = step
        predicted = (h * a) @ kernel_of(model, x, after, t, gap)
        a = predicted * factor_after
        c = a.sum() * h_after
        return a / c, (a / c, jnp.log(c))

    _, (rest, log_c) = jax.lax.scan(ahead, first / norm, steps)
    forward = jnp.concatenate([(first / norm)[None], rest])
    log_evidence = jnp.log(norm) + log_c.sum() + top.sum()

    def back(b, step):
        x, after, t, gap, h, h_after, factor_after, a, value, value_after = step
        K = kernel_of(model, x, after, t, gap)
        weighted = factor_after * b * h_after
        b = K @ weighted
        scale = (a * b).sum() * h
        product = (a * value * (K @ (weighted * value_after))).sum() * h / scale
        return b / scale, (b / scale, weighted / h_after, product)

    last = jnp.ones(points.shape[1])
    _, (later, weighted, products) = jax.lax.scan(
        back, last, (*steps, forward[:-1], values[:-1], values[1:]), reverse=True
    )
    smoothing = forward * jnp.concatenate([later, last[None]])
    smoothing = smoothing / (smoothing.sum(1) * spacing)[:, None]
    backward = jnp.concatenate([(factor[0] * later[0])[None] if len(times) > 1 else last[None], weighted])
    return forward, backward, smoothing, log_evidence, products


def confine(log_f: Any, lo: float, hi: float, drop: float = _CONFINED, n: int = 2001) -> tuple[float, float]:
    """Return the part of [lo, hi] on which log_f is within `drop` of its maximum, found on ever finer points."""
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
    """Return for every observation the function log p(y_i | x) of x, or None if all its entries are missing."""
    rows = rows_of(series)

    def of(i: int) -> Any:
        return (lambda x: np.asarray(log_likelihood(model, rows[i], x))) if rows.observed[i].any() else None

    return [of(i) for i in range(len(series))]


def ranges(model: Model, series: TimeSeries, grid: Grid, lo: float, hi: float, widen: float) -> np.ndarray:
    """Return the ends of the points of every node, shape (N, 2).

    They are [lo, hi], or narrower where the likelihood of an observation or p(x_0) confines the state. `widen` is a
    factor by which such a narrower range is enlarged.
    """
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
        if node > 0 or b - a < ends[0, 1] - ends[0, 0]:  # the first node takes the narrower of likelihood and p(x_0)
            ends[node] = a, b
    return ends


def resolution(model: Model, series: TimeSeries, grid: Grid, ends: np.ndarray, most: int = _MOST) -> int:
    """Return the number of points per node: at least two per standard deviation of the narrowest factor.

    The factors are p(x_0), the transitions and the likelihoods. A ValueError says so where more than `most` are needed.
    """
    width = ends[:, 1] - ends[:, 0]
    gaps = np.diff(grid.times)
    shortest = np.minimum(np.append(gaps, np.inf), np.insert(gaps, 0, np.inf))  # the shorter of the gaps beside a node
    narrowest = np.sqrt(shortest * float(model.noise.Q[0, 0]))
    narrowest[0] = min(narrowest[0], np.sqrt(initial(model)[1]))
    for log_f, node in zip(factors(model, series), grid.node, strict=True):
        if log_f is not None:  # a Gaussian is half a nat below its maximum at one standard deviation
            a, b = confine(log_f, *ends[node], drop=0.5)
            narrowest[node] = min(narrowest[node], 0.5 * (b - a))
    need = width / (_SPACING * narrowest)
    worst = int(np.argmax(need))
    if need[worst] > most:
        raise ValueError(
            f"{need[worst]:.0f} points would be needed at time {float(grid.times[worst])!r}, where the narrowest "
            f"factor has width {narrowest[worst]:.3g} and the range {width[worst]:.3g}; the limit is {most}. The "
            f"shortest gap beside this time is {shortest[worst]:.3g}: leave times that close out of at=, or give "
            "n_points="
        )
    return max(_LEAST, int(np.ceil(need[worst])))


def check_drift(model: Model, times: np.ndarray, points: np.ndarray) -> None:
    """Raise a ValueError if the drift is not finite at one of the points."""
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
    """Return mean and variance of the initial state."""
    state = model.initial_state()
    return float(np.asarray(state.mean)[0]), float(np.asarray(state.cov)[0, 0])


def first_range(model: Model, series: TimeSeries, grid: Grid) -> tuple[float, float]:
    """Return a first range of states: that of the data and the initial mean, widened by six standard deviations.

    The standard deviation is that of the initial state and of the noise over the longest gap between observations.
    """
    m0, P0 = initial(model)
    potential, precision = (np.asarray(a) for a in _readings(model, rows_of(series), np.full((len(series), 1), m0)))
    x = potential[0, precision[0, 0] > 0] / precision[0, 0, precision[0, 0] > 0]
    gaps = np.diff(np.concatenate([grid.times[:1], series.times, grid.times[-1:]]))
    reach = 6.0 * np.sqrt(float(model.noise.Q[0, 0]) * gaps.max() + P0)
    return float(min(x.min(initial=m0), m0)) - reach, float(max(x.max(initial=m0), m0)) + reach


@compiled
def _readings(model: Model, rows: Rows, at):
    return model.observation.starting_sites(rows, at)


class Solution(NamedTuple):
    """The result of the recursion: points (N, n), densities at them, log evidence and `products` E[x_m x_{m+1}].

    Points and densities are in the coordinate in which the noise is constant; `values` are the states x there.
    """

    points: np.ndarray
    values: np.ndarray
    forward: np.ndarray
    backward: np.ndarray
    density: np.ndarray
    log_evidence: float
    products: np.ndarray

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance at every node."""
        h = (self.points[:, 1] - self.points[:, 0])[:, None]
        mean = (self.density * self.values * h).sum(1)
        return mean, (self.density * (self.values - mean[:, None]) ** 2 * h).sum(1)


def solve(stated: Model, series: TimeSeries, grid: Grid, ends: np.ndarray, n: int) -> Solution:
    """Run the recursion with n equally spaced points between the ends of every node, for the model as it was stated."""
    stated = driven_on(stated, series, grid.times)
    model = stated.latent
    points = ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * np.linspace(0.0, 1.0, n)
    values = states(stated, points.T[..., None], grid.times)[..., 0].T
    check_drift(model, grid.times, points)
    log_factor = np.zeros_like(points)
    for log_f, node in zip(factors(model, series), grid.node, strict=True):
        if log_f is not None:
            log_factor[node] = log_f(points[node])
    m0, P0 = initial(model)
    log_initial = -0.5 * ((points[0] - m0) ** 2 / P0 + np.log(P0) + LOG_2PI)
    forward, backward, density, log_evidence, products = (
        np.asarray(a) for a in forward_backward(model, grid.times, points, values, log_factor, log_initial)
    )
    return Solution(points, values, forward, backward, density, float(log_evidence), products)


def leaks(density: np.ndarray) -> np.ndarray:
    """Return whether a density (N, n) has not vanished at either end of the points of each node, (N, 2)."""
    return ~(density[:, [0, -1]] <= _EDGE * density.max(1, keepdims=True))


def find_points(stated: Model, series: TimeSeries, grid: Grid, n_points: int | None = None, most: int = _MOST):
    """Return the recursion on points whose range is widened until the density vanishes at its ends.

    Args:
        stated: the model as it was stated.
        series: the observations.
        grid: the nodes.
        n_points: number of points per node; by default what `resolution` finds.
        most: the largest number of points per node.

    Returns:
        The `Solution`, with the points.

    Raises:
        ValueError: if no range is wide enough, or if the points needed are too many.
    """
    latent = driven_on(stated, series, grid.times).latent
    lo, hi = first_range(latent, series, grid)
    widen = 1.0
    for _ in range(_MAX_WIDENINGS):
        ends = ranges(latent, series, grid, lo, hi, widen)
        n = resolution(latent, series, grid, ends, most) if n_points is None else int(n_points)
        found = solve(stated, series, grid, ends, n)
        leak = leaks(found.density)
        if np.isfinite(found.log_evidence) and not leak.any():
            return found
        wide = leak[(ends[:, 0] <= lo) | (ends[:, 1] >= hi)]
        if not np.isfinite(found.log_evidence) or wide.any():
            lo, hi = lo - 0.25 * (hi - lo), hi + 0.25 * (hi - lo)
        widen *= 1.25
    raise ValueError(
        "the posterior does not vanish at the ends of any range that was tried; if the drift is explosive at this "
        "dt, take a smaller dt"
    )


def trimmed(points: np.ndarray, density: np.ndarray, margin: float = 0.1) -> np.ndarray:
    """Return the ends of the part of the points where the density is, and a share of that width on either side, (N, 2).

    Sums over them leave out paths that the data rule out, whatever the filter makes of them before it sees the data.
    """
    inside = density > _NOTHING * density.max(1, keepdims=True)
    n, rows = inside.shape[1], np.arange(len(inside))
    low = points[rows, np.maximum(inside.argmax(1) - 1, 0)]
    high = points[rows, n - np.maximum(inside[:, ::-1].argmax(1), 1)]
    wide = margin * (high - low)
    return np.stack([low - wide, high + wide], 1)
