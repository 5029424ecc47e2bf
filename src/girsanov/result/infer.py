"""`infer`: compute the posterior over the path of a model, given a series of observations."""

import time
import warnings
from typing import Any, overload

from girsanov._core.precision import float64
from girsanov._core.progress import reporter
from girsanov.data.panel import Panel
from girsanov.data.series import TimeSeries
from girsanov.inference.boundary import checked_boundary
from girsanov.inference.cvi_dp import CVIDP, check_method
from girsanov.inference.functional import lay_out
from girsanov.inference.method import Method, reject_unknown
from girsanov.inference.quadrature_check import checked_quadrature
from girsanov.inference.singular import check_singular
from girsanov.inference.status import Status
from girsanov.model.model import Model
from girsanov.result.bad_start import explain_bad_start
from girsanov.result.infer_panel import infer_panel
from girsanov.result.making import make_posterior, run_history, warm_start
from girsanov.result.panel_posterior import PanelPosterior
from girsanov.result.posterior import Posterior
from girsanov.result.resolution import warn_unresolved


@overload
def infer(model: Model, series: TimeSeries, dt: float | None = None, span: Any = None, **options: Any) -> Posterior: ...


@overload
def infer(model: Model, series: Panel, dt: float | None = None, span: Any = None, **options: Any) -> PanelPosterior: ...


@float64
def infer(
    model: Model,
    series: TimeSeries | Panel,
    dt: float | None = None,
    span: Any = None,
    *,
    method: Method | None = None,
    grid: Any = None,
    start: Posterior | None = None,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    progress: bool = True,
    **unknown: Any,
) -> Posterior | PanelPosterior:
    """Infer the posterior over the path of `model`, given the observations in `series`.

    Args:
        model: the model: drift, diffusion, initial state and likelihood.
        series: the observations, or a `gv.Panel` of many independent series.
        dt: step of the time grid, in the time unit of the series. The observation times are added to the grid.
        span: time of the initial state and end of the horizon; by default the first and last time of the series. For a
            panel also a mapping from the names of the series.
        method: `gv.CVIDP()` (the default) or `gv.VDP()`, with settings.
        grid: times of the nodes, (N,), instead of `dt` and `span`. They must contain the observation times. For a panel
            also a mapping from the names of the series.
        start: an earlier posterior to start from, of the same observation times and of a model of the same dimension;
            not for panels.
        tolerance: replaces the tolerance of the method, in nats.
        max_iterations: replaces the largest number of iterations of the method.
        progress: whether to show the progress of runs that take longer than two seconds; default True.

    Returns:
        The Gaussian posterior. Its `status` and `message` say how the run ended; a run that did not converge is also
        warned of, unless it stopped at a `max_iterations` that was given here. For a panel, a `PanelPosterior`: a
        mapping from the names of the series to their posteriors.

    Raises:
        ValueError: if an argument is not valid, or if the drift or the bound is not finite at the start of the run; for
            a panel, at the start of the runs of all series.
    """
    reject_unknown("infer", unknown, infer)
    begun = time.perf_counter()
    method = check_method(method, model, tolerance=tolerance, max_iterations=max_iterations)
    if isinstance(series, Panel):
        if start is not None:
            raise ValueError("start= is for a single series: a panel starts from its data")
        options = {"method": method, "grid": grid, "progress": progress}
        return infer_panel(model, series, dt, span, given_limit=max_iterations is not None, **options)
    problem = lay_out(model, series, dt, span, grid, method).of(model)
    warm = None if start is None else warm_start(start, problem, series, getattr(method, "time", "discrete"))
    with reporter(progress) as say:
        result, coarse = method.solve(problem, warm, say)
    if result.status is Status.BAD_START:
        explain_bad_start(problem)
    check_singular(problem, result.moments)
    if isinstance(method, CVIDP):
        result = checked_quadrature(problem, result)
    result = checked_boundary(problem, result)
    history = run_history(result, coarse)
    post = make_posterior(problem, result, series, history, time.perf_counter() - begun)
    warn_unresolved(post, stacklevel=4)
    if not post.converged and (max_iterations is None or result.status is not Status.MAX_ITERATIONS):
        warnings.warn(f"infer has not converged ({post.status}): {post.message}", stacklevel=3)
    return post
