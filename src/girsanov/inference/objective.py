"""The evidence bound of a discretised model, and its gradient g in the expectation parameters μ.

    L(q) = E_q log p(x) + Σ_i E_q log p(y_i | x_i) + H[q],    η ← (1 − ρ) η + ρ g(q),   g = ∇_μ(L − H)

g(q) are the natural parameters of a chain: the chain of the linearised drift, plus dense sites Δ·(ℓ, Γ) on single
states, plus data sites. At the optimum they are those of q.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Bool, Float

from girsanov._core.special import LOG_2PI
from girsanov._core.types import Array
from girsanov.chain import blocks
from girsanov.chain.blocks import inverse
from girsanov.chain.divergence import entropy
from girsanov.chain.linear_sde import Linearisation
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain
from girsanov.chain.smoother import Smoothed
from girsanov.data.on_grid import SeriesOnGrid
from girsanov.inference.expectations import drift_expectations
from girsanov.inference.sites import DataSites, DenseSites, Sites, base_chain
from girsanov.model.model import Model
from girsanov.model.quadrature import Rule


class Posed(eqx.Module):
    """The problem that every algorithm works on: a model, the data on a grid, and the rule for expectations of f.

    Attributes:
        stated: the model as the user stated it.
        data: the time grid and the observations on its nodes.
        rule: quadrature nodes and weights for expectations of the drift.
    """

    stated: Model
    data: SeriesOnGrid
    rule: Rule

    @property
    def model(self) -> Model:
        """The model that algorithms work on, in coordinates in which the noise is constant and nothing jumps."""
        return self.series_model.latent

    @property
    def series_model(self) -> Model:
        """The model as stated, with the parameters that the covariates of the series give it, and with its inputs."""
        model = self.stated if self.stated.covariates is None else self.stated.given(self.data.covariates)
        return model.driven_by(self.data.inputs)


def evaluate(problem: Posed, smoothed: Smoothed) -> tuple[Float[Array, ""], Sites]:
    """Return the bound at q, in nats, and the sites of g(q)."""
    q, model = smoothed.moments, problem.model
    d = q.m.shape[0]
    valid = problem.data.in_chain[1:]
    noise = model.noise
    drift = drift_expectations(
        model.drift, noise.precision, problem.rule, q, problem.data.at_nodes[:-1], problem.data.gaps, valid
    )
    constant = -0.5 * (d * (LOG_2PI + jnp.log(problem.data.gaps)) + noise.log_det)
    transitions = jnp.where(valid, drift.quadratic + constant, 0.0).sum()
    data, log_likelihood = data_expectations(problem, q)
    elbo = transitions + log_likelihood + initial_term(problem, q)
    elbo = elbo + entropy(problem.data.size * d, smoothed.log_det)
    base = Linearisation(_masked(drift.base.A, valid), _masked(drift.base.b, valid))
    dense = DenseSites(_masked(drift.sites.potential, valid), _masked(drift.sites.precision, valid))
    return elbo, Sites(base, dense, data)


def _masked(a: Float[Array, "... M"], valid: Bool[Array, " M"]) -> Float[Array, "... M"]:
    return jnp.where(valid, a, 0.0)


def initial_term(problem: Posed, q: Moments) -> Float[Array, ""]:
    """Return E log N(x_0; m₀, P₀) under q."""
    initial = problem.model.initial_state()
    P_inv, pivots = inverse(jnp.asarray(initial.cov))
    e = q.m[:, 0] - initial.mean
    quad = e @ P_inv @ e + (P_inv * q.S[:, :, 0]).sum()
    return -0.5 * (quad + e.shape[0] * LOG_2PI + jnp.log(pivots).sum())


def data_expectations(problem: Posed, q: Moments) -> tuple[DataSites, Float[Array, ""]]:
    """Return the data sites, which are the μ-gradient of Σ E log p(y | x), and that sum."""
    m, S = q.m[:, problem.data.node].T, jnp.moveaxis(q.S[:, :, problem.data.node], 2, 0)
    value, potential, precision = problem.model.observation.sites(problem.data.rows, m, S, problem.rule)
    return DataSites(potential, precision), value.sum()


def compose(problem: Posed, sites: Sites) -> NaturalChain:
    """Return the chain η_L + ψ(Λ) + φ(λ) of these sites; nodes of the padding are independent standard normals."""
    inside = problem.data.in_chain
    chain, dense, data = base_chain(problem.model, sites.base, problem.data.gaps, inside[1:]), sites.dense, sites.data
    J = chain.J + ~inside * blocks.eye_like(chain.J)
    h = chain.h.at[:, :-1].add(problem.data.gaps * dense.potential).at[:, problem.data.node].add(data.potential)
    J = J.at[..., :-1].add(problem.data.gaps * dense.precision).at[..., problem.data.node].add(data.precision)
    return NaturalChain(h, J, chain.K)
