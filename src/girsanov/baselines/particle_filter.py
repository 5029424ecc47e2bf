"""Particle filters on a grid: one that estimates the evidence, and the conditional one of CPF-AS.

The conditional particle filter with ancestor sampling, CPF-AS (Lindsten, Jordan and Schön 2014; Svensson, Schön and Kok
2015), takes a path and returns another one; it leaves the posterior over paths invariant. One particle follows the old
path x'. Whenever the particles are resampled, a new past of this particle is drawn from the pasts of all particles,
with probabilities ∝ w_m γ(x_{0:m}, x'_{m+1:}) / γ_m(x_{0:m}).

In continuous time there is one difference: the particles are resampled only where their weights have become uneven. If
the noise is singular, the density of a step is so narrow that hardly any past but its own fits x', and then resampling
leaves few pasts to choose from. Whether to resample follows from the weights, so the posterior stays invariant.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array as JaxArray
from jaxtyping import Bool, Float

from girsanov._core.types import Array
from girsanov.baselines.proposals import Proposal
from girsanov.model.path_model import PathModel

_UNEVEN = 0.5  # in continuous time, particles are resampled where the effective share of them is below this


class Filtered(NamedTuple):
    """A path drawn from the weighted particles, and the log of the filter's unbiased estimate of the evidence."""

    path: Float[Array, "N d"]
    log_evidence: Float[Array, ""]


def _start(path: PathModel, proposal: Proposal, x, power):
    return proposal.log_initial_weight(path, x) + proposal.log_psi(path, 0, x, power)


def _rest(path: PathModel, proposal: Proposal, node, x, power):
    """Return log of p(y_m | x)^τ/ψ_m(x), the factor by which γ_{m+1} differs from γ_m at node m; τ is `power`."""
    return power * path.log_likelihood(node, x) - proposal.log_psi(path, node, x, power)


def _is_uneven(path: PathModel, log_w: Float[Array, " n"]):
    """Return whether to resample particles with these weights, at a node where that is foreseen."""
    if path.linear is None:
        return True
    w = jnp.exp(log_w - log_w.max())
    return ~(w.sum() ** 2 >= _UNEVEN * len(log_w) * (w**2).sum())


def _inverse_cdf(log_w: Float[Array, " n"], u: Float[Array, " k"]):
    """Return for each u in [0, 1) the index of the particle whose interval of the cumulative weights contains u.

    Independent u give multinomial resampling, equally spaced ones systematic resampling. The function of cuthbertlib is
    not used, because it runs as a callback outside the 64-bit context of this library.
    """
    total = jax.lax.associative_scan(jnp.add, jnp.exp(log_w - log_w.max()))
    index = jnp.searchsorted(total, u * total[-1], side="right")
    return jnp.minimum(index, len(log_w) - 1).astype(int)


def particle_filter(
    path: PathModel, proposal: Proposal, key: JaxArray, n: int, resample: Bool[Array, " M"], power: Any = 1.0
) -> Filtered:
    """Run a particle filter with n particles; they are resampled systematically, at nodes where `resample` is True.

    `power` is the exponent τ of the likelihood.
    """
    M, d = path.data.gaps.shape[0], path.model.dim
    moves, picks, last_pick = jax.random.split(key, 3)
    xi, u = jax.random.normal(moves, (M + 1, n, d)), jax.random.uniform(picks, (M,))
    x = proposal.initial(path, xi[0])

    def step(carry, this):
        x, log_w, total = carry
        node, do, xi, u = this

        def resampled():
            index = _inverse_cdf(log_w, (u + jnp.arange(n)) / n)
            return index, jnp.zeros(n), total + logsumexp(log_w) - jnp.log(n)

        index, log_w, total = jax.lax.cond(
            do & _is_uneven(path, log_w), resampled, lambda: (jnp.arange(n), log_w, total)
        )
        old = x[index]
        x = proposal.propose(path, node, old, xi)
        log_w = log_w + _rest(path, proposal, node, old, power) + proposal.log_weight(path, node, old, x)
        return (x, log_w + proposal.log_psi(path, node + 1, x, power), total), (x, index)

    begin = (x, _start(path, proposal, x, power), jnp.zeros(()))
    (last, log_w, total), (rest, ancestors) = jax.lax.scan(step, begin, (jnp.arange(M), resample, xi[1:], u))
    log_w = log_w + _rest(path, proposal, M, last, power)
    drawn = _trace(jax.random.categorical(last_pick, log_w), jnp.concatenate([x[None], rest]), ancestors)
    return Filtered(drawn, total + logsumexp(log_w) - jnp.log(n))


def conditional_sweep(
    path: PathModel,
    proposal: Proposal,
    key: JaxArray,
    reference: Float[Array, "N d"],
    n: int,
    resample: Bool[Array, " M"],
    power: Any = 1.0,
) -> Float[Array, "N d"]:
    """Draw a path from the Markov kernel of CPF-AS, given the path `reference`.

    Particle 0 follows the reference; the others are resampled multinomially. `power` is the exponent τ of the
    likelihood.
    """
    M, d = path.data.gaps.shape[0], path.model.dim
    moves, picks, last_pick = jax.random.split(key, 3)
    xi, u = jax.random.normal(moves, (M + 1, n, d)), jax.random.uniform(picks, (M, n))
    x = proposal.initial(path, xi[0]).at[0].set(reference[0])

    def step(carry, this):
        x, log_w = carry
        node, do, xi, u, after = this
        rest = _rest(path, proposal, node, x, power)

        def resampled():
            past = _inverse_cdf(log_w + rest + path.log_step(node, x, after), u[:1])
            return _inverse_cdf(log_w, u).at[0].set(past[0]), jnp.zeros(n)

        do &= _is_uneven(path, log_w)
        index, log_w = jax.lax.cond(do, resampled, lambda: (jnp.arange(n), log_w))
        old = x[index]
        x = proposal.propose(path, node, old, xi).at[0].set(after)
        log_w = log_w + rest[index] + proposal.log_weight(path, node, old, x)
        return (x, log_w + proposal.log_psi(path, node + 1, x, power)), (x, index)

    nodes = (jnp.arange(M), resample, xi[1:], u, reference[1:])
    (last, log_w), (rest, ancestors) = jax.lax.scan(step, (x, _start(path, proposal, x, power)), nodes)
    log_w = log_w + _rest(path, proposal, M, last, power)
    return _trace(jax.random.categorical(last_pick, log_w), jnp.concatenate([x[None], rest]), ancestors)


def _trace(index, particles: Float[Array, "N n d"], ancestors) -> Float[Array, "N d"]:
    """Return the path that ends at the particle with this index."""

    def back(index, node):
        x, parent = node
        return parent[index], x[index]

    first, path = jax.lax.scan(back, index.astype(int), (particles[1:], ancestors), reverse=True)
    return jnp.concatenate([particles[0][first][None], path])
