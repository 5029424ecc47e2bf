"""`infer`: from a model and a series to a posterior."""

import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from girsanov._core.compile import compiled
from girsanov._core.precision import float64, to_numpy
from girsanov._core.progress import reporter
from girsanov.chain.linear_sde import Time
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain
from girsanov.chain.smoother import smooth
from girsanov.chain.transitions import Transitions
from girsanov.data.grid import Grid, make_grid
from girsanov.data.series import TimeSeries
from girsanov.inference.conditioning import scales_apart
from girsanov.inference.continuous import ContinuousSites
from girsanov.inference.cvi_dp import CVIDP, check_method
from girsanov.inference.expectations import evaluate_drift
from girsanov.inference.levels import prolong
from girsanov.inference.loop import Run
from girsanov.inference.method import Method, Start, reject_unknown
from girsanov.inference.objective import Problem, compose, starting_sites
from girsanov.inference.quadrature_check import checked_quadrature
from girsanov.inference.sites import Sites
from girsanov.inference.status import Status
from girsanov.model.model import Model, check_inputs
from girsanov.result.posterior import History, Posterior
from girsanov.result.resolution import warn_unresolved


@float64
def infer(
    model: Model,
    series: TimeSeries,
    dt: float | None = None,
    span: tuple[float, float] | None = None,
    *,
    method: Method | None = None,
    grid: Any = None,
    start: Posterior | None = None,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    progress: bool = True,
    **unknown: Any,
) -> Posterior:
    """The posterior over the path of `model` given `series`.

    - dt: step of the time grid over `span`, to which the observation times are added; or `grid`: times of your own.
    - span: time of the initial state and end of the horizon; by default the series' first and last time.
    - method: `CVIDP()`, the default, or `VDP()`; `tolerance` and `max_iterations` override its own.
    - start: an earlier posterior to start from (of the same series and a model of the same dimension).
    - progress: show the state of runs that take longer than two seconds.
    """
    reject_unknown("infer", unknown, infer)
    begun = time.perf_counter()
    method = check_method(method, tolerance=tolerance, max_iterations=max_iterations)
    check_inputs(model, series)
    nodes = make_grid(series, dt, span, grid)
    warm = None if start is None else warm_start(start, model, series, getattr(method, "time", "discrete"))
    with reporter(progress) as say:
        problem, result, coarse = method.solve(model, series, nodes, warm, say)
    if result.status is Status.BAD_START:
        explain_bad_start(problem)
    if isinstance(method, CVIDP):
        result = checked_quadrature(problem, result)
    history = run_history(result, coarse)
    post = make_posterior(problem, result, series, history, nodes, time.perf_counter() - begun)
    warn_unresolved(post, stacklevel=4)
    if not post.converged and (max_iterations is None or result.status is not Status.MAX_ITERATIONS):
        warnings.warn(f"infer has not converged ({post.status}): {post.message}", stacklevel=3)
    return post


def run_history(result: Run, coarse: list[Run]) -> History:
    counts = tuple((len(r.trace["elbo"]) - 1, r.passes) for r in coarse)
    return History(**result.trace, passes=result.passes, coarse=counts)


def make_posterior(
    problem: Problem, result: Run, series: TimeSeries, history: History, grid: Grid, seconds: float
) -> Posterior:
    """A run's result without its padding."""
    N = len(grid.times)

    def trim(part: Any, n: int) -> Any:
        return jax.tree.map(lambda a: np.ascontiguousarray(np.asarray(a)[..., :n]), part)

    q, sites, eta = result.moments, result.sites, result.eta
    continuous = isinstance(sites, ContinuousSites)
    dense = sites.left if continuous else sites.dense
    return Posterior(
        model=problem.model,
        series=series,
        times=grid.times,
        node=grid.node,
        moments=Moments(trim(q.m, N), trim(q.S, N), trim(q.C, N - 1)),
        natural=NaturalChain(trim(eta.h, N), trim(eta.J, N), trim(eta.K, N - 1)),
        target=Sites(
            trim(sites.base, N if continuous else N - 1),
            trim(dense, N - 1),
            to_numpy(sites.data),
            trim(sites.right, N - 1) if continuous else None,
        ),
        elbo=result.elbo,
        history=history,
        status=result.status.name.lower(),
        message=result.message,
        seconds=seconds,
        time="continuous" if continuous else "discrete",
        quadrature_error=result.quadrature_error,
        exact_transitions=None if result.steps is None else _trimmed(result.steps, N),
    )


