"""The drift at many states, for pictures of it."""

from typing import Any

import jax
import numpy as np

from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov.model.driven import Driven
from girsanov.model.model import Model


@compiled
def _drift(model: Model, x, t):
    drift = model.drift if model.inputs is None else Driven(model.drift, model.inputs, None)
    return jax.vmap(drift, in_axes=(0, None))(x, t)


@float64
def drift_at(model: Model, x: Any, t: float) -> np.ndarray:
    """Return the drift of the model at k states, (k, d), and one time, with the inputs at that time; shape (k, d)."""
    return np.asarray(_drift(model, np.asarray(x, np.float64), np.float64(t)))
