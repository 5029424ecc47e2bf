"""The parameters of single series: Newton's method for all series at once, each in a region of its own.

For every series it maximises a function of its K free coordinates φ, of which values and gradients come for many series
at a time. The first Hessians come from differences of the gradient; later ones are corrected by the changes of the
gradient along the steps.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from girsanov.learning.trust_region import best_step, scales, secant

_GAIN = 1e-10  # nats: a series has converged when no step promises more
_ENOUGH = 1e-6  # the same where no step raises the value, because quadrature or rounding limits it
_STEPS = 60
_RADIUS, _SMALLEST = 3.0, 1e-4  # the first radius of the region, and the one at which a series gives up
_GOOD, _BAD = 0.75, 0.25  # share of the predicted gain above which the region grows, and below which it shrinks
_FARTHEST = 5.0  # longest step of a coordinate, in multiples of its size
_STEP, _LONGEST, _USUAL = 1e-2, 0.5, 0.1  # steps of the differences, as in `curvature`
_ROUNDING = 1e-9  # nats: a fall by less is none

Evaluate = Callable[
    [Float[np.ndarray, "k K"], Int[np.ndarray, " k"]], tuple[Float[np.ndarray, " k"], Float[np.ndarray, "k K"]]
]


class Peaks(NamedTuple):
    """Where the functions of all series are largest.

    Attributes:
        phi: the coordinates.
        value: the values; minus infinity where the function could not be evaluated.
        grad: the gradients.
        B: minus the Hessians, or estimates of them.
        done: whether no step promises a gain.
    """

    phi: Float[np.ndarray, "S K"]
    value: Float[np.ndarray, " S"]
    grad: Float[np.ndarray, "S K"]
    B: Float[np.ndarray, "S K K"]
    done: Bool[np.ndarray, " S"]


def minus_hessians(evaluate: Evaluate, phi: Float[np.ndarray, "S K"]) -> Float[np.ndarray, "S K K"]:
    """Return minus the Hessians at φ, by central differences of the gradients."""
    S, K = phi.shape
    B = np.zeros((S, K, K))

    def rows(which: np.ndarray, k: int, step: np.ndarray) -> np.ndarray:
        grads = []
        for sign in (1.0, -1.0):
            moved = phi[which].copy()
            moved[:, k] += sign * step
            grads.append(evaluate(moved, which)[1])
        return (grads[1] - grads[0]) / (2.0 * step[:, None])

    for k in range(K):
        everyone, step = np.arange(S), _STEP * np.maximum(1.0, np.abs(phi[:, k]))
        B[:, k] = rows(everyone, k, step)
        steep = np.flatnonzero(B[:, k, k] * step**2 > _LONGEST**2)
        if len(steep):
            B[steep, k] = rows(steep, k, _USUAL / np.sqrt(B[steep, k, k]))
    return 0.5 * (B + np.swapaxes(B, 1, 2))


def climb(evaluate: Evaluate, phi: Float[np.ndarray, "S K"], B: Float[np.ndarray, "S K K"] | None = None) -> Peaks:
    """Maximise the functions of all series.

    Args:
        evaluate: a function (φ, which) → (values, gradients) of some series.
        phi: the start.
        B: minus the Hessians at points nearby; by default they are computed.
    """
    S = len(phi)
    phi, everyone = phi.copy(), np.arange(S)
    value, grad = evaluate(phi, everyone)
    if phi.shape[1] == 0:
        return Peaks(phi, value, grad, np.zeros((S, 0, 0)), np.ones(S, bool))
    B = minus_hessians(evaluate, phi) if B is None else B.copy()
    radius, done = np.full(S, _RADIUS), ~np.isfinite(value)
    lost = done.copy()
    for _ in range(_STEPS):
        which, steps, gains, lengths = [], [], [], []
        for i in np.flatnonzero(~done):
            longest = _FARTHEST * np.maximum(1.0, np.abs(phi[i]))
            D = scales(B[i], max(radius[i], 1.0), longest)
            promised = best_step(grad[i], B[i], D, max(radius[i], 1.0)).gain
            done[i] = promised < _GAIN or radius[i] < _SMALLEST
            lost[i] = promised >= _ENOUGH
            step = best_step(grad[i], B[i], D, radius[i])
            if not done[i]:
                which.append(i)
                steps.append(step.s)
                gains.append(step.gain)
                lengths.append(step.length)
        if not which:
            break
        tried = phi[which] + np.array(steps)
        new, slopes = evaluate(tried, np.array(which))
        for j, i in enumerate(which):
            if not np.isfinite(new[j]):
                radius[i] *= 0.25
                continue
            rise = new[j] - value[i]
            B[i] = secant(B[i], steps[j], grad[i] - slopes[j])
            if rise > _GOOD * gains[j] and lengths[j] > 0.8 * radius[i]:
                radius[i] *= 2.5
            elif rise < _BAD * gains[j] and rise < _ROUNDING:
                radius[i] = 0.3 * min(radius[i], lengths[j])
            if rise > -_ROUNDING * max(1.0, abs(value[i])) and (rise > 0.0 or _calmer(slopes[j], grad[i], B[i])):
                phi[i], value[i], grad[i] = tried[j], new[j], slopes[j]
    return Peaks(phi, value, grad, B, done & ~lost)


def _calmer(new: np.ndarray, old: np.ndarray, B: np.ndarray) -> bool:
    """Return whether a gradient is smaller, where rounding hides which of two values is larger."""
    size = np.sqrt(np.maximum(np.abs(np.diagonal(B)), 1e-300))
    return bool(np.linalg.norm(new / size) < np.linalg.norm(old / size))
