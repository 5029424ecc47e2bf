"""Predictive densities of observations that a posterior has not seen: each one given all others, or given those before.

Both are integrals over the Gaussian law of the state. Without observation i that law is q divided by its site; before
it, q is inferred again from the earlier observations alone, on the grid up to that time.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov._core.types import Array
from girsanov.chain.moments import Moments
from girsanov.data.on_grid import SeriesOnGrid, on_grid
from girsanov.data.rows import Rows
from girsanov.inference.cvi_dp import CVIDP
from girsanov.inference.objective import Posed
from girsanov.inference.sites import DataSites, DenseSites, Sites
from girsanov.inference.status import Status
from girsanov.model.observation import Observation
from girsanov.model.quadrature import default_quadrature


def without_own_site(observation: Observation, data: SeriesOnGrid, q: Moments, sites: DataSites) -> Float[Array, " n"]:
    """Return log p(yᵢ | y₋ᵢ) of every observation, minus infinity where q without its site is no density."""
    m, S = q.m[:, data.node].T, jnp.moveaxis(q.S[..., data.node], -1, 0)
    J, h = jnp.moveaxis(sites.precision, -1, 0), sites.potential.T
    precision = jnp.linalg.inv(S)
    rest = precision - J
    ok = (jnp.linalg.eigvalsh(rest) > 0.0).all(-1)
    S_rest = jnp.linalg.inv(jnp.where(ok[:, None, None], rest, precision))
    S_rest = 0.5 * (S_rest + jnp.swapaxes(S_rest, 1, 2))
    m_rest = jnp.einsum("nij,nj->ni", S_rest, jnp.einsum("nij,nj->ni", precision, m) - h)
    return jnp.where(ok, observation.log_predictives(data.rows, m_rest, S_rest), -jnp.inf)


@compiled
def _one_out(model: Any, data: SeriesOnGrid, q: Moments, sites: DataSites):
    q, sites = jax.tree.map(jnp.asarray, (q, sites))
    return without_own_site(model.observation, jax.tree.map(jnp.asarray, data), q, sites)


@float64
def leave_one_out(post: Any) -> Float[np.ndarray, " n"]:
    """Return log p(yᵢ | y₋ᵢ) under a posterior, for the observations with a value that is not missing."""
    scores = _one_out(post.model.latent, on_grid(post.series, post.grid), post.moments, post.target.data)
    return np.asarray(scores)[post.series.observed.any(1)]


class Ahead(NamedTuple):
    """Predictions of some observations from all earlier ones: their indices, scores, and whether each run converged."""

    index: np.ndarray
    scores: np.ndarray
    converged: np.ndarray


@compiled
def _predicted(model: Any, rows: Rows, m, S):
    return model.observation.log_predictives(rows, m, S)


@float64
def leave_future_out(post: Any, cuts: int) -> Ahead:
    """Return log p(yᵢ | y₁, …, yᵢ₋₁) for at most `cuts` observations, over the last three quarters of the series.

    Each is one inference, from the sites of the posterior up to there; all share one compiled program.
    """
    index = cut_indices(post.series, cuts)
    rule = default_quadrature(post.model.dim).rule(post.model.dim) if post.rule is None else post.rule
    whole, method = Posed(post.model, on_grid(post.series, post.grid), rule), CVIDP(time=post.time)
    scores, converged = [], []
    for i in index.tolist():
        problem = _before(whole, i)
        run, _ = method.solve(problem, _start(post, i))
        if run.status is Status.BAD_START:
            run, _ = method.solve(problem)
        last = int(problem.data.size) - 1
        row = jax.tree.map(lambda a, i=i: a[i : i + 1], whole.data.rows)
        m, S = np.asarray(run.moments.m)[:, last], np.asarray(run.moments.S)[..., last]
        scores.append(float(_predicted(whole.model, row, m[None], S[None])[0]))
        converged.append(run.status is Status.CONVERGED)
    return Ahead(index, np.array(scores), np.array(converged, bool))


def cut_indices(series: Any, cuts: int) -> np.ndarray:
    """Return the indices of the observations that are predicted from the earlier ones."""
    seen = np.flatnonzero(series.observed.any(1))
    begin = max(1, len(seen) // 4)
    return seen[np.unique(np.round(np.linspace(begin, len(seen) - 1, cuts)).astype(int))] if len(seen) > 1 else seen[:0]


def _before(whole: Posed, i: int) -> Posed:
    """Return the problem of all observations before the i-th, on the nodes up to its time; the rest is padding."""
    data = whole.data
    N, size = len(data.times), int(data.node[i]) + 1
    times = np.where(np.arange(N) < size, data.times, data.times[size - 1])
    gaps = np.where(np.arange(N - 1) < size - 1, data.gaps, 1.0)
    observed = np.array(data.observed)
    observed[i:] = False
    shorter = SeriesOnGrid(
        times, gaps, np.asarray(size), np.minimum(data.node, size - 1), data.y, observed, data.errors, data.inputs
    )
    return eqx.tree_at(lambda p: p.data, whole, shorter)


def _start(post: Any, i: int) -> Sites:
    """Return the sites of a posterior without those of the i-th and later observations.

    After the last observation that is left, the drift is linearised as it is there, and there are no dense sites.
    """
    target, known = post.target, int(post.node[i - 1])

    def held(a: np.ndarray) -> np.ndarray:
        return np.asarray(a)[..., np.minimum(np.arange(a.shape[-1]), max(known - 1, 0))]

    def cut(part: Any, first: int) -> Any:
        return jax.tree.map(lambda a: np.where(np.arange(a.shape[-1]) < first, a, 0.0), part)

    base = jax.tree.map(held, target.base)
    right: DenseSites | None = None if target.right is None else cut(target.right, known)
    return Sites(base, cut(target.dense, known), cut(target.data, i), right)
