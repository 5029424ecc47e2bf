"""Predictive densities of observations that a posterior has not seen: each one given all others, or given those before.

Both are integrals over the Gaussian law of the state. Without observation i that law is q divided by its site; before
it, q is inferred again from the earlier observations alone, on the grid up to that time.
"""

import dataclasses
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


def _cavity(data: SeriesOnGrid, q: Moments, sites: DataSites):
    """Return mean, covariance and whether it is a density, of q without its own site at every observation."""
    m, S = q.m[:, data.node].T, jnp.moveaxis(q.S[..., data.node], -1, 0)
    J, h = jnp.moveaxis(sites.precision, -1, 0), sites.potential.T
    precision = jnp.linalg.inv(S)
    rest = precision - J
    ok = (jnp.linalg.eigvalsh(rest) > 0.0).all(-1)
    S_rest = jnp.linalg.inv(jnp.where(ok[:, None, None], rest, precision))
    S_rest = 0.5 * (S_rest + jnp.swapaxes(S_rest, 1, 2))
    return jnp.einsum("nij,nj->ni", S_rest, jnp.einsum("nij,nj->ni", precision, m) - h), S_rest, ok


def without_own_site(observation: Observation, data: SeriesOnGrid, q: Moments, sites: DataSites) -> Float[Array, " n"]:
    """Return log p(yᵢ | y₋ᵢ) of every observation, minus infinity where q without its site is no density."""
    m, S, ok = _cavity(data, q, sites)
    return jnp.where(ok, observation.log_predictives(data.rows, m, S), -jnp.inf)


@compiled
def _one_out(model: Any, data: SeriesOnGrid, q: Moments, sites: DataSites):
    q, sites = jax.tree.map(jnp.asarray, (q, sites))
    return without_own_site(model.observation, jax.tree.map(jnp.asarray, data), q, sites)


@float64
def leave_one_out(post: Any) -> Float[np.ndarray, " n"]:
    """Return log p(yᵢ | y₋ᵢ) under a posterior, for the observations with a value that is not missing."""
    scores = _one_out(post.model.latent, on_grid(post.series, post.grid), post.moments, post.target.data)
    return np.asarray(scores)[post.series.observed.any(1)]


class Laws(NamedTuple):
    """Gaussian laws of the latent state at some observations, each without that observation.

    Attributes:
        index: indices of the observations, (n,).
        mean: (n, d).
        cov: (n, d, d).
        good: whether the law was found: the run converged, or q without the site is a density; (n,).
    """

    index: np.ndarray
    mean: np.ndarray
    cov: np.ndarray
    good: np.ndarray


@compiled
def _cavities(data: SeriesOnGrid, q: Moments, sites: DataSites):
    return _cavity(*jax.tree.map(jnp.asarray, (data, q, sites)))


@float64
def laws_left_out(post: Any) -> Laws:
    """Return the laws given all other observations, q divided by the site of each."""
    m, S, ok = _cavities(on_grid(post.series, post.grid), post.moments, post.target.data)
    seen = np.flatnonzero(post.series.observed.any(1))
    return Laws(seen, np.asarray(m)[seen], np.asarray(S)[seen], np.asarray(ok)[seen])


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
    laws = laws_ahead(post, cut_indices(post.series, cuts))
    rows = on_grid(post.series, post.grid).rows
    scores = [
        float(_predicted(post.model.latent, jax.tree.map(lambda a, i=i: a[i : i + 1], rows), m[None], S[None])[0])
        for i, m, S in zip(laws.index, laws.mean, laws.cov, strict=True)
    ]
    return Ahead(laws.index, np.array(scores), laws.good)


@float64
def laws_ahead(post: Any, index: np.ndarray, say: Any = None) -> Laws:
    """Return the laws given all earlier observations, each by an inference from the sites of the posterior up to there.

    `say` is what shows the progress, or None.
    """
    rule = default_quadrature(post.model.dim).rule(post.model.dim) if post.rule is None else post.rule
    whole, method = Posed(post.model, on_grid(post.series, post.grid), rule), CVIDP(time=post.time)
    means, covs, converged = [], [], []
    for done, i in enumerate(index.tolist()):
        if say is not None:
            say(f"predicting from the past, observation {done + 1} of {len(index)}")
        problem = _before(whole, i)
        run, _ = method.solve(problem, _start(post, i))
        if run.status is Status.BAD_START:
            run, _ = method.solve(problem)
        last = int(problem.data.size) - 1
        means.append(np.asarray(run.moments.m)[:, last])
        covs.append(np.asarray(run.moments.S)[..., last])
        converged.append(run.status is Status.CONVERGED)
    d = post.model.dim
    return Laws(index, np.reshape(means, (-1, d)), np.reshape(covs, (-1, d, d)), np.array(converged, bool))


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
    changes = times, gaps, np.asarray(size), np.minimum(data.node, size - 1), observed
    shorter = dataclasses.replace(
        data, **dict(zip(("times", "gaps", "size", "node", "observed"), changes, strict=True))
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
