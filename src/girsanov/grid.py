"""The time grid of a run: regular nodes and the observation times themselves."""

from typing import Any, NamedTuple

import numpy as np

from girsanov._checks import check_positive
from girsanov.series import TimeSeries

# Two times closer than this fraction of the step are one: rounding of the same number, never a moved observation.
_SAME = 1e-6
ROUNDING = 1e-9  # relative error up to which two times written differently are the same


class Grid(NamedTuple):
    """Increasing times (N,), the node of every observation (n,), and how many nodes any series alike can need."""

    times: np.ndarray
    node: np.ndarray
    capacity: int


def regular_grid(series: TimeSeries, dt: float, span: tuple[float, float] | None) -> Grid:
    """The union of t₀, t₀ + dt, …, t₁ and the observation times, which replace the nodes they coincide with."""
    t0, t1 = _span(series, span)
    check_positive(dt=dt)
    if t1 > t0 and dt > (t1 - t0) * (1 + _SAME):
        raise ValueError(f"dt = {dt:g} is longer than the span {t1 - t0:g} from {t0:g} to {t1:g}; take a smaller dt")
    steps = (t1 - t0) / dt
    whole = round(steps) if abs(steps - round(steps)) <= _SAME * max(1.0, steps * 1e-3) else int(np.floor(steps))
    nodes = t0 + dt * np.arange(whole + 1)
    if t1 - nodes[-1] > _SAME * dt:
        nodes = np.append(nodes, t1)
    elif len(nodes) > 1:
        nodes[-1] = t1
    obs = series.times
    nearest, _ = _nearest(obs, nodes)
    keep = np.abs(obs[nearest] - nodes) > _SAME * dt
    times = np.sort(np.concatenate([nodes[keep], obs]))
    return Grid(times, np.searchsorted(times, obs), len(nodes) + len(obs))


def grid_with(series: TimeSeries, dt: float | None, span: Any, at: Any) -> Grid:
    """The regular grid with further nodes at the times `at`, which lie inside its span."""
    if dt is None:
        raise ValueError("give dt=, the step of the time grid")
    if at is None:
        return regular_grid(series, float(dt), span)
    t0, t1 = _span(series, span)
    further = np.unique(np.asarray(at, dtype=np.float64))
    outside = ~((further >= t0) & (further <= t1))
    if outside.any():
        i = int(np.argmax(outside))
        raise ValueError(f"{float(further[i])!r} in at= lies outside [{t0:g}, {t1:g}]; give a span= that contains it")
    slack = ROUNDING * max(1.0, abs(t0), abs(t1))
    further = further[_nearest(series.times, further)[1] > slack]
    times = np.union1d(series.times, further[np.diff(further, prepend=-np.inf) > slack])
    grid = regular_grid(TimeSeries(times, np.zeros(len(times))), float(dt), (t0, t1))
    return Grid(grid.times, np.searchsorted(grid.times, series.times), grid.capacity)


def given_grid(series: TimeSeries, grid: Any) -> Grid:
    """A grid of the user's own, which must contain the observation times."""
    times = np.array(grid, dtype=np.float64)
    if times.ndim != 1 or len(times) < 1:
        raise ValueError(f"grid must have shape (N,) with N ≥ 1, got {times.shape}")
    if not np.isfinite(times).all():
        i = int(np.argmin(np.isfinite(times)))
        raise ValueError(f"grid[{i}] is {times[i]}; every time must be finite")
    gaps = np.diff(times)
    if (gaps <= 0).any():
        i = int(np.argmax(gaps <= 0))
        raise ValueError(f"grid must increase: grid[{i + 1}] = {times[i + 1]:g} follows grid[{i}] = {times[i]:g}")
    obs = series.times
    node, distance = _nearest(times, obs)
    scale = gaps.min() if len(gaps) else 1.0
    if (distance > _SAME * scale).any():
        i = int(np.argmax(distance > _SAME * scale))
        raise ValueError(
            f"the grid misses the observation at time {float(obs[i])!r} (index {i}); its nearest node is "
            f"{float(times[node[i]])!r}. Use np.union1d(grid, series.times)"
        )
    times[node] = obs
    return Grid(times, node, len(times))


def coarsen(grid: Grid, ratio: int) -> Grid:
    """Every ratio-th node, the observations and the last node."""
    keep = np.zeros(len(grid.times), bool)
    keep[::ratio] = True
    keep[-1] = True
    keep[grid.node] = True
    position = np.cumsum(keep) - 1
    return Grid(grid.times[keep], position[grid.node], -(-grid.capacity // ratio) + len(grid.node) + 1)


def _span(series: TimeSeries, span: tuple[float, float] | None) -> tuple[float, float]:
    first, last = float(series.times[0]), float(series.times[-1])
    if span is None:
        return first, last
    try:
        t0, t1 = (float(v) for v in span)
    except (TypeError, ValueError):
        raise ValueError(f"span must be (start, end), got {span!r}") from None
    if not (np.isfinite(t0) and np.isfinite(t1) and t1 >= t0):
        raise ValueError(f"span must be (start, end) with finite start ≤ end, got ({t0}, {t1})")
    slack = _SAME * max(abs(t1 - t0), np.finfo(float).eps)
    for i, t in ((0, first), (len(series) - 1, last)):
        if t < t0 - slack * _SAME or t > t1 + slack * _SAME:
            raise ValueError(
                f"the observation at times[{i}] = {t:g} lies outside span = ({t0:g}, {t1:g}); "
                "widen the span or drop the observation with series.subset"
            )
    return t0, t1


def _nearest(sorted_times: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the nearest of `sorted_times` for every t, and the distance."""
    right = np.clip(np.searchsorted(sorted_times, t), 1, max(len(sorted_times) - 1, 1))
    left = right - 1
    right = np.minimum(right, len(sorted_times) - 1)
    index = np.where(np.abs(sorted_times[right] - t) < np.abs(t - sorted_times[left]), right, left)
    return index, np.abs(sorted_times[index] - t)
