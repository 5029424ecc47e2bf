"""Maximisation of a smooth function of a few parameters; the result is never worse than the starting point."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from girsanov._core.ascent import Best, Maximum, ValueAndGrad, lbfgs


def maximise(
    objective: ValueAndGrad,
    theta: np.ndarray,
    unit: np.ndarray,
    optimiser: Any,
    steps: int,
    learning_rate: float,
    gtol: float = 1e-7,
) -> Maximum:
    """Maximise a function and return the best point that was evaluated.

    Args:
        objective: returns the value and the gradient at a point.
        theta: the starting point.
        unit: the unit of every coordinate for L-BFGS, see `parameters.units`; optax optimisers do not use it.
        optimiser: "lbfgs", "adam" or an optax transformation.
        steps: largest number of steps.
        learning_rate: learning rate of "adam".
        gtol: L-BFGS stops when the largest entry of the gradient is below this.
    """
    if optimiser == "lbfgs":
        return lbfgs(objective, theta, unit, {"maxiter": steps, "gtol": gtol, "ftol": 1e-14})[0]
    transform = optax.adam(learning_rate) if optimiser == "adam" else optimiser
    best, params = Best(objective, theta), jnp.asarray(theta)
    state = transform.init(params)
    for _ in range(steps + 1):
        found = best(np.asarray(params))
        if found is None:
            break
        updates, state = transform.update(-jnp.asarray(found[1]), state, params)  # optax minimises
        params = optax.apply_updates(params, updates)
    return best.top


def check_optimiser(optimiser: Any) -> None:
    """Raise a ValueError unless the optimiser is a known name or an optax transformation."""
    if isinstance(optimiser, str):
        if optimiser not in ("lbfgs", "adam"):
            raise ValueError(f"unknown optimiser {optimiser!r}; choose 'lbfgs', 'adam' or an optax transformation")
    elif not (hasattr(optimiser, "init") and hasattr(optimiser, "update")):
        raise ValueError(f"optimiser must be 'lbfgs', 'adam' or an optax transformation, got {optimiser!r}")
