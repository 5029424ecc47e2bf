"""Standard errors from the curvature of the profile of the bound at its maximum (Laplace)."""

from typing import Any, NamedTuple

import jax
import numpy as np

from girsanov.learning.parameters import constrained_entries, entries

_STEP = 1e-3  # of the central differences, in free coordinates of order one
_ITERATIONS = 1000  # an E-step of the differences may take, whatever the limit while learning
_FLAT = 1e-4  # nats per squared unit of a free coordinate: below this the data do not tell it


class Curvature(NamedTuple):
    errors: dict[str, float] | None
    covariance: np.ndarray | None  # of the values behind `entries`
    flat: bool
    message: str


def laplace(learner: Any, theta: np.ndarray, result: Any) -> Curvature:
    """Central differences of the envelope gradient, each at the q that is optimal for its θ."""
    P = len(theta)
    hessian = np.empty((P, P))
    tight, most = min(1e-9, learner.method.tolerance), max(_ITERATIONS, learner.method.max_iterations)
    start = learner.start(result, result.sites, result.eta)
    steps = _STEP * np.maximum(1.0, np.abs(theta))
    for i in range(P):
        grads = []
        for sign in (1.0, -1.0):
            t = theta.copy()
            t[i] += sign * steps[i]
            q = learner.e_step(t, start, tolerance=tight, max_iterations=most)
            grads.append(learner.envelope(t, q)[1])
        hessian[i] = (grads[0] - grads[1]) / (2.0 * steps[i])
    precision = -0.5 * (hessian + hessian.T)
    if not np.isfinite(precision).all():
        return Curvature(None, None, False, "no standard errors: the curvature at the maximum is not finite")
    values, vectors = np.linalg.eigh(precision)
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
