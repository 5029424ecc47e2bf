"""The log density that `gv.sample_parameters` samples: max_q of the bound plus log priors, in whitened coordinates.

The sampler works on coordinates u with θ = θ₀ + S u, where θ are the free coordinates of the parameters, θ₀ is the mode
and S the root of the inverse curvature there. A prior is a density of the value of its parameter, so the density of θ
has the Jacobian of the map from θ to the values.

Every evaluation is one inference. It starts from q's sites as a quadratic function of u, which is fitted to solutions
at a few points around the mode. The start depends on θ alone, so the density is a function of θ whatever was evaluated
before; the run goes on until it meets its tolerance, from whichever start.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.types import Array
from girsanov.inference.envelope import bound_at, value_and_grad_at
from girsanov.inference.functional import Problem, Solution, solve
from girsanov.inference.objective import Posed, compose
from girsanov.learning.objectives import log_prior
from girsanov.learning.parameters import Spec, constrained_entries, insert
from girsanov.model.model import Model

_CROSSED = 6  # up to this many parameters, the quadratic has the products of two coordinates too
_APART = 1.5  # distance of the fitted solutions from the mode, in standard deviations
_FARTHEST = 4.0  # beyond this distance, starts are those of the point at this distance in the same direction


class Target(eqx.Module):
    """The parameters to sample, and what their density depends on.

    Attributes:
        spec: the parameters.
        model: the model, with the values of all parameters that are not sampled.
        problem: the data on the grid and the settings of inference.
        priors: a prior of every parameter, by path.
    """

    spec: Spec = eqx.field(static=True)
    model: Model
    problem: Problem
    priors: dict[str, Any]

    def model_at(self, theta: Float[Array, " P"]) -> Model:
        """Return the model with the parameters θ."""
        return insert(self.spec, theta, self.model)

    def posed(self, theta: Float[Array, " P"]) -> Posed:
        """Return the problem with the parameters θ in its model, in JAX arrays."""
        return jax.tree.map(
            lambda a: jnp.asarray(a) if eqx.is_array_like(a) else a, self.problem.of(self.model_at(theta))
        )

    def log_prior(self, theta: Float[Array, " P"]) -> Float[Array, ""]:
        """Return the log prior density of θ: that of the values, and the log of the volume that θ is mapped to."""
        slopes = jax.jacfwd(lambda t: constrained_entries(self.spec, t))(theta)
        return log_prior(self.spec, theta, self.priors) + jnp.linalg.slogdet(slopes)[1]


class Evaluation(NamedTuple):
    """The log density at θ and its gradient in θ, with the solution that they come from.

    The density is zero where the inference has not converged: the value is minus infinity and the gradient zero.
    """

    value: Float[Array, ""]
    grad: Float[Array, " P"]
    solution: Solution


def evaluate(target: Target, starts: Solution, theta: Float[Array, " P"]) -> Evaluation:
    """Evaluate the log density at θ, by inference from the first of the stacked starts that leads to convergence."""
    model, tries = target.model_at(theta), len(starts.elbo)

    def attempt(carry):
        i, _ = carry
        return i + 1, solve(model, target.problem, jax.tree.map(lambda a: a[i], starts))

    def unsolved(carry):
        i, last = carry
        return (i == 0) | ((i < tries) & ~last.converged)

    first = jax.tree.map(lambda a: a[0], starts)
    _, solution = jax.lax.while_loop(unsolved, attempt, (jnp.asarray(0), first))
    return _evaluated(target, theta, solution)


def _evaluated(target: Target, theta: Float[Array, " P"], solution: Solution) -> Evaluation:
    continuous = target.problem.method.time == "continuous"
    q = solution.sites if continuous else solution.moments
    prior, prior_grad = jax.value_and_grad(target.log_prior)(theta)
    _, grad = value_and_grad_at(lambda t: bound_at(target.posed(t), q), theta, q)
    value, grad = solution.elbo + prior, grad + prior_grad
    ok = solution.converged & jnp.isfinite(value) & jnp.isfinite(grad).all()
    return Evaluation(jnp.where(ok, value, -jnp.inf), jnp.where(ok, grad, 0.0), solution)


class Reference(eqx.Module):
    """The coordinates u, and a prediction of the solution at any u from which inference starts.

    Attributes:
        centre: θ₀.
        root: S, (P, P).
        solution: the solution at θ₀.
        sites: coefficients of the quadratic function of u that predicts the sites, stacked; those of `basis`, or of the
            constant alone where there is no such function.
    """

    centre: Float[Array, " P"]
    root: Float[Array, "P P"]
    solution: Solution
    sites: Any

    def theta(self, u: Float[Array, " P"]) -> Float[Array, " P"]:
        """Return the free coordinates θ."""
        return self.centre + self.root @ u

    def starts(self, target: Target, u: Float[Array, " P"]) -> Solution:
        """Return two starts of inference, stacked: the predicted solution, and that at θ₀."""
        b = basis(u / jnp.maximum(1.0, jnp.linalg.norm(u) / _FARTHEST))
        sites = jax.tree.map(lambda c: jnp.tensordot(b[: c.shape[0]], c, 1), self.sites)
        if target.problem.method.time == "continuous":
            predicted = eqx.tree_at(lambda s: s.sites, self.solution, sites)
        else:
            chain = compose(target.posed(self.theta(u)), sites)
            predicted = eqx.tree_at(lambda s: s.natural, self.solution, chain)
        return jax.tree.map(lambda a, b: jnp.stack([jnp.asarray(a), jnp.asarray(b)]), predicted, self.solution)


def basis(u: Float[Array, " P"]) -> Float[Array, " K"]:
    """Return 1, the coordinates, their squares, and with few coordinates the products of two."""
    i, j = _pairs(len(u))
    return jnp.concatenate([jnp.ones(1), u, u**2, u[i] * u[j]])


def design(P: int) -> Float[np.ndarray, "K P"]:
    """Return as many points u as `basis` has functions, the first of them zero, which determine a quadratic."""
    eye, (i, j) = np.eye(P), _pairs(P)
    diagonal = (eye[i] + eye[j]) / math.sqrt(2.0)
    return _APART * np.concatenate([np.zeros((1, P)), eye, -eye, diagonal])


def _pairs(P: int) -> tuple[np.ndarray, np.ndarray]:
    i, j = np.triu_indices(P, 1)
    return (i, j) if P <= _CROSSED else (i[:0], j[:0])
