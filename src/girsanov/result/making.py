"""Posteriors from runs of inference, and starts of runs from posteriors."""

from typing import Any

import jax
import numpy as np

from girsanov.chain.linear_sde import Time
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain
from girsanov.chain.transitions import Transitions
from girsanov.data.series import TimeSeries
from girsanov.inference.continuous_bound import ContinuousSites
from girsanov.inference.levels import prolong
from girsanov.inference.loop import Run
from girsanov.inference.method import Start
from girsanov.inference.objective import Posed
from girsanov.inference.sites import Sites
from girsanov.result.posterior import History, Posterior


def run_history(result: Run, coarse: list[Run]) -> History:
    """Return the history of a run and of the runs on coarser grids before it."""
    counts = tuple((len(r.trace["elbo"]) - 1, r.passes) for r in coarse)
    return History(**result.trace, passes=result.passes, coarse=counts, node_passes=None)


def make_posterior(problem: Posed, result: Run, series: TimeSeries, history: History, seconds: float) -> Posterior:
    """Return the posterior of a run, without the padding of the grid and of the observations."""
    grid, inputs = problem.data.grid, problem.data.inputs
    result = trimmed(result, len(grid.times), len(grid.node))
    sites = result.sites
    continuous = isinstance(sites, ContinuousSites)
    dense = sites.left if continuous else sites.dense
    return Posterior(
        model=problem.series_model.driven_by(None if inputs is None else inputs.trimmed(len(grid.times))),
        series=series,
        times=grid.times,
        node=grid.node,
        moments=result.moments,
        natural=result.eta,
        target=Sites(sites.base, dense, sites.data, sites.right if continuous else None),
        elbo=result.elbo,
        history=history,
        status=result.status.name.lower(),
        message=result.message,
        seconds=seconds,
        time="continuous" if continuous else "discrete",
        rule=problem.rule,
        quadrature_error=result.quadrature_error,
        exact_transitions=result.steps,
    )


def trimmed(result: Run, N: int, n: int) -> Run:
    """Return a run on N nodes with n observations, without padding, in NumPy arrays of its own."""

    def trim(part: Any, n: int) -> Any:
        return jax.tree.map(lambda a: np.array(np.asarray(a)[..., :n]), part)

    q, sites, eta = result.moments, result.sites, result.eta
    data, base = trim(sites.data, n), trim(sites.base, N if isinstance(sites, ContinuousSites) else N - 1)
    if isinstance(sites, ContinuousSites):
        short = ContinuousSites(base, trim(sites.left, N - 1), trim(sites.right, N - 1), data)
    else:
        short = Sites(base, trim(sites.dense, N - 1), data)
    steps = result.steps
    return result._replace(
        moments=Moments(trim(q.m, N), trim(q.S, N), trim(q.C, N - 1)),
        eta=NaturalChain(trim(eta.h, N), trim(eta.J, N), trim(eta.K, N - 1)),
        sites=short,
        steps=None if steps is None else Transitions(trim(steps.T, N - 1), trim(steps.root, N)),
    )


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
