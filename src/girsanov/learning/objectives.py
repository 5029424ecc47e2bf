"""The objectives of learning and their gradients in the free parameters θ.

- standard: L(q_k, θ) with q_k held fixed.
- modified: l(θ) = L(η(θ), θ) with η(θ) = η_L(θ) + φ(λ_θ) + ψ(Λ), and its full gradient: the base p_L(θ) is the
  linearisation of f_θ at q_k, the data sites λ_θ are those of p_θ(y | x) at q_k (fixed unless the likelihood is learnt;
  the noise of a Gaussian one enters exactly), and the dense sites are fixed at what q_k has beyond the two,
  ψ(Λ) = η_k − η_L(θ_k) − φ(λ_k), so that l(θ_k) = L(q_k, θ_k) also where the E-step stopped early. The part of the
  gradient that goes through q is ⟨dη/dθ, ∇_ηL⟩, and ∇_ηL = F r is one tangent pass of the smoother: nothing is
  differentiated backwards through the chain.
- profile: max_q L(q, θ); by the envelope theorem its gradient is that of `standard` at the optimal q.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.compile import compiled
from girsanov._core.types import Array
from girsanov.chain.blocks import inverse
from girsanov.chain.linear_sde import Linearisation
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain, inner
from girsanov.chain.smoother import Engine, Smoothed, smooth, tangent
from girsanov.inference.careful import Path, bound
from girsanov.inference.expectations import drift_expectations
from girsanov.inference.objective import Problem, compose, data_expectations, evaluate
from girsanov.inference.sites import DataSites, base_chain, data_chain
from girsanov.learning.parameters import Spec, free_part, insert, split


class Expansion(NamedTuple):
    """q_k of the last E-step: its chain, its moments, and at the parameters of then Π_{q_k}[f] and the data sites."""

    eta: NaturalChain
    moments: Moments
    base: Linearisation
    data: DataSites


def with_parameters(spec: Spec, theta: Float[Array, " P"], problem: Problem) -> Problem:
    return eqx.tree_at(lambda p: p.model, problem, insert(spec, theta, problem.model))


def log_prior(spec: Spec, theta: Float[Array, " P"], priors: dict) -> Float[Array, ""]:
    """Sum of the log densities of the parameters' values (no Jacobian: the mode is that of the values)."""
    values, total = split(spec, theta), jnp.zeros(())
    for p in spec:
        if p.path in priors:
            total = total + jnp.sum(priors[p.path].log_prob(free_part(p, values[p.path])))
    return total


def linearise(problem: Problem, q: Moments) -> Linearisation:
    """Π_q[f], zero on the padding."""
    Q_inv, _ = inverse(jnp.asarray(problem.model.diffusion))
    valid, times = problem.in_chain[1:], problem.times[:-1]
    base = drift_expectations(problem.model.drift, Q_inv, problem.rule, q, times, problem.gaps, valid).base
    return Linearisation(jnp.where(valid, base.A, 0.0), jnp.where(valid, base.b, 0.0))


def _standard(theta, spec: Spec, problem: Problem, q: Moments, log_det, priors: dict):
    here = with_parameters(spec, theta, problem)
    elbo, _ = evaluate(here, Smoothed(q, log_det, jnp.asarray(True)))
    return elbo + log_prior(spec, theta, priors)


def _known(problem: Problem, base: Linearisation, data: DataSites) -> NaturalChain:
    """η_L + φ(λ)."""
    chain = base_chain(problem.model, base, problem.gaps, problem.in_chain[1:])
    return chain + data_chain(data, problem.node, chain)


def _modified(theta, theta_k, spec: Spec, problem: Problem, q_k: Expansion, priors: dict, engine: Engine):
    here = with_parameters(spec, theta, problem)
    base = linearise(here, q_k.moments)
    data, _ = data_expectations(here, q_k.moments)
    dense = q_k.eta - _known(with_parameters(spec, theta_k, problem), q_k.base, q_k.data)
    eta = _known(here, base, data) + dense
    smoothed = jax.lax.stop_gradient(smooth(eta, engine))
    elbo, target = evaluate(here, smoothed)
    r = jax.lax.stop_gradient(compose(here, target) - eta)
    F_r = jax.lax.stop_gradient(tangent(jax.lax.stop_gradient(eta), r, engine))
    through_q = inner(eta, F_r)
    value = elbo + (through_q - jax.lax.stop_gradient(through_q)) + log_prior(spec, theta, priors)
    return value, (base, data, eta, smoothed.ok)


@compiled
def standard_value_and_grad(theta, spec: Spec, problem: Problem, q: Moments, log_det, priors: dict):
    return jax.value_and_grad(_standard)(theta, spec, problem, q, log_det, priors)


def _careful(theta, spec: Spec, problem: Problem, q: Path, priors: dict):
    return bound(with_parameters(spec, theta, problem), q)[0] + log_prior(spec, theta, priors)


@compiled
def careful_value_and_grad(theta, spec: Spec, problem: Problem, q: Path, priors: dict):
    """`standard_value_and_grad` for a q in square-root form."""
    return jax.value_and_grad(_careful)(theta, spec, problem, q, priors)


@compiled
def modified_value_and_grad(theta, theta_k, spec: Spec, problem: Problem, q_k: Expansion, priors: dict, engine):
    """(l(θ), (base, data sites and chain at θ, whether it is a density)), gradient."""
    return jax.value_and_grad(_modified, has_aux=True)(theta, theta_k, spec, problem, q_k, priors, engine)
