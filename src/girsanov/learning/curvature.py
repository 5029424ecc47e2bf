"""Standard errors from the curvature of the profile of the bound at its maximum (Laplace)."""

from typing import Any, NamedTuple

import jax
import numpy as np

from girsanov.learning.parameters import constrained_entries, entries

# Of the central differences, in free coordinates of order one: where quadrature does not resolve the drift (a kink), an
# E-step sees no smaller change of θ.
_STEP = 1e-2
_LONGEST, _USUAL = 0.5, 0.1  # steps in standard deviations of the coordinate: from when on to shorten, and to what
_ITERATIONS = 1000  # an E-step of the differences may take, whatever the limit while learning
_FLAT = 1e-4  # nats per squared unit of a free coordinate, or of its size if that is larger: the data do not tell it


class Curvature(NamedTuple):
    errors: dict[str, float] | None
    covariance: np.ndarray | None  # of the values behind `entries`
    flat: bool
    message: str


def laplace(learner: Any, theta: np.ndarray, result: Any) -> Curvature:
    """The inverse of minus the Hessian of max_q L(q, θ), by the delta method that of the values."""
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
            text = f"the bound does not change along {worst}: the data cannot tell; fix it, or give it a prior"
            return Curvature(None, None, True, text)
        return Curvature(None, None, False, f"no standard errors: the bound curves upwards along {worst}")
    J = np.asarray(jax.jacfwd(lambda t: constrained_entries(learner.spec, t))(theta))
    covariance = J @ np.linalg.inv(precision) @ J.T  # delta method: free coordinates to values
    return Curvature(dict(zip(names, np.sqrt(np.diagonal(covariance)).tolist(), strict=True)), covariance, False, "")


def _hessian_row(learner: Any, theta: np.ndarray, result: Any, i: int) -> np.ndarray:
    """Central differences in θ_i, again with a shorter step where the first was long for the curvature it found."""
    step = _STEP * max(1.0, abs(theta[i]))
    row = _difference(learner, theta, result, i, step)
    if -row[i] * step**2 > _LONGEST**2:
        row = _difference(learner, theta, result, i, _USUAL / np.sqrt(-row[i]))
    return row


def _difference(learner: Any, theta: np.ndarray, result: Any, i: int, step: float) -> np.ndarray:
    """Of the envelope gradient, each at the q that is optimal for its θ."""
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
