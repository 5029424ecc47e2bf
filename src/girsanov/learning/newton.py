"""The end of an ascent: Newton's method on the profile P(θ) = max_q L(q, θ) + log prior, for up to some 40 parameters.

Its gradient is that of the envelope theorem. The first Hessian comes from differences of the gradient, and every
further E-step corrects it by the change of the gradient that it found. A region in which the quadratic model is trusted
grows and shrinks with how well the model predicts. The method ends where no step within a standard deviation promises
more than the tolerance, by a Hessian that was computed at that very place.

In continuous time the gradient is exact up to the second order of the time step only, and vanishes some 1e-4 nats below
the largest value. Small rises are then measured by the gradients at both ends of a step, so that the method ends where
the gradient vanishes, instead of searching for a rise that is not there.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from girsanov.inference.status import Status
from girsanov.learning.curvature import minus_hessian
from girsanov.learning.parameters import Spec, units
from girsanov.learning.trust_region import best_step, scales, secant

MOST = 40  # parameters; a Hessian costs two E-steps for each
STEPS = 60  # enough steps for a climb
_RADIUS, _LARGEST = 3.0, 1e4  # first and largest radius of the region; 3 is a rise of 4.5 nats
_SMALLEST = 1e-3  # a smaller radius means that the model does not describe the function
_GOOD, _BAD = 0.75, 0.25  # share of the predicted gain above which the region grows, and below which it shrinks
_FOLD = 3.0  # longest step of a coordinate that is a logarithm or the like
_REAL = 10.0  # the same of one without a constraint, in multiples of its size


class Point(NamedTuple):
    """Parameters θ with the E-step at them (a `Run`, or a `Step` of a panel), the profile there and its gradient."""

    theta: Float[np.ndarray, " P"]
    result: Any
    value: float
    grad: Float[np.ndarray, " P"]


class Summit(NamedTuple):
    """Where Newton's method ended.

    Attributes:
        point: the best parameters found.
        precision: minus the Hessian of the profile there, or an estimate of it if it did not converge, in the
            coordinates that could move.
        status: "converged", "stalled" or "max_iterations".
    """

    point: Point
    precision: Float[np.ndarray, "k k"]
    status: str


def evaluate(learner: Any, theta: np.ndarray, near: Any) -> Point | None:
    """Return the profile and its gradient at θ, or None where the E-step fails.

    The E-step starts from that of a point nearby, or from the data alone.
    """
    result = learner.e_step(theta, None if near is None else learner.start(near, near.sites, near.eta))
    if result.status is Status.BAD_START or not np.isfinite(result.elbo):
        return None
    grad = learner.envelope(theta, result)[1]
    return Point(theta, result, result.elbo + learner.prior(theta), grad) if np.isfinite(grad).all() else None


def ascend(learner: Any, theta: np.ndarray, near: Any, **options: Any) -> Summit | None:
    """Climb from θ by `newton`, without a record of the steps; None where the E-step fails at θ."""
    start = evaluate(learner, theta, near)
    return None if start is None else newton(learner, start, record=False, **options)


def newton(
    learner: Any,
    point: Point,
    *,
    tolerance: float,
    max_iterations: int,
    B: Float[np.ndarray, "k k"] | None = None,
    free: Int[np.ndarray, " k"] | None = None,
    record: bool = True,
    above: float = -np.inf,
) -> Summit:
    """Climb from a point until no step promises a gain above the tolerance.

    Args:
        learner: the `Learner` of the fit.
        point: the start.
        tolerance: in nats.
        max_iterations: the largest number of steps, including rejected ones.
        B: minus the Hessian of a point nearby, as a first estimate; by default it is computed.
        free: the coordinates that may move; by default all.
        record: whether to enter the steps into the history of the fit.
        above: a climb that ends at no higher value has no use, and is not finished by a Hessian.
    """
    free = np.arange(len(point.theta)) if free is None else free
    here = None  # minus the Hessian at this very point, where it was computed
    if B is None:
        B = here = minus_hessian(learner, point.theta, point.result, free)
    radius, used = _RADIUS, 0
    while np.isfinite(B).all():
        longest = farthest(learner.spec, point.theta)[free]
        D = scales(B, max(radius, 1.0), longest)
        low = best_step(point.grad[free], B, D, max(radius, 1.0)).gain < tolerance
        if low and (B is here or point.value <= above):
            return Summit(point, B, "converged")
        if radius < _SMALLEST and (here is not None or point.value <= above):
            return Summit(point, B if here is None else here, "stalled")
        if low or radius < _SMALLEST:
            if here is None:
                here, radius = minus_hessian(learner, point.theta, point.result, free), max(radius, 1.0)
            B = here
            continue
        if used >= max_iterations:
            return Summit(point, B, "max_iterations")
        step = best_step(point.grad[free], B, D, radius)
        theta = point.theta.copy()
        theta[free] += step.s
        there, used = evaluate(learner, theta, point.result), used + 1
        if there is None:
            radius *= 0.25
            continue
        rise = _rise(point, there, learner.inexact)
        share = rise / step.gain
        B = secant(B, step.s, (point.grad - there.grad)[free])
        if share > _GOOD and step.length > 0.8 * radius:
            radius = min(2.5 * radius, _LARGEST)
        elif share < _BAD:
            radius = 0.3 * min(radius, step.length)
        if rise > 0.0:
            point, here = there, None
            if record:
                learner.record(point.theta, point.result.elbo)
    return Summit(point, B, "stalled")


def _rise(point: Point, there: Point, inexact: float) -> float:
    """Return how much the profile rises between two points; rises up to `inexact` are those of the gradients."""
    rise = there.value - point.value
    if abs(rise) > inexact:
        return rise
    return 0.5 * float((point.grad + there.grad) @ (there.theta - point.theta)) if inexact else rise


def farthest(spec: Spec, theta: np.ndarray) -> Float[np.ndarray, " P"]:
    """Return the longest step of every free coordinate."""
    size, parts, start = np.maximum(units(spec, theta), np.abs(theta)), [], 0
    for p in spec:
        here = size[start : start + p.size]
        parts.append(_REAL * here if p.kind in ("real", "ordered", "full") else np.full(p.size, _FOLD))
        start += p.size
    return np.concatenate(parts)
