"""What is computed at every draw of the parameters: predictions, scores of the observations, and the evidence.

Draws of `gv.sample_parameters` follow the bound, not the evidence. With unbiased estimates p̂ of the evidence, the
weights p̂(y | θ)/exp(bound) turn them into draws of the model's own posterior. The estimates are those of a particle
filter that q guides: its messages from later observations are raised to a power below one, so that particles also go
where q does not.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.compile import compiled
from girsanov._core.types import Array
from girsanov._core.weights import pareto_smoothed
from girsanov.baselines.particle_filter import particle_filter
from girsanov.baselines.proposals import guided
from girsanov.chain.moments import Moments
from girsanov.chain.sampling import sample
from girsanov.chain.transitions import transitions
from girsanov.data.on_grid import SeriesOnGrid
from girsanov.inference.continuous_bound import ContinuousSites
from girsanov.inference.functional import Solution
from girsanov.inference.sites import Sites
from girsanov.learning.target import Target
from girsanov.model.path_model import exact_on_nodes, on_nodes
from girsanov.result.leave_out import without_own_site

_TRUST = 0.8  # power of q's messages: less wastes particles, and with one the filter misses what q misses
_TAIL = 0.7  # weights with a larger Pareto k̂ have too heavy a tail
_FEWEST = 100  # smallest effective number of draws that is trusted
_SHIFT, _RATIO = 0.1, 0.1  # the bound is trusted up to this change of a mean, in standard deviations, and of these


@compiled
def predictions(target: Target, theta: Float[Array, " P"], solution: Solution, key: Any):
    """Return log p(yᵢ | y₋ᵢ, θ) of every observation, and observations drawn at a path that is drawn from q.

    The law of the state without yᵢ is q divided by its site. Where that is no density, the value is minus infinity.
    """
    posed = target.posed(theta)
    observation, data, q = posed.model.observation, posed.data, solution.moments
    rows = data.rows
    scores = without_own_site(observation, data, q, solution.sites.data)
    path_key, noise_key = jax.random.split(key)
    path = sample(q.m, transitions(solution.natural), path_key, 1)[0]
    drawn = observation.sample(jax.random.split(noise_key, len(rows.t)), rows.t, path[data.node])
    return scores, drawn


@compiled
def log_evidence(target: Target, data: SeriesOnGrid, theta, solution: Solution, key: Any, n: int, resample: Any):
    """Return the log of an unbiased estimate of p(y | θ), by a filter of n particles; `data` is without padding."""
    model, N, q, sites = target.posed(theta).model, data.times.shape[0], solution.moments, solution.sites
    q = Moments(_first(q.m, N), _first(q.S, N), _first(q.C, N - 1))
    if isinstance(sites, ContinuousSites):
        base, (dense, right) = _first(sites.base, N), _first((sites.left, sites.right), N - 1)
        path = exact_on_nodes(model, data, base)
        sites = Sites(base, dense, sites.data, right)
    else:
        path = on_nodes(model, jax.tree.map(jnp.asarray, data))
        sites = Sites(_first(sites.base, N - 1), _first(sites.dense, N - 1), sites.data)
    found = particle_filter(path, guided(path, q, sites, _TRUST), key, n, resample)
    return jnp.where(jnp.isnan(found.log_evidence), -jnp.inf, found.log_evidence)


def _first(tree: Any, n: int) -> Any:
    return jax.tree.map(lambda a: a[..., :n], tree)


class Correction(NamedTuple):
    """The weights of all draws, and whether to trust them.

    Attributes:
        log_weights: logarithms of the weights p̂(y | θ)/exp(bound) as they are, (chains, draws).
        weights: weights with a smoothed tail, which add up to one, (chains, draws).
        k_hat: Pareto shape k̂ of the tail.
        effective: effective number of weighted draws: (Σw)²/Σw² times the efficiency of the chains.
        verdict: "trust the bound", "trust the corrected posterior" or "trust neither".
        message: the reasons for the verdict.
    """

    log_weights: np.ndarray
    weights: np.ndarray
    k_hat: float
    effective: float
    verdict: str
    message: str


def correct(log_weights: np.ndarray, values: np.ndarray, efficiency: float) -> Correction:
    """Return the correction, from log weights (chains, draws) and the values of the parameters (chains, draws, P).

    `efficiency` is the share of independent draws among all.
    """
    if not np.isfinite(log_weights).any():
        weights = np.full(log_weights.shape, 1.0 / log_weights.size)
        message = "every particle filter lost all its particles: raise particles="
        return Correction(log_weights, weights, float("inf"), 0.0, "trust neither", message)
    weights, k_hat = _smoothed(log_weights)
    effective = efficiency / float((weights**2).sum())
    shift, ratio = _moved(values, weights)
    seen = f"k̂ = {k_hat:.2f}, {effective:.0f} effective draws"
    change = f"the correction moves means by up to {shift:.2f} sd and multiplies sds by {ratio:.2f} where most"
    if not (k_hat < _TAIL and effective >= _FEWEST):
        verdict = "trust neither"
        message = (
            f"{seen}: the weights are too uneven to correct the draws. Raise particles= or draws=; where q is far from "
            "the posterior over paths, use fewer or other parameters, or girsanov.baselines"
        )
    elif shift < _SHIFT and abs(np.log(ratio)) < _RATIO:
        verdict, message = "trust the bound", f"{seen}; {change}, which is little"
    else:
        verdict, message = "trust the corrected posterior", f"{seen}; {change}"
    return Correction(log_weights, weights, k_hat, effective, verdict, message)


def _smoothed(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the weights with the tail smoothed by a Pareto distribution, and its shape k̂."""
    logs, k_hat = pareto_smoothed(log_weights.ravel())
    weights = np.where(np.isneginf(log_weights.ravel()), 0.0, np.exp(logs - logs.max()))
    return (weights / weights.sum()).reshape(log_weights.shape), k_hat


def _moved(values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Return by how much the weights move a mean, in standard deviations, and the ratio of sds farthest from one."""
    flat, w = values.reshape(-1, values.shape[-1]), weights.ravel()
    sd, mean = flat.std(0), w @ flat
    ratio = np.sqrt(w @ (flat - mean) ** 2) / sd
    return float((np.abs(mean - flat.mean(0)) / sd).max()), float(ratio[np.argmax(np.abs(np.log(ratio)))])


def resampled(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return indices of draws, as many as there are, drawn systematically by their weights and shuffled."""
    n = weights.size
    places = (np.arange(n) + rng.uniform()) / n
    return rng.permutation(np.minimum(np.searchsorted(np.cumsum(weights.ravel()), places), n - 1))


def noise_of(logs: np.ndarray, again: np.ndarray) -> float:
    """Return the standard deviation of log p̂ at given parameters, from two estimates at several of them."""
    both = np.isfinite(logs) & np.isfinite(again)
    return float(np.sqrt(0.5 * np.mean((logs - again)[both] ** 2))) if both.any() else float("inf")
