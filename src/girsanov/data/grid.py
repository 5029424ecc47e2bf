"""The time grid of a run. Its nodes are regularly spaced times and the observation times."""

import math
import os
from typing import Any, NamedTuple

import numpy as np

from girsanov._core.checks import check_positive, shown
from girsanov._core.precision import frozen

# Two times count as equal if they differ by no more than a few units in the last place, or by no more than this share
# of the adjacent gap. The second rule is needed because a sum of many steps can be off by more than the last place.
_SAME = 1e-6
_LAST_PLACES = 4.0
# Bytes that inference needs for each node of a scalar state. The number grows with the square of the dimension.
_NODE_BYTES = 800


class _Times(NamedTuple):
    """The part of a series that a grid depends on."""

    times: np.ndarray
    inputs: Any


class Grid(NamedTuple):
    """The nodes of a time grid.

    Attributes:
        times: times of the nodes, strictly increasing, shape (N,).
        node: for each observation the index of its node, shape (n,).
        capacity: the largest number of nodes that a series with as many observations, on the same span and with the
            same step, can need. Arrays are padded to this length, so that such series share one compiled program.
        events: the indices of the nodes at which inputs have steps or impulses, which coarser grids have too.
    """

    times: np.ndarray
    node: np.ndarray
    capacity: int
    events: np.ndarray = frozen(np.empty(0, int))


def rounding(*times: Any) -> float:
    """Return the largest difference by which rounding can separate equal times: about 1e-15 near 1, 1e-6 near 1.7e9."""
    largest = max((float(np.max(np.abs(t))) for t in times if np.size(t)), default=0.0)
    return _LAST_PLACES * float(np.spacing(largest))


