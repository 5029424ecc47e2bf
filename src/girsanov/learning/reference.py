"""The mode of the parameters' posterior, its curvature, and solutions around it: where sampling starts."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from girsanov._core.ascent import lbfgs
from girsanov._core.compile import compiled
from girsanov.inference.functional import Solution, solve
from girsanov.inference.status import Status
from girsanov.learning.parameters import units
from girsanov.learning.target import Evaluation, Reference, Target, basis, design, evaluate

_STEP = 1e-3  # step of the differences that give the curvature, in units of the parameters
_FLATTEST = 0.1  # curvature below which a direction counts as flat, in units of the parameters
_OPTIONS = {"maxiter": 50, "gtol": 0.1, "ftol": 1e-6}  # the mode is needed to a fraction of a standard deviation only

first_solution = compiled(lambda target, theta: solve(target.model_at(theta), target.problem))
_evaluate = compiled(evaluate)


def evaluate_near(target: Target, reference: Reference, u: Float[np.ndarray, " P"]) -> Evaluation:
    """Evaluate the log density at u."""
    return _evaluate_near(target, reference, u)


@compiled
def _evaluate_near(target: Target, reference: Reference, u) -> Evaluation:
    return evaluate(target, reference.starts(target, u), reference.theta(u))


def make_reference(target: Target, theta: Float[np.ndarray, " P"]) -> Reference:
    """Find the mode from θ, its curvature, and solutions around it; raise a ValueError where inference fails at θ."""
    first = first_solution(target, theta)
    if not bool(first.converged):
        status = Status(int(first.status))
        raise ValueError(
            f"inference has not converged at the parameters of the model ({status.name.lower()}): {status.message}. "
            "Start from another model, such as gv.learn(...).model, or give another method="
        )
    here = _constant(theta, first, target)
    if not np.isfinite(evaluate_near(target, here, np.zeros_like(theta)).value):
        raise ValueError(
            "the prior density is zero or not finite at the parameters of the model: give the model other values, or "
            "other priors"
        )
    here = _at_mode(target, here)
    root = _root(target, here)
    here = Reference(here.centre, root, here.solution, here.sites)
    return _fitted(target, here)


def _constant(theta: Float[np.ndarray, " P"], solution: Solution, target: Target) -> Reference:
    """Return the reference in which u is θ − θ₀ in units of the parameters, and every run starts from one solution."""
    sites = jax.tree.map(lambda a: np.asarray(a)[None], solution.sites)
    return Reference(theta, np.diag(units(target.spec, theta)), solution, sites)


def _at_mode(target: Target, here: Reference) -> Reference:
    """Climb to the mode by L-BFGS; every inference starts from the solution at the best point so far."""
    state = {"here": here, "value": -np.inf}

    def value_and_grad(theta: Any):
        near = state["here"]
        found = evaluate_near(target, near, np.linalg.solve(near.root, theta - near.centre))
        value = float(found.value)
        if value > state["value"]:
            state.update(value=value, here=_constant(np.array(theta), found.solution, target))
        return value, np.asarray(found.grad)

    lbfgs(value_and_grad, here.centre, np.diag(here.root), _OPTIONS)
    return state["here"]


def _root(target: Target, here: Reference) -> Float[np.ndarray, "P P"]:
    """Return the root of the inverse curvature at θ₀, by central differences of the gradient.

    A direction in which the density is flat or curved upwards there has a standard deviation of a few units.
    """
    P, unit = len(here.centre), np.diag(here.root)
    grads = []
    for u in _STEP * np.concatenate([np.eye(P), -np.eye(P)]):
        found = evaluate_near(target, here, u)
        grads.append(np.asarray(found.grad) * unit if np.isfinite(found.value) else np.zeros(P))
    H = -(np.array(grads[:P]) - np.array(grads[P:])) / (2.0 * _STEP)
    size, axes = np.linalg.eigh(0.5 * (H + H.T))
    return unit[:, None] * axes / np.sqrt(np.maximum(size, _FLATTEST))


def _fitted(target: Target, here: Reference) -> Reference:
    """Return the reference with a quadratic function for the sites, or as it is where a solution cannot be had."""
    points = design(len(here.centre))
    found = [evaluate_near(target, here, u) for u in points]
    if not all(np.isfinite(f.value) for f in found):
        return here
    inverse = np.linalg.inv(np.array([basis(u) for u in points]))
    stacked = jax.tree.map(lambda *a: np.stack([np.asarray(x) for x in a]), *[f.solution.sites for f in found])
    return Reference(
        here.centre, here.root, here.solution, jax.tree.map(lambda a: np.tensordot(inverse, a, 1), stacked)
    )