def _trimmed(steps: Transitions, N: int) -> Transitions:
    return Transitions(np.asarray(steps.T)[..., : N - 1], np.asarray(steps.root)[..., :N])


def warm_start(
    start: Posterior, model: Model, series: TimeSeries, time: Time = "discrete"
) -> Callable[[Problem], Start]:
    """An earlier posterior where the grid is the same, as a chain or in continuous time as sites; else its sites on the
    new grid."""
    if not np.array_equal(start.series.times, series.times):
        raise ValueError("start= must be a posterior of a series with the same observation times")
    if start.model.dim != model.dim:
        raise ValueError(f"start= has a state of dimension {start.model.dim}, the model of dimension {model.dim}")

    def on(problem: Problem) -> Start:
        same = np.array_equal(start.times, np.asarray(problem.times)[: int(problem.size)])
        if same and time == "continuous" and start.target.right is not None:
            return _padded_sites(start.target, len(problem.times))
        if same and start.exact_transitions is None:
            return _padded(start.natural, len(problem.times))
        return prolong(start.target, start.times, problem)

    return on


def _padded(chain: NaturalChain, capacity: int) -> NaturalChain:
    d, N = chain.h.shape
    pad = capacity - N
    eye = np.broadcast_to(np.eye(d)[:, :, None], (d, d, pad))
    return NaturalChain(
        np.pad(chain.h, ((0, 0), (0, pad))),
        np.concatenate([chain.J, eye], -1),
        np.pad(chain.K, ((0, 0), (0, 0), (0, capacity - 1 - chain.K.shape[-1]))),
    )


def _padded_sites(sites: Sites, capacity: int) -> Sites:
    """Sites of the continuous process with zeros on the padding."""

    def wide(part: Any, n: int) -> Any:
        return jax.tree.map(lambda a: np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, n - a.shape[-1])]), part)

    base, dense, right = wide(sites.base, capacity), wide(sites.dense, capacity - 1), wide(sites.right, capacity - 1)
    return Sites(base, dense, sites.data, right)


@compiled
def _start_values(problem: Problem):
    q = smooth(compose(problem, starting_sites(problem))).moments
    sd = jnp.sqrt(jnp.diagonal(q.S)).T
    xi = jnp.asarray(problem.rule.nodes)
    x = q.m[:, None] + sd[:, None] * xi[:, :, None]
    return x, evaluate_drift(problem.model.drift, x, problem.times)


@compiled
def _readings(problem: Problem):
    z, precision = jax.vmap(problem.model.likelihood.start)(problem.y)
    seen = problem.observed
    return jnp.where(seen, z, jnp.nan), jnp.where(seen, 1.0 / jnp.sqrt(precision), jnp.nan)


def explain_bad_start(problem: Problem) -> None:
    """Raise a ValueError for the first state and time at which the drift is not finite, or say that there is none.

    Where the states themselves are not finite, or the drift is, the scales of the model are at fault.
    """
    x, f = (np.asarray(a)[..., : int(problem.size)] for a in _start_values(problem))
    bad = np.argwhere((~np.isfinite(f) & np.isfinite(x).all(0)).any(0).T)
    if len(bad):
        m, n = bad[0]
        raise ValueError(
            f"the drift returned {f[:, n, m].tolist()} at state {x[:, n, m].tolist()} and time "
            f"{float(problem.times[m])!r}; it must be finite wherever the posterior may go"
        )
    apart = scales_apart(problem, *(np.asarray(a) for a in _readings(problem)))
    raise ValueError(
        f"the scales of the model lie too far apart for double precision: {apart}, and the bound is not finite where "
        "this method starts. Bring them closer together, or use method=gv.CVIDP(), which resolves more"
    )
