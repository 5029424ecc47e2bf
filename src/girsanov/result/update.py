"""`post.update`: checks, the grid of all data, and the choice between an extension and a new run."""

from typing import Any

import numpy as np

from girsanov._core.checks import shown
from girsanov._core.precision import float64
from girsanov.data.grid import make_grid
from girsanov.data.on_grid import on_grid
from girsanov.data.series import TimeSeries
from girsanov.inference.cvi_dp import CVIDP, check_method
from girsanov.model.model import check_inputs
from girsanov.result.extending import extended
from girsanov.result.infer import infer
from girsanov.result.posterior import Posterior


@float64
def update(post: Posterior, series: TimeSeries, dt: float | None, grid: Any, method: Any) -> Posterior:
    """Extend a posterior by later observations; see `Posterior.update`."""
    model, before = post.model, post.series
    method = check_method(CVIDP(time=post.time) if method is None else method, model)
    if not isinstance(method, CVIDP):
        raise ValueError(f"update takes method=gv.CVIDP(...), got {method!r}")
    if before.inputs is not None or series.inputs is not None:
        raise ValueError("update is for series without inputs: infer with all observations and inputs together")
    check_inputs(model, series)
    _check_follows(post, series)
    errors = None
    if before.errors is not None and series.errors is not None:
        errors = np.concatenate([before.errors, series.errors])
    times, values = (np.concatenate([getattr(s, k) for s in (before, series)]) for k in ("times", "values"))
    whole = TimeSeries.counted(times, values, before.unit, before.origin, errors, before.covariates)
    nodes = _nodes(post, whole, dt, grid)
    found = None
    if post.time == method.time == "discrete" and post.exact_transitions is None and method.rho is None:
        data = on_grid(whole, make_grid(whole, None, None, nodes))
        found = extended(post, data, whole, method)
    return infer(model, whole, grid=nodes, method=method) if found is None else found


def _check_follows(post: Posterior, series: TimeSeries) -> None:
    """Raise a ValueError unless the series can come after the data of the posterior."""
    before, end = post.series, float(post.times[-1])
    if (series.unit, series.origin) != (before.unit, before.origin):
        raise ValueError(
            f"the new series counts time in {series.unit} since {series.origin}, the old one in {before.unit} since "
            f"{before.origin}; make it with unit={before.unit!r} and origin=post.series.origin"
        )
    if not series.times[0] > end:
        raise ValueError(
            f"update takes later observations: times[0] = {shown(series.times[0])} is not after the end of the "
            f"horizon, {shown(end)}; infer with all of the data instead"
        )
    if (series.errors is None) != (before.errors is None):
        has, lacks = ("new", "old") if before.errors is None else ("old", "new")
        raise ValueError(f"the {has} observations have known errors and the {lacks} ones do not: give them for both")
    if series.covariates and series.covariates != before.covariates:
        raise ValueError(
            f"the new observations have the covariates {series.covariates}, the old ones {before.covariates}: they "
            "must be those of the same series"
        )


def _nodes(post: Posterior, whole: TimeSeries, dt: float | None, grid: Any) -> np.ndarray:
    """Return the old nodes and the new ones: those of `grid`, or of the regular grid that began at the first node."""
    old = post.times
    if dt is not None and grid is not None:
        raise ValueError("give either dt= (the step of the new nodes) or grid= (their times)")
    if grid is not None:
        more = whole.numbers(grid, "grid")
        if not (more.ndim == 1 and len(more) and more[0] > old[-1]):
            raise ValueError(f"grid must have the new nodes only, after the end of the horizon {shown(old[-1])}")
        return np.concatenate([old, more])
    if dt is None and len(old) == 1:
        raise ValueError("the grid has a single node and so no step: give update a step dt=")
    step = _longest_step(old) if dt is None else dt
    fresh = make_grid(whole, step, (float(old[0]), float(whole.times[-1])), None).times
    first = int(np.searchsorted(fresh, old[-1] + 1e-6 * step))  # a node that is the end but for rounding is no new one
    return np.concatenate([old, fresh[first:]])


def _longest_step(times: np.ndarray) -> float:
    """Return the longest step of a grid, averaged over the nodes that are multiples of it, so that rounding is none."""
    step = np.diff(times).max()
    count = (times - times[0]) / step
    whole = np.round(count)
    last = int(np.flatnonzero((np.abs(count - whole) < 1e-6) & (whole > 0))[-1])
    return float((times[last] - times[0]) / whole[last])
