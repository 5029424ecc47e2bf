"""From coarse to fine: the slow directions of the bound are smooth in time, so a coarser grid removes them cheaply.

A solution is carried to a finer grid by its sites. Base drift and dense sites are functions of time, per unit of time:
they are interpolated; data sites belong to observations, whose times are nodes of every grid, and stay as they are.
"""

import numpy as np

from girsanov.chain.linear_sde import Linearisation
from girsanov.data.grid import Grid, coarsen
from girsanov.data.series import TimeSeries
from girsanov.inference.objective import Problem
from girsanov.inference.sites import DenseSites, Sites
from girsanov.model.model import Model
from girsanov.model.quadrature import Rule

_RATIOS = (2, 8, 32, 128, 512, 2048)  # of the grids' steps to the finest one's
_FEWEST = 250  # nodes of the coarsest grid, at the least
# Up to this many numbers in a block of the chain, coarser grids are padded to the finest grid's size: they then run
# more slowly than they could, by milliseconds, and share its compiled program, which takes seconds to make.
_SHARED_PROGRAM = 25_000


def make_problem(model: Model, series: TimeSeries, grid: Grid, rule: Rule, capacity: int | None = None) -> Problem:
    """The arrays of a run, padded to the grid's capacity or a larger one."""
    N = max(grid.capacity, capacity or 0)
    size = len(grid.times)
    times = np.concatenate([grid.times, np.full(N - size, grid.times[-1])])
    gaps = np.concatenate([np.diff(grid.times), np.ones(N - size)])
    y = np.where(series.observed, series.values, 0.0)
    return Problem(model, times, gaps, np.asarray(size), grid.node.astype(np.int64), y, np.array(series.observed), rule)


def coarser_grids(grid: Grid, d: int) -> list[tuple[Grid, int]]:
    """Coarser versions of a grid with the size to pad them to, coarsest first."""
    grids = [coarsen(grid, r) for r in _RATIOS if len(grid.times) >= _FEWEST * r]
    if grid.capacity * d**2 <= _SHARED_PROGRAM:
        return [(g, grid.capacity) for g in reversed(grids)]
    return [(g, grids[0].capacity if g.capacity * d**2 <= _SHARED_PROGRAM else g.capacity) for g in reversed(grids)]


def prolong(sites: Sites, times: np.ndarray, fine: Problem) -> Sites:
    """Sites of a grid with these times on another grid, by linear interpolation between the nodes."""
    M, s = len(times) - 1, np.asarray(fine.times)[:-1]
    if M == 0:  # a single node says nothing of the drift
        d = sites.base.b.shape[0]
        v, m = np.zeros((d, len(s))), np.zeros((d, d, len(s)))
        return Sites(Linearisation(m, v), DenseSites(v, m), sites.data)
    t = times[:M]
    left = np.clip(np.searchsorted(t, s, side="right") - 1, 0, M - 1)
    right = np.minimum(left + 1, M - 1)
    w = np.clip((s - t[left]) / np.diff(times)[left], 0.0, 1.0)
    inside = np.arange(len(s)) < int(fine.size) - 1

    def interpolate(a):
        a = np.asarray(a)
        return np.where(inside, (1.0 - w) * a[..., left] + w * a[..., right], 0.0)

    base, dense = sites.base, sites.dense
    return Sites(
        Linearisation(interpolate(base.A), interpolate(base.b)),
        DenseSites(interpolate(dense.potential), interpolate(dense.precision)),
        sites.data,
    )
