"""Standard errors from the curvature of the profile max_q L(q, θ) at its maximum (Laplace's approximation)."""

from typing import Any, NamedTuple

import jax
import numpy as np

from girsanov.learning.parameters import constrained_entries, entries

# Step of the central differences, in free coordinates of order one. It is not smaller because an E-step does not see
# smaller changes of θ where quadrature does not resolve the drift, as at a kink.
_STEP = 1e-2
_LONGEST, _USUAL = 0.5, 0.1  # a step longer than the first is shortened to the second, in standard deviations of θ_i
_ITERATIONS = 1000  # an E-step of the differences may take at least this many iterations
_FLAT = 1e-4  # below this curvature the data do not determine a parameter: nats per squared unit of a free coordinate


class Curvature(NamedTuple):
    """The curvature at the maximum.

    Attributes:
        errors: standard errors by the names of `parameters.entries`; None where there are none.
        covariance: covariance of the same values, or None.
        flat: whether the bound does not change in some direction.
        message: why there are no standard errors; empty where there are.
    """

    errors: dict[str, float] | None
    covariance: np.ndarray | None
    flat: bool
    message: str


def laplace(learner: Any, theta: np.ndarray, result: Any) -> Curvature:
    """Compute standard errors from the inverse of minus the Hessian of max_q L(q, θ) and the delta method.

    Args:
        learner: the `Learner` of the fit.
        theta: the free coordinates at the maximum.
        result: the last E-step, at `theta`.
    """
    hessian = np.array([_hessian_row(learner, theta, result, i) for i in range(len(theta))])
    precision = -0.5 * (hessian + hessian.T)
    if not np.isfinite(precision).all():
        return Curvature(None, None, False, "no standard errors: the curvature at the maximum is not finite")
    size = np.maximum(1.0, np.abs(theta))
    values, vectors = np.linalg.eigh(precision * np.outer(size, size))
    names = entries(learner.spec)
    if values[0] < _FLAT:
        share = np.abs(vectors[:, 0])
        worst = ", ".join(names[i] for i in np.argsort(-share) if share[i] > 0.3)
        if abs(values[0]) < _FLAT:
            text = (
                f"the bound does not change along {worst}: the data cannot tell its value; fix it, or give it a prior"
            )
            return Curvature(None, None, True, text)
        return Curvature(None, None, False, f"no standard errors: the bound is not at a maximum along {worst}")
    J = np.asarray(jax.jacfwd(lambda t: constrained_entries(learner.spec, t))(theta))
    covariance = J @ np.linalg.inv(precision) @ J.T  # delta method: free coordinates to values
    return Curvature(dict(zip(names, np.sqrt(np.diagonal(covariance)).tolist(), strict=True)), covariance, False, "")


def _hessian_row(learner: Any, theta: np.ndarray, result: Any, i: int) -> np.ndarray:
    """Return row i of the Hessian by central differences; repeat with a shorter step where the curvature is large."""
    step = _STEP * max(1.0, abs(theta[i]))
    row = _difference(learner, theta, result, i, step)
    if -row[i] * step**2 > _LONGEST**2:
        row = _difference(learner, theta, result, i, _USUAL / np.sqrt(-row[i]))
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
