"""Maximisers of a smooth function of a few parameters that never end below where they began."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize

ValueAndGrad = Callable[[np.ndarray], tuple[float, np.ndarray]]
PENALTY = 1e12  # in place of a value that is not finite: the line search steps back from it


class Maximum(NamedTuple):
    theta: np.ndarray
    value: float
    grad: np.ndarray


def lbfgs(
    function: ValueAndGrad, theta: np.ndarray, unit: np.ndarray, options: dict[str, Any], callback: Any = None
) -> Any:
    """Minimise by L-BFGS, which takes all coordinates to be of like size, in these units."""

    def scaled(u: np.ndarray) -> tuple[float, np.ndarray]:
        value, grad = function(u * unit)
        return value, grad * unit

    return scipy.optimize.minimize(
        scaled, theta / unit, jac=True, method="L-BFGS-B", callback=callback, options=options
    )


def maximise(
    objective: ValueAndGrad,
    theta: np.ndarray,
    unit: np.ndarray,
    optimiser: Any,
    steps: int,
    learning_rate: float,
    gtol: float = 1e-7,
) -> Maximum:
    """The best point met from `theta` on: by L-BFGS, or by `steps` of an optax optimiser ("adam" or your own).

    - unit: of every coordinate for L-BFGS, see `parameters.units`; an optax optimiser sees them as they are.
    """
    best = Maximum(np.array(theta), -np.inf, np.full_like(theta, np.nan))  # until a value and its gradient are finite

    def value_and_grad(t: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        value, grad = objective(t)
        good = np.isfinite(value) and np.isfinite(grad).all()
        if good and value > best.value:
            best = Maximum(np.array(t), float(value), np.array(grad))
        return (-value, -grad) if good else (PENALTY, np.zeros_like(t))

    if optimiser == "lbfgs":
        lbfgs(value_and_grad, theta, unit, {"maxiter": steps, "gtol": gtol, "ftol": 1e-14})
        return best
    transform = optax.adam(learning_rate) if optimiser == "adam" else optimiser
    params = jnp.asarray(theta)
    state = transform.init(params)
    for _ in range(steps + 1):
        value, grad = value_and_grad(np.asarray(params))
        if value == PENALTY:
            break
        updates, state = transform.update(jnp.asarray(grad), state, params)
        params = optax.apply_updates(params, updates)
    return best


def check_optimiser(optimiser: Any) -> None:
    if isinstance(optimiser, str):
        if optimiser not in ("lbfgs", "adam"):
            raise ValueError(f"unknown optimiser {optimiser!r}; choose 'lbfgs', 'adam' or an optax transformation")
    elif not (hasattr(optimiser, "init") and hasattr(optimiser, "update")):
        raise ValueError(f"optimiser must be 'lbfgs', 'adam' or an optax transformation, got {optimiser!r}")
