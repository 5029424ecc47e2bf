"""The evidence bound of a discretised model, and the natural parameters that its gradient asks for.

    L(q) = E_q log p(x) + Σ_i E_q log p(y_i | x_i) + H[q],    η ← (1 − ρ) η + ρ g(q),   g = ∇_μ(L − H)

g(q) is the chain of the linearised drift, plus dense sites Δ·(ℓ, Γ) on single states, plus data sites.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from girsanov._core.types import Array
from girsanov.chain import blocks
from girsanov.chain.blocks import inverse
from girsanov.chain.linear_sde import Linearisation
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain
from girsanov.chain.smoother import Smoothed
from girsanov.inference.expectations import drift_expectations
from girsanov.inference.sites import DataSites, DenseSites, Sites, base_chain
from girsanov.model.quadrature import Rule

LOG_2PI = 1.8378770664093453


class Problem(eqx.Module):
    """A model on a grid with its data: what the compiled code sees.

    Grids are padded at the end, so that series of one length share one compiled program wherever their observations
    fall: a node at or beyond `size` is not part of the chain.

    Inside a user's program the model comes apart from the rest: there `model` is None until it is put in, and `method`
    has the settings to solve with.
    """

    model: Any  # a `Model`, or None
    times: Float[Array, " N"]
    gaps: Float[Array, " M"]
    size: Int[Array, ""]
    node: Int[Array, " n"]
    y: Float[Array, "n D"]
    observed: Bool[Array, "n D"]
    rule: Rule
    method: Any = eqx.field(static=True, default=None)

    @property
    def in_chain(self) -> Bool[Array, " N"]:
        return jnp.arange(self.times.shape[0]) < self.size


def evaluate(problem: Problem, smoothed: Smoothed) -> tuple[Float[Array, ""], Sites]:
    """The bound at q, and the sites of g(q)."""
    q, model = smoothed.moments, problem.model
    d = q.m.shape[0]
    valid = problem.in_chain[1:]
    Q_inv, Q_pivots = inverse(jnp.asarray(model.diffusion))
    drift = drift_expectations(model.drift, Q_inv, problem.rule, q, problem.times[:-1], problem.gaps, valid)
    constant = -0.5 * (d * (LOG_2PI + jnp.log(problem.gaps)) + jnp.log(Q_pivots).sum())
    transitions = jnp.where(valid, drift.quadratic + constant, 0.0).sum()
    data, log_likelihood = data_expectations(problem, q)
    entropy = 0.5 * (problem.size * d * (1.0 + LOG_2PI) - smoothed.log_det)
    elbo = transitions + log_likelihood + initial_term(problem, q) + entropy
    base = Linearisation(_masked(drift.base.A, valid), _masked(drift.base.b, valid))
    dense = DenseSites(_masked(drift.sites.potential, valid), _masked(drift.sites.precision, valid))
    return elbo, Sites(base, dense, data)


def _masked(a: Float[Array, "... M"], valid: Bool[Array, " M"]) -> Float[Array, "... M"]:
    return jnp.where(valid, a, 0.0)


def initial_term(problem: Problem, q: Moments) -> Float[Array, ""]:
    """E log N(x_0; m₀, P₀)."""
    initial = problem.model.initial_state()
    P_inv, pivots = inverse(jnp.asarray(initial.cov))
    e = q.m[:, 0] - initial.mean
    quad = e @ P_inv @ e + (P_inv * q.S[:, :, 0]).sum()
    return -0.5 * (quad + e.shape[0] * LOG_2PI + jnp.log(pivots).sum())


def data_expectations(problem: Problem, q: Moments) -> tuple[DataSites, Float[Array, ""]]:
    """Σ E log p(y|Hx) and its μ-gradient: with z = Hx, potential Hᵀ(g_m − 2g_V z̄), precision −2Hᵀg_V H."""
    H = problem.model.emission
    m, S = q.m[:, problem.node].T, jnp.moveaxis(q.S[:, :, problem.node], 2, 0)
    z, V = m @ H.T, H @ S @ H.T
    value, g_m, g_V = jax.vmap(problem.model.likelihood.expected)(problem.y, problem.observed, z, V)
    precision = -2.0 * jnp.einsum("jd,njk,ke->den", H, g_V, H)
    potential = ((g_m - 2.0 * jnp.einsum("njk,nk->nj", g_V, z)) @ H).T
    return DataSites(potential, precision), value.sum()


def compose(problem: Problem, sites: Sites) -> NaturalChain:
    """η_L + ψ(Λ) + φ(λ), and standard normals, coupled to nothing, on the padding."""
    inside = problem.in_chain
    chain, dense, data = base_chain(problem.model, sites.base, problem.gaps, inside[1:]), sites.dense, sites.data
    J = chain.J + ~inside * blocks.eye_like(chain.J)
    h = chain.h.at[:, :-1].add(problem.gaps * dense.potential).at[:, problem.node].add(data.potential)
    J = J.at[..., :-1].add(problem.gaps * dense.precision).at[..., problem.node].add(data.precision)
    return NaturalChain(h, J, chain.K)


def starting_sites(problem: Problem) -> Sites:
    """Brownian motion through a rough Gaussian reading of the data: a density for every model."""
    d, M, H = problem.model.dim, problem.gaps.shape[0], jnp.asarray(problem.model.emission)
    z, precision = jax.vmap(problem.model.likelihood.start)(problem.y)
    precision = jnp.where(problem.observed, precision, 0.0)
    potential = (jnp.where(problem.observed, z * precision, 0.0) @ H).T
    zero_v, zero_m = jnp.zeros((d, M)), jnp.zeros((d, d, M))
    return Sites(
        Linearisation(zero_m, zero_v),
        DenseSites(zero_v, zero_m),
        DataSites(potential, jnp.einsum("jd,nj,je->den", H, precision, H)),
    )