def locate(nodes: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of the node nearest to each time, and whether the two are equal up to rounding."""
    index, distance = _nearest(nodes, t)
    gaps = np.concatenate([[np.inf], np.diff(nodes), [np.inf]])
    beside = np.minimum(gaps[index], gaps[index + 1])  # the shorter of the two gaps at that node
    share = np.where(np.isfinite(beside), _SAME * beside, 0.0)
    return index, distance <= np.maximum(rounding(nodes), share)


def regular_grid(series: Any, dt: float, span: tuple[float, float] | None) -> Grid:
    """Return the grid of t₀, t₀ + dt, …, t₁, the observation times, and those of steps and impulses of the inputs.

    These times replace a node at the same time. The span (t₀, t₁) is by default from the first to the last observation.
    """
    t0, t1 = _span(series, span)
    check_positive(dt=dt)
    if t1 > t0 and dt > (t1 - t0) * (1 + _SAME):
        raise ValueError(f"dt = {dt:g} is longer than the span {t1 - t0:g} from {t0:g} to {t1:g}; take a smaller dt")
    steps = (t1 - t0) / dt
    _check_size(dt, t0, t1, steps)
    same = max(_SAME * dt, rounding(t0, t1))
    whole = round(steps) if abs(steps - round(steps)) <= _SAME * max(1.0, steps * 1e-3) else int(np.floor(steps))
    nodes = t0 + dt * np.arange(whole + 1)
    if t1 - nodes[-1] > same:
        nodes = np.append(nodes, t1)
    elif len(nodes) > 1:
        nodes[-1] = t1
    fixed = _with_events(series, t0, t1)
    nearest, _ = _nearest(fixed, nodes)
    keep = np.abs(fixed[nearest] - nodes) > same
    times = np.sort(np.concatenate([nodes[keep], fixed]))
    return _grid(times, np.searchsorted(times, series.times), len(nodes) + len(fixed))


def _with_events(series: Any, t0: float, t1: float) -> np.ndarray:
    """Return the observation times and those of steps and impulses inside the span, after checking the inputs."""
    obs = series.times
    if series.inputs is None:
        return obs
    series.inputs.check_reach(t0, t1)
    events, slack = series.inputs.events, rounding(t0, t1)
    events = np.clip(events[(events >= t0 - slack) & (events <= t1 + slack)], t0, t1)
    events = events[np.diff(events, prepend=-np.inf) > slack]
    return np.union1d(obs, events[_nearest(obs, events)[1] > slack])


def grid_with(series: Any, dt: float | None, span: Any, at: Any) -> Grid:
    """Return the regular grid with additional nodes at the times `at`, which must lie inside its span."""
    if dt is None:
        raise ValueError("give dt=, the step of the time grid")
    if at is None:
        return regular_grid(series, dt, span)
    t0, t1 = _span(series, span)
    further = np.unique(series.numbers(at, "at"))
    slack = rounding(t0, t1)
    outside = ~((further >= t0 - slack) & (further <= t1 + slack))
    if outside.any():
        i = int(np.argmax(outside))
        raise ValueError(
            f"{float(further[i])!r} in at= lies outside [{shown(t0)}, {shown(t1)}]; give a span= that contains it"
        )
    further = np.clip(further, t0, t1)
    further = further[_nearest(series.times, further)[1] > slack]
    times = np.union1d(series.times, further[np.diff(further, prepend=-np.inf) > slack])
    grid = regular_grid(_Times(times, series.inputs), dt, (t0, t1))
    return _grid(grid.times, np.searchsorted(grid.times, series.times), grid.capacity)


def make_grid(series: Any, dt: float | None, span: Any, grid: Any) -> Grid:
    """Return the regular grid with step `dt`, or the grid whose times the user gives as `grid`."""
    if (dt is None) == (grid is None):
        raise ValueError("give either dt= (the step of the time grid) or grid= (its times)")
    if grid is None:
        check_positive(dt=dt)
        return regular_grid(series, float(dt), span)  # pyright: ignore[reportArgumentType]
    if span is not None:
        raise ValueError("span= goes with dt=; a grid= has its own first and last time")
    return given_grid(series, grid)


def given_grid(series: Any, grid: Any) -> Grid:
    """Return the grid with the times that the user gives. They must contain the observation times.

    Times that differ by rounding only, as np.union1d leaves them, are one node.
    """
    times = series.numbers(grid, "grid")
    if times.ndim != 1 or len(times) < 1:
        raise ValueError(f"grid must have shape (N,) with N ≥ 1, got {times.shape}")
    if not np.isfinite(times).all():
        i = int(np.argmin(np.isfinite(times)))
        raise ValueError(f"grid[{i}] is {times[i]}; every time must be finite")
    gaps = np.diff(times)
    if (gaps <= 0).any():
        i = int(np.argmax(gaps <= 0))
        raise ValueError(
            f"grid must increase: grid[{i + 1}] = {shown(times[i + 1])} follows grid[{i}] = {shown(times[i])}"
        )
    times = times[np.append(True, gaps > rounding(times))]
    obs = series.times
    node, on = locate(times, obs)
    # Two observations cannot share a node: the second one counts as missing from the grid.
    on[1:] &= np.diff(node) > 0
    if not on.all():
        i = int(np.argmin(on))
        raise ValueError(
            f"the grid misses the observation at time {float(obs[i])!r} (index {i}); its nearest node is "
            f"{float(times[node[i]])!r}. Use np.union1d(grid, series.times)"
        )
    times[node] = obs
    if series.inputs is not None:
        series.inputs.check_reach(float(times[0]), float(times[-1]))
    return _grid(times, node, len(times))


def coarsen(grid: Grid, ratio: int) -> Grid:
    """Return the grid with only every ratio-th node, those of observations, steps and impulses, and the last node."""
    keep = np.zeros(len(grid.times), bool)
    keep[::ratio] = True
    keep[-1] = True
    keep[grid.node] = True
    keep[grid.events] = True
    position = np.cumsum(keep) - 1
    capacity = -(-grid.capacity // ratio) + len(grid.node) + len(grid.events) + 1
    return _grid(grid.times[keep], position[grid.node], capacity)


def _span(series: Any, span: tuple[float, float] | None) -> tuple[float, float]:
    first, last = float(series.times[0]), float(series.times[-1])
    if span is None:
        return first, last
    try:
        t0, t1 = (float(v) for v in span)
    except (TypeError, ValueError):
        raise ValueError(f"span must be (start, end), got {span!r}") from None
    if not (np.isfinite(t0) and np.isfinite(t1) and t1 >= t0):
        raise ValueError(f"span must be (start, end) with finite start ≤ end, got ({t0}, {t1})")
    slack = rounding(t0, t1)
    for i, t in ((0, first), (len(series.times) - 1, last)):
        if t < t0 - slack or t > t1 + slack:
            raise ValueError(
                f"the observation at times[{i}] = {shown(t)} lies outside span = ({shown(t0)}, {shown(t1)}); "
                "widen the span or drop the observation with series.subset"
            )
    return t0, t1


def _grid(times: np.ndarray, node: np.ndarray, capacity: int) -> Grid:
    """Return a Grid with read-only arrays, because a posterior passes them on to the user."""
    for a in (times, node):
        a.flags.writeable = False
    return Grid(times, node, capacity)


def _check_size(dt: float, t0: float, t1: float, steps: float) -> None:
    """Raise a ValueError if neighbouring nodes would be equal in float64 or if the nodes do not fit into memory."""
    asks = f"dt = {dt:g} over the span from {shown(t0)} to {shown(t1)} asks for {steps:.3g} nodes"
    if t1 > t0 and dt <= rounding(t0, t1):
        raise ValueError(
            f"{asks}, which lie closer together than float64 can tell apart at this size ({rounding(t0, t1):.2g}); "
            "take a larger dt, or subtract the first time from all of them"
        )
    memory = _memory()
    if steps * _NODE_BYTES > memory:
        raise ValueError(
            f"{asks} and about {steps * _NODE_BYTES / 1e9:.3g} GB, but this machine has {memory / 1e9:.3g} GB; "
            "take a larger dt, or give a grid= that is fine only where it needs to be"
        )


def _memory() -> float:
    """Return the bytes of memory of this machine, or infinity if the system does not tell."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf


def _nearest(sorted_times: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each t the index of the nearest of `sorted_times`, and the distance to it."""
    right = np.clip(np.searchsorted(sorted_times, t), 1, max(len(sorted_times) - 1, 1))
    left = right - 1
    right = np.minimum(right, len(sorted_times) - 1)
    index = np.where(np.abs(sorted_times[right] - t) < np.abs(t - sorted_times[left]), right, left)
    return index, np.abs(sorted_times[index] - t)
