"""The objectives of learning and their gradients in the free parameters θ. q_k is the result of the last E-step.

- standard: L(q_k, θ) with q_k held fixed.
- modified: l(θ) = L(η(θ), θ) with η(θ) = η_L(θ) + φ(λ_θ) + ψ(Λ), and its full gradient. The base p_L(θ) is the
  linearisation of f_θ at q_k. The data sites λ_θ are those of p_θ(y | x) at q_k; they are fixed unless the likelihood
  is learnt, and the noise of a Gaussian likelihood enters exactly. The dense sites are fixed at the rest of q_k,
  ψ(Λ) = η_k − η_L(θ_k) − φ(λ_k), so that l(θ_k) = L(q_k, θ_k) also where the E-step stopped early. The part of the
  gradient that goes through q is ⟨dη/dθ, ∇_ηL⟩, and one tangent pass of the smoother gives ∇_ηL = F r, so the chain
  need not be differentiated backwards.
- profile: max_q L(q, θ). By the envelope theorem its gradient is that of `standard` at the optimal q.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.compile import compiled
from girsanov._core.types import Array
from girsanov.chain.linear_sde import Linearisation
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain, inner
from girsanov.chain.smoother import Engine, smooth, tangent
from girsanov.inference.envelope import Fixed, bound_at, value_and_grad_at
from girsanov.inference.expectations import drift_expectations
from girsanov.inference.objective import Posed, compose, data_expectations, evaluate
from girsanov.inference.sites import DataSites, base_chain, data_chain
from girsanov.learning.parameters import Spec, free_part, insert, split


class Expansion(NamedTuple):
    """The result q_k of the last E-step.

    Attributes:
        eta, moments: its natural parameters and its moments.
        base: the drift linearised at q_k, Π_{q_k}[f], with the parameters θ_k of that E-step.
        data: the data sites at q_k, with the same parameters.
    """

    eta: NaturalChain
    moments: Moments
    base: Linearisation
    data: DataSites


def with_parameters(spec: Spec, theta: Float[Array, " P"], problem: Posed) -> Posed:
    """Return the problem with the parameters θ in its model."""
    return eqx.tree_at(lambda p: p.stated, problem, insert(spec, theta, problem.stated))


def log_prior(spec: Spec, theta: Float[Array, " P"], priors: dict) -> Float[Array, ""]:
    """Return the sum of the log prior densities of the parameters.

    They are densities of the values, without a Jacobian of the free coordinates, so the mode is that of the values.
    """
    values, total = split(spec, theta), jnp.zeros(())
    for p in spec:
        if p.path in priors:
            total = total + jnp.sum(priors[p.path].log_prob(free_part(p, values[p.path])))
    return total


def linearise(problem: Posed, q: Moments) -> Linearisation:
    """Return the drift linearised at q, Π_q[f], with zeros on the padding."""
    noise = problem.model.noise
    valid, times = problem.data.in_chain[1:], problem.data.at_nodes[:-1]
    base = drift_expectations(
        problem.model.drift, noise.precision, problem.rule, q, times, problem.data.gaps, valid
    ).base
    return Linearisation(jnp.where(valid, base.A, 0.0), jnp.where(valid, base.b, 0.0))


def _known(problem: Posed, base: Linearisation, data: DataSites) -> NaturalChain:
    """Return η_L + φ(λ), the chain of the base process and the data sites."""
    chain = base_chain(problem.model, base, problem.data.gaps, problem.data.in_chain[1:])
    return chain + data_chain(data, problem.data.node, chain)


def _modified(theta, theta_k, spec: Spec, problem: Posed, q_k: Expansion, priors: dict, engine: Engine):
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
def standard_value_and_grad(theta, spec: Spec, problem: Posed, q: Fixed, priors: dict):
    """Return L(q, θ) plus the log prior with q held fixed, and its gradient in θ.

    In continuous time q is given by the sites of a converged run, and the value is the profile of the bound.
    """

    def value(t):
        return bound_at(with_parameters(spec, t, problem), q) + log_prior(spec, t, priors)

    return value_and_grad_at(value, theta, q)


@compiled
def modified_value_and_grad(theta, theta_k, spec: Spec, problem: Posed, q_k: Expansion, priors: dict, engine):
    """Return (l(θ), (base, data sites, chain at θ, whether it is a density)) and the gradient of l in θ."""
    return jax.value_and_grad(_modified, has_aux=True)(theta, theta_k, spec, problem, q_k, priors, engine)
