"""Maximise a smooth function by L-BFGS, outside JAX; the point returned is never worse than the start."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

ValueAndGrad = Callable[[np.ndarray], tuple[float, np.ndarray]]
_PENALTY = 1e12  # replaces a value that is not finite, so that the line search takes a shorter step


class Maximum(NamedTuple):
    """The best point that was evaluated, its value and its gradient. The value is −inf if no value was finite."""

    theta: np.ndarray
    value: float
    grad: np.ndarray


class Best:
    """Wraps a function and remembers the best point in `top`; points with a value that is not finite are skipped."""

    def __init__(self, function: ValueAndGrad, start: np.ndarray):
        self.function = function
        self.top = Maximum(np.array(start), -np.inf, np.full_like(start, np.nan))

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray] | None:
        """Return value and gradient at theta, or None if one of them is not finite."""
        value, grad = self.function(theta)
        if not (np.isfinite(value) and np.isfinite(grad).all()):
            return None
        if value > self.top.value:
            self.top = Maximum(np.array(theta), float(value), np.array(grad))
        return float(value), np.asarray(grad)


def lbfgs(
    function: ValueAndGrad, theta: np.ndarray, unit: Any, options: dict[str, Any], callback: Any = None
) -> tuple[Maximum, Any]:
    """Maximise a function by L-BFGS.

    Args:
        function: returns the value and the gradient of the function to maximise.
        theta: the start, shape (k,).
        unit: a typical size of each coordinate, a number or an array. L-BFGS works on theta / unit, because it assumes
            coordinates of similar size.
        options: options of scipy's L-BFGS-B.
        callback: callback of scipy's L-BFGS-B.

    Returns:
        The best point that was evaluated, and scipy's result object.
    """
    import scipy.optimize

    best = Best(function, theta)

    def descend(u: np.ndarray) -> tuple[float, np.ndarray]:
        found = best(u * unit)
        return (_PENALTY, np.zeros_like(u)) if found is None else (-found[0], -found[1] * unit)

    run = scipy.optimize.minimize(
        descend, theta / unit, jac=True, method="L-BFGS-B", callback=callback, options=options
    )
    return best.top, run
