"""One step of Newton's method: the maximum of a quadratic model within a region in which the model is trusted.

The model of a function near θ is gᵀs − ½ sᵀBs, with the gradient g and with B minus the Hessian. The region is
|D s| ≤ r, where the diagonal D makes a step of length one change the function by about half a nat. B need not be
positive definite: where the function curves upwards, the best step ends on the edge of the region.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Vector = Float[np.ndarray, " P"]
Matrix = Float[np.ndarray, "P P"]

_NOTHING = 1e-300


class Step(NamedTuple):
    """A step s, the gain that the quadratic model predicts for it, and its length |D s|."""

    s: Vector
    gain: float
    length: float


def scales(B: Matrix, radius: float, longest: Vector) -> Vector:
    """Return D: roots of the curvatures, but so large that no step moves a coordinate by more than `longest`."""
    return np.maximum(np.sqrt(np.abs(np.diagonal(B))), radius / longest)


def best_step(g: Vector, B: Matrix, D: Vector, radius: float) -> Step:
    """Maximise gᵀs − ½ sᵀBs over |D s| ≤ radius, by the eigenvectors of D⁻¹BD⁻¹."""
    values, vectors = np.linalg.eigh(B / np.outer(D, D))
    c = vectors.T @ (g / D)
    # (Λ + μ) a = c with μ ≥ 0, Λ + μ ≥ 0, and |a| = radius unless μ = 0.
    lowest = max(0.0, -values[0])
    if values[0] > 0.0 and np.linalg.norm(c / values) <= radius:
        a = c / values
    else:
        a = _on_the_edge(c, values, lowest, radius)
    gain = float(c @ a - 0.5 * (values * a) @ a)
    return Step((vectors @ a) / D, gain, float(np.linalg.norm(a)))


def _on_the_edge(c: np.ndarray, values: np.ndarray, lowest: float, radius: float) -> np.ndarray:
    """Return (Λ + μ)⁻¹c with the μ > `lowest` that gives it the length `radius`, by bisection of log(μ − lowest)."""

    def point(log_extra: float) -> np.ndarray:
        return c / np.maximum(values + lowest + np.exp(log_extra), _NOTHING)

    # |point| falls with μ, from beyond the radius, unless c has no part along the lowest eigenvector, to below it.
    low, high = -80.0 + np.log(1.0 + lowest), np.log(1.0 + lowest + np.linalg.norm(c) / radius)
    if np.linalg.norm(point(low)) <= radius:
        a = point(low)
        rest = np.sqrt(max(radius**2 - a @ a, 0.0))
        a[0] += np.copysign(rest, c[0]) if values[0] < 0.0 else 0.0
        return a
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.linalg.norm(point(middle)) > radius else (low, middle)
    return point(high)


def secant(B: Matrix, s: Vector, y: Float[np.ndarray, " P"]) -> Matrix:
    """Return B with the symmetric change of rank one that gives B s = y (SR1); unchanged where that is ill-defined."""
    D = np.maximum(np.sqrt(np.abs(np.diagonal(B))), _NOTHING**0.25)
    s, rest = s * D, (y - B @ s) / D
    size = rest @ s
    if not abs(size) > 1e-8 * np.linalg.norm(rest) * np.linalg.norm(s):
        return B
    return B + np.outer(rest * D, rest * D) / size
