"""The objectives of learning and their gradients in the free parameters θ.

- standard: L(q_k, θ) with q_k held fixed.
- modified: l(θ) = L(η_L(θ) + ψ(Λ) + φ(λ), θ) with the sites held fixed and the base p_L(θ) the linearisation of f_θ at
  q_k, with its full gradient. The sites are what q_k has beyond its base, ψ(Λ) + φ(λ) = η_k − η_L(θ_k), so that
  l(θ_k) = L(q_k, θ_k) also where the E-step stopped early. The part of the gradient that goes through q is
  ⟨dη_L/dθ, ∇_ηL⟩, and ∇_ηL = F r is one tangent pass of the smoother: nothing is differentiated backwards through the
  chain.
- profile: max_q L(q, θ); by the envelope theorem its gradient is that of `standard` at the optimal q.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._compile import compiled
from girsanov._types import Array
from girsanov.chain.blocks import inverse
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain, inner
from girsanov.chain.smoother import Engine, Smoothed, smooth, tangent
from girsanov.inference.expectations import drift_expectations
from girsanov.inference.objective import Problem, compose, evaluate
from girsanov.learning.parameters import Spec, free_part, insert, split
from girsanov.sites import Linearisation, base_chain


class Expansion(NamedTuple):
    """q_k of the last E-step: its chain, its moments, and the linearisation Π_{q_k}[f] at the parameters of then."""

    eta: NaturalChain
    moments: Moments
    base: Linearisation


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
    base = drift_expectations(problem.model.drift, Q_inv, problem.rule, q, problem.times[:-1], problem.gaps).base
    valid = problem.in_chain[1:]
    return Linearisation(jnp.where(valid, base.A, 0.0), jnp.where(valid, base.b, 0.0))


def _standard(theta, spec: Spec, problem: Problem, q: Moments, log_det, priors: dict):
    here = with_parameters(spec, theta, problem)
    elbo, _ = evaluate(here, Smoothed(q, log_det, jnp.asarray(True)))
    return elbo + log_prior(spec, theta, priors)


def _base_chain(problem: Problem, base: Linearisation) -> NaturalChain:
    return base_chain(problem.model, base, problem.gaps, problem.in_chain[1:])


def _modified(theta, theta_k, spec: Spec, problem: Problem, q_k: Expansion, priors: dict, engine: Engine):
    here = with_parameters(spec, theta, problem)
    base = linearise(here, q_k.moments)
    sites = q_k.eta - _base_chain(with_parameters(spec, theta_k, problem), q_k.base)
    eta = _base_chain(here, base) + sites
    smoothed = jax.lax.stop_gradient(smooth(eta, engine))
    elbo, target = evaluate(here, smoothed)
    r = jax.lax.stop_gradient(compose(here, target) - eta)
    F_r = jax.lax.stop_gradient(tangent(jax.lax.stop_gradient(eta), r, engine))
    through_q = inner(eta, F_r)
    value = elbo + (through_q - jax.lax.stop_gradient(through_q)) + log_prior(spec, theta, priors)
    return value, (base, eta, smoothed.ok)


@compiled
def standard_value_and_grad(theta, spec: Spec, problem: Problem, q: Moments, log_det, priors: dict):
    return jax.value_and_grad(_standard)(theta, spec, problem, q, log_det, priors)


@compiled
def modified_value_and_grad(theta, theta_k, spec: Spec, problem: Problem, q_k: Expansion, priors: dict, engine):
    """(l(θ), (base at θ, chain at θ, whether it is a density)), gradient."""
    return jax.value_and_grad(_modified, has_aux=True)(theta, theta_k, spec, problem, q_k, priors, engine)
