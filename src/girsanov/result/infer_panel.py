"""`infer` for a panel: the posteriors of all its series."""

import dataclasses
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from girsanov._core.progress import reporter
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain
from girsanov.data.grid import make_grid
from girsanov.data.on_grid import SeriesOnGrid, on_grid
from girsanov.data.panel import Panel, unknown_name
from girsanov.inference.boundary import checked_boundary
from girsanov.inference.cvi_dp import CVIDP
from girsanov.inference.loop import Run, blank_sites
from girsanov.inference.many import solve_many
from girsanov.inference.method import Method
from girsanov.inference.objective import Posed
from girsanov.inference.quadrature_check import checked_quadrature
from girsanov.inference.singular import check_singular
from girsanov.inference.status import Status
from girsanov.model.model import Model, check_inputs, with_errors_known
from girsanov.result.bad_start import explain_bad_start
from girsanov.result.making import trimmed
from girsanov.result.panel_posterior import Outcome, PanelPosterior

PerSeries = Any  # one value for all series, or a mapping from their names to values


def infer_panel(
    model: Model,
    panel: Panel,
    dt: float | None,
    span: PerSeries,
    *,
    method: Method,
    grid: PerSeries,
    given_limit: bool,
    progress: bool,
) -> PanelPosterior:
    """Infer the posterior of every series; see `infer`. `given_limit` says that the user gave `max_iterations`."""
    begun = time.perf_counter()
    datas = lay_out_panel(model, panel, dt, span, grid)
    rule = method.rule(model.dim)
    names, outcomes = panel.names, {}
    with reporter(progress) as say:

        def finish(i: int, problem: Posed, run: Run, counts: Any) -> None:
            if run.status is Status.BAD_START:
                run = _explained(problem, run)
            else:
                run = _checked(names[i], problem, run, method)
            short = Posed(problem.stated, datas[i], rule)
            run = trimmed(run, len(datas[i].times), len(datas[i].node))
            outcomes[names[i]] = Outcome(short, run._replace(root=None), tuple(counts), panel[names[i]])
            if say is not None:
                say(f"{len(outcomes)} of {len(names)} series")

        solve_many(method, model, rule, datas, finish)
    posts = PanelPosterior(model, panel, {name: outcomes[name] for name in names}, seconds=time.perf_counter() - begun)
    if all(status == "bad_start" for status in posts.statuses.values()):
        raise ValueError(
            f"none of the {len(names)} series could be started; series {names[0]!r}: {posts.messages[names[0]]}"
        )
    _warn(posts, given_limit)
    return posts


def lay_out_panel(model: Model, panel: Panel, dt: Any, span: PerSeries, grid: PerSeries) -> list[SeriesOnGrid]:
    """Put all series on their grids, after checking them and the model; errors name the series."""
    spans, grids = by_name("span", span, panel), by_name("grid", grid, panel)
    datas, taken = [], covariates_taken(model, panel)
    for name, series in panel.items():
        try:
            check_inputs(model, series)
            data = on_grid(series, make_grid(series, dt, spans[name], grids[name]), covariates=taken)
        except ValueError as error:
            raise ValueError(f"series {name!r}: {error}") from None
        datas.append(data)
    datas = _alike(datas)
    check_singular(Posed(with_errors_known(model, datas[0].errors), datas[0], CVIDP().rule(model.dim)))
    return datas


def _alike(datas: list[SeriesOnGrid]) -> list[SeriesOnGrid]:
    """Return the series with impulses of zero where others have some, so that all share a program."""
    if not any(data.inputs is not None and data.inputs.dosed is not None for data in datas):
        return datas
    return [dataclasses.replace(data, inputs=data.inputs.with_impulses()) for data in datas if data.inputs is not None]


def covariates_taken(model: Model, panel: Panel) -> list[str] | None:
    """Return the covariates that the model may take, those of all series; None if it takes none."""
    if getattr(model, "covariates", None) is None:
        return None
    return sorted(set.intersection(*(set(series.covariates) for series in panel.values())))


def by_name(what: str, given: PerSeries, panel: Panel) -> dict[str, Any]:
    """Return the value of every series; raise a ValueError that names a series without one."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(panel, given)
    values = {str(name): value for name, value in given.items()}
    for name in values:
        if name not in panel:
            raise ValueError(f"{what}= names a series that is not in the panel: {unknown_name(name, panel.names)}")
    for name in panel:
        if name not in values:
            raise ValueError(f"{what}= has no entry for series {name!r}: give one for every series, or one for all")
    return {name: values[name] for name in panel}


def _checked(name: str, problem: Posed, run: Run, method: Method) -> Run:
    """Check a result as `infer` does."""
    try:
        check_singular(problem, run.moments)
    except ValueError as error:
        raise ValueError(f"series {name!r}: {error}") from None
    if isinstance(method, CVIDP):
        run = checked_quadrature(problem, run)
    return checked_boundary(problem, run)


def _explained(problem: Posed, run: Run) -> Run:
    """Return a run that could not start with the reason in words, and with NaN for q, which it does not have."""
    try:
        explain_bad_start(problem)
    except ValueError as error:
        reason = str(error)
    N, d = len(problem.data.times), problem.model.dim
    m, S, C = (np.full(shape, np.nan) for shape in ((d, N), (d, d, N), (d, d, N - 1)))
    q, eta = Moments(m, S, C), NaturalChain(m, S, C)
    return run._replace(moments=q, eta=eta, sites=blank_sites(problem), steps=None, elbo=-np.inf, fault=reason)


def _warn(posts: PanelPosterior, given_limit: bool) -> None:
    """Warn the user once of the series that have not converged, and once of steps that are too long."""
    ended = {name: status for name, status in posts.statuses.items() if status != "converged"}
    if given_limit:
        ended = {name: status for name, status in ended.items() if status != "max_iterations"}
    if ended:
        counts = ", ".join(f"{n} {status}" for status, n in Counter(ended.values()).most_common())
        first = next(iter(ended))
        warnings.warn(
            f"infer has not converged for {len(ended)} of {len(posts)} series ({counts}); the first is {first!r}: "
            f"{posts.messages[first]}",
            stacklevel=4,
        )
    coarse = {name: sentence for name in posts if (sentence := posts.unresolved(name))}
    if coarse:
        first = next(iter(coarse))
        warnings.warn(
            f"{len(coarse)} of {len(posts)} series have steps that are too long; the first is {first!r}: "
            f"{coarse[first]}",
            stacklevel=4,
        )
