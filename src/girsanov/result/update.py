"""`post.update`: checks, the grid of all data, and the choice between an extension and a new run."""

import dataclasses
import time
import warnings
from typing import Any

import numpy as np

from girsanov._core.checks import shown
from girsanov._core.precision import float64
from girsanov.data.grid import make_grid
from girsanov.data.on_grid import on_grid
from girsanov.data.series import TimeSeries
from girsanov.inference.boundary import checked_boundary
from girsanov.inference.continuous_bound import ContinuousSites
from girsanov.inference.cvi_dp import CVIDP, check_method
from girsanov.inference.functional import lay_out
from girsanov.inference.quadrature_check import checked_quadrature
from girsanov.inference.singular import check_singular
from girsanov.inference.sites import Sites
from girsanov.inference.status import Status
from girsanov.model.model import check_inputs
from girsanov.result.bad_start import explain_bad_start
from girsanov.result.extending import extended
from girsanov.result.resolution import warn_unresolved
from girsanov.result.trimming import trimmed


@float64
def update(post: Any, series: TimeSeries, dt: float | None, grid: Any, method: Any) -> Any:
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
    found = _anew(post, whole, nodes, method) if found is None else found
    if not found.converged:
        warnings.warn(f"update has not converged ({found.status}): {found.message}", stacklevel=4)
    return found


def _anew(post: Any, series: TimeSeries, nodes: np.ndarray, method: CVIDP) -> Any:
    """Infer the posterior of all data as a whole."""
    begun = time.perf_counter()
    problem = lay_out(post.model, series, None, None, nodes, method).of(post.model)
    result, coarse = method.solve(problem)
    if result.status is Status.BAD_START:
        explain_bad_start(problem)
    check_singular(problem, result.moments)
    result = checked_boundary(problem, checked_quadrature(problem, result))
    grid = problem.data.grid
    result = trimmed(result, len(grid.times), len(grid.node))
    sites: Any = result.sites
    continuous = isinstance(sites, ContinuousSites)
    dense, right = (sites.left, sites.right) if continuous else (sites.dense, None)
    counts = tuple((len(r.trace["elbo"]) - 1, r.passes) for r in coarse)
    new = dataclasses.replace(
        post,
        series=series,
        times=grid.times,
        node=grid.node,
        moments=result.moments,
        natural=result.eta,
        target=Sites(sites.base, dense, sites.data, right),
        elbo=result.elbo,
        history=type(post.history)(**result.trace, passes=result.passes, coarse=counts),
        status=result.status.name.lower(),
        message=result.message,
        seconds=time.perf_counter() - begun,
        time="continuous" if continuous else "discrete",
        rule=problem.rule,
        quadrature_error=result.quadrature_error,
        exact_transitions=result.steps,
    )
    warn_unresolved(new, stacklevel=5)
    return new


def _check_follows(post: Any, series: TimeSeries) -> None:
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


def _nodes(post: Any, whole: TimeSeries, dt: float | None, grid: Any) -> np.ndarray:
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
