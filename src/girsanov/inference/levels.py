"""Coarser grids, whose solutions are starts for finer ones.

The directions in which the algorithm converges slowly are smooth in time, so a coarser grid resolves them at less cost.
A solution is transferred to a finer grid by its sites. The base drift and the dense sites (per unit of time) are
functions of time and are interpolated. Data sites belong to observations, whose times are nodes of every grid, so they
do not change.
"""

import numpy as np

from girsanov.chain.linear_sde import Linearisation
from girsanov.data.grid import Grid, coarsen
from girsanov.inference.objective import Posed
from girsanov.inference.sites import DenseSites, Sites

_RATIOS = (2, 8, 32, 128, 512, 2048)  # steps of the coarser grids, in steps of the finest grid
_FEWEST = 250  # smallest number of nodes of a coarser grid
# Up to this many numbers (nodes times d²), coarser grids are padded to the size of the finest one. That costs
# milliseconds in each run, but they then share its compiled program, which takes seconds to make.
SHARED_PROGRAM = 25_000


def coarser_grids(grid: Grid, d: int) -> list[tuple[Grid, int]]:
    """Return coarser versions of a grid, the coarsest first, each with the number of nodes to pad it to.

    A grid is padded to the size of the finest grid, or of the next finest one, if it shares that one's program.
    """
    grids = [coarsen(grid, r) for r in _RATIOS if len(grid.times) >= _FEWEST * r]
    if grid.capacity * d**2 <= SHARED_PROGRAM:
        return [(g, grid.capacity) for g in reversed(grids)]
    return [(g, grids[0].capacity if g.capacity * d**2 <= SHARED_PROGRAM else g.capacity) for g in reversed(grids)]


def coarser(problem: Posed) -> list[Posed]:
    """Return the problem on coarser grids, the coarsest first."""
    grids = coarser_grids(problem.data.grid, problem.model.dim)
    return [Posed(problem.stated, problem.data.on(grid, size), problem.rule) for grid, size in grids]


def prolong(sites: Sites, times: np.ndarray, fine: Posed) -> Sites:
    """Transfer the sites of a grid with these times to the grid of `fine`, by linear interpolation in time."""
    M, s = len(times) - 1, np.asarray(fine.data.times)[:-1]
    if M == 0:  # a grid with a single node has no base drift and no dense sites
        d = sites.base.b.shape[0]
        v, m = np.zeros((d, len(s))), np.zeros((d, d, len(s)))
        return Sites(Linearisation(m, v), DenseSites(v, m), sites.data)
    t = times[:M]
    left = np.clip(np.searchsorted(t, s, side="right") - 1, 0, M - 1)
    right = np.minimum(left + 1, M - 1)
    w = np.clip((s - t[left]) / np.diff(times)[left], 0.0, 1.0)
    inside = np.arange(len(s)) < int(fine.data.size) - 1

    def interpolate(a):
        a = np.asarray(a)
        return np.where(inside, (1.0 - w) * a[..., left] + w * a[..., right], 0.0)

    base, dense = sites.base, sites.dense
    return Sites(
        Linearisation(interpolate(base.A), interpolate(base.b)),
        DenseSites(interpolate(dense.potential), interpolate(dense.precision)),
        sites.data,
    )
