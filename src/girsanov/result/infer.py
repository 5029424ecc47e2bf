"""`infer`: compute the posterior over the path of a model, given a series of observations."""

import time
import warnings
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
from girsanov.data.series import TimeSeries
from girsanov.inference.boundary import checked_boundary
from girsanov.inference.conditioning import scales_apart
from girsanov.inference.continuous_bound import ContinuousSites
from girsanov.inference.cvi_dp import CVIDP, check_method
from girsanov.inference.expectations import evaluate_drift
from girsanov.inference.functional import lay_out
from girsanov.inference.levels import prolong
from girsanov.inference.loop import Run
from girsanov.inference.method import Method, Start, reject_unknown
from girsanov.inference.objective import Posed, compose
from girsanov.inference.quadrature_check import checked_quadrature
from girsanov.inference.singular import check_singular
from girsanov.inference.sites import Sites
from girsanov.inference.start import starting_sites
from girsanov.inference.status import Status
from girsanov.model.model import Model
from girsanov.model.simulate import states
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
    """Infer the posterior over the path of `model`, given the observations in `series`.

    Args:
        model: the model: drift, diffusion, initial state and likelihood.
        series: the observations.
        dt: step of the time grid, in the time unit of the series. The observation times are added to the grid.
        span: time of the initial state and end of the horizon; by default the first and last time of the series.
        method: `gv.CVIDP()` (the default) or `gv.VDP()`, with settings.
        grid: times of the nodes, (N,), instead of `dt` and `span`. They must contain the observation times.
        start: an earlier posterior to start from, of the same observation times and of a model of the same dimension.
        tolerance: replaces the tolerance of the method, in nats.
        max_iterations: replaces the largest number of iterations of the method.
        progress: whether to show the progress of runs that take longer than two seconds; default True.

    Returns:
        The Gaussian posterior. Its `status` and `message` say how the run ended; a run that did not converge is also
        warned of, unless it stopped at a `max_iterations` that was given here.

    Raises:
        ValueError: if an argument is not valid, or if the drift or the bound is not finite at the start of the run.
    """
    reject_unknown("infer", unknown, infer)
    begun = time.perf_counter()
    method = check_method(method, model, tolerance=tolerance, max_iterations=max_iterations)
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


def run_history(result: Run, coarse: list[Run]) -> History:
    """Return the history of a run and of the runs on coarser grids before it."""
    counts = tuple((len(r.trace["elbo"]) - 1, r.passes) for r in coarse)
    return History(**result.trace, passes=result.passes, coarse=counts)


def make_posterior(problem: Posed, result: Run, series: TimeSeries, history: History, seconds: float) -> Posterior:
    """Return the posterior of a run, without the padding of the grid."""
    grid = problem.data.grid
    N = len(grid.times)

    def trim(part: Any, n: int) -> Any:
        return jax.tree.map(lambda a: np.ascontiguousarray(np.asarray(a)[..., :n]), part)

    q, sites, eta = result.moments, result.sites, result.eta
    continuous = isinstance(sites, ContinuousSites)
    dense = sites.left if continuous else sites.dense
    return Posterior(
        model=problem.stated,
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
        rule=problem.rule,
        quadrature_error=result.quadrature_error,
        exact_transitions=None if result.steps is None else _trimmed(result.steps, N),
    )


def _trimmed(steps: Transitions, N: int) -> Transitions:
    return Transitions(np.asarray(steps.T)[..., : N - 1], np.asarray(steps.root)[..., :N])


def warm_start(start: Posterior, problem: Posed, series: TimeSeries, time: Time = "discrete") -> Start:
    """Return the start of a run from an earlier posterior.

    On the same grid this is its chain, or in continuous time its sites; on another grid, its sites are interpolated.
    """
    if not np.array_equal(start.series.times, series.times):
        raise ValueError("start= must be a posterior of a series with the same observation times")
    if start.model.dim != problem.model.dim:
        raise ValueError(
            f"start= has a state of dimension {start.model.dim}, the model of dimension {problem.model.dim}"
        )
    capacity = len(problem.data.times)
    same = np.array_equal(start.times, problem.data.grid.times)
    if same and time == "continuous" and start.target.right is not None:
        return _padded_sites(start.target, capacity)
    if same and start.exact_transitions is None:
        return _padded(start.natural, capacity)
    return prolong(start.target, start.times, problem)


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
    """Return sites in continuous time with zeros on the padding."""

    def wide(part: Any, n: int) -> Any:
        return jax.tree.map(lambda a: np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, n - a.shape[-1])]), part)

    base, dense, right = wide(sites.base, capacity), wide(sites.dense, capacity - 1), wide(sites.right, capacity - 1)
    return Sites(base, dense, sites.data, right)


@compiled
def _start_values(problem: Posed):
    q = smooth(compose(problem, starting_sites(problem))).moments
    sd = jnp.sqrt(jnp.diagonal(q.S)).T
    xi = jnp.asarray(problem.rule.nodes)
    x = q.m[:, None] + sd[:, None] * xi[:, :, None]
    return x, evaluate_drift(problem.model.drift, x, problem.data.times)


@compiled
def _emitted(problem: Posed):
    """Return the emission at the mean of the initial state for every observation."""
    mean = jnp.asarray(problem.model.initial_state().mean)
    return jax.vmap(lambda t: problem.model.observation.emit(t, mean))(problem.data.times[problem.data.node])


def _explain_emission(problem: Posed) -> None:
    """Raise a ValueError if an emission that is not linear is not finite where a run starts."""
    if problem.model.observation.is_linear:
        return
    z = np.asarray(_emitted(problem))
    bad = np.flatnonzero(~np.isfinite(z).all(1))
    if len(bad):
        i, mean = bad[0], np.asarray(problem.model.initial_state().mean).tolist()
        raise ValueError(
            f"the emission returned {z[i].tolist()} at state {mean}, the mean of the initial state, and time "
            f"{float(problem.data.times[problem.data.node[i]])!r}; it must be finite wherever the posterior may go. "
            "Give initial=gv.GaussianState(mean, cov) with a mean inside its domain, or extend it with jnp.where"
        )


@compiled
def _readings(problem: Posed):
    rows, mean = problem.data.rows, jnp.asarray(problem.model.initial_state().mean)
    G, reading, precision = problem.model.observation.linearised(rows, jnp.broadcast_to(mean, (len(rows.t), len(mean))))
    away = jnp.abs(reading - G @ mean)
    return jnp.where(rows.observed, away, jnp.nan), jnp.where(rows.observed, 1.0 / jnp.sqrt(precision), jnp.nan)


def explain_bad_start(problem: Posed) -> None:
    """Raise a ValueError that explains why a run could not start.

    It names the first state and time at which the emission or the drift is not finite. Where there is none, the scales
    of the model lie too far apart, and it names these.
    """
    _explain_emission(problem)
    x, f = (np.asarray(a)[..., : int(problem.data.size)] for a in _start_values(problem))
    bad = np.argwhere((~np.isfinite(f) & np.isfinite(x).all(0)).any(0).T)
    if len(bad):
        m, n = bad[0]
        raise ValueError(
            f"the drift returned {f[:, n, m].tolist()} at state {states(problem.stated, x[:, n, m]).tolist()} and time "
            f"{float(problem.data.times[m])!r}; it must be finite wherever the posterior may go"
        )
    apart = scales_apart(problem, *(np.asarray(a) for a in _readings(problem)))
    raise ValueError(
        f"the scales of the model lie too far apart for double precision: {apart}, and the bound is not finite where "
        "this method starts. Bring the scales closer together, or use method=gv.CVIDP(), which tolerates wider ones"
    )
