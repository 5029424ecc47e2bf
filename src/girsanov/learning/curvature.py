"""The curvature of the profile max_q L(q, θ), and standard errors from it at a maximum (Laplace's approximation)."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from girsanov.learning.parameters import Spec, constrained_entries

# Step of the central differences, in free coordinates of order one. It is not smaller because an E-step does not see
# smaller changes of θ where quadrature does not resolve the drift, as at a kink.
_STEP = 1e-2
_LONGEST, _USUAL = 0.5, 0.1  # a step longer than the first is shortened to the second, in standard deviations of θ_i
_SHORTER = 5  # differences at most, since the curvature by a step that is far too long may itself be too small
_ITERATIONS = 1000  # an E-step of the differences may take at least this many iterations


class Errors(NamedTuple):
    """Standard errors of all entries that can vary, in the order of `parameters.entries`, and their covariance."""

    errors: Float[np.ndarray, " P"]
    covariance: Float[np.ndarray, "P P"]


def laplace(spec: Spec, theta: Float[np.ndarray, " P"], precision: Float[np.ndarray, "P P"]) -> Errors:
    """Compute standard errors from the inverse of a positive-definite precision of θ, by the delta method.

    Args:
        spec: the trainable parameters.
        theta: the free coordinates at the maximum.
        precision: minus the Hessian of the profile there.
    """
    J = np.asarray(jax.jacfwd(lambda t: constrained_entries(spec, t))(theta))
    covariance = J @ np.linalg.inv(precision) @ J.T  # delta method: free coordinates to values
    return Errors(np.sqrt(np.diagonal(covariance)), covariance)


def minus_hessian(
    learner: Any, theta: Float[np.ndarray, " P"], result: Any, free: Int[np.ndarray, " k"]
) -> Float[np.ndarray, "k k"]:
    """Compute minus the Hessian of the profile at θ in some coordinates, by differences of its gradient.

    Args:
        learner: the `Learner` of the fit.
        theta: the free coordinates.
        result: an E-step at `theta`.
        free: the coordinates in which to differentiate.
    """
    hessian = np.array([_hessian_row(learner, theta, result, int(i))[free] for i in free])
    return -0.5 * (hessian + hessian.T)


def _hessian_row(learner: Any, theta: np.ndarray, result: Any, i: int) -> np.ndarray:
    """Return row i of the Hessian by central differences; repeat with shorter steps where the curvature is large."""
    step = _STEP * max(1.0, abs(theta[i]))
    for _ in range(_SHORTER):
        row = _difference(learner, theta, result, i, step)
        if not -row[i] * step**2 > _LONGEST**2:
            break
        step = _USUAL / np.sqrt(-row[i])
    return row


def _difference(learner: Any, theta: np.ndarray, result: Any, i: int, step: float) -> np.ndarray:
    """Return the central difference in θ_i of the profile's gradient, each at the q that is optimal for its θ."""
    limits = {
        "tolerance": min(1e-9, learner.method.tolerance),
        "max_iterations": max(_ITERATIONS, learner.method.max_iterations),
    }
    start, grads = learner.start(result, result.sites, result.eta), []
    for sign in (1.0, -1.0):
        t = theta.copy()
        t[i] += sign * step
        q = learner.e_step(t, start, **limits)
        grads.append(learner.envelope(t, q)[1])
    return (grads[0] - grads[1]) / (2.0 * step)
