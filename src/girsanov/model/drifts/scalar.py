"""Drifts that act on every coordinate by itself."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.precision import parameter
from girsanov._core.types import Array
from girsanov.model.drifts.base import Drift, common_size


class Benes(Drift):
    """The Beneš drift f(x) = scale · tanh(x), coordinate by coordinate.

    Args:
        scale: a scalar or shape (d,); 1 by default.
    """

    scale: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)

    @property
    def dim(self) -> int | None:
        return common_size(self.scale)

    def __call__(self, x, t):
        return self.scale * jnp.tanh(x)


class DoubleWell(Drift):
    """The double-well drift f(x) = scale · x (well − x²), with stable states at ±√well, coordinate by coordinate.

    Args:
        scale: strength of the drift, a scalar or shape (d,); 4 by default.
        well: square of the stable states, a scalar or shape (d,); 1 by default.
    """

    scale: Float[Array, "..."] = eqx.field(converter=parameter, default=4.0)
    well: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)

    @property
    def dim(self) -> int | None:
        return common_size(self.scale, self.well)

    def __call__(self, x, t):
        return self.scale * x * (self.well - x**2)


class Sine(Drift):
    """The sine drift f(x) = scale · sin(x − phase), coordinate by coordinate.

    Args:
        scale: strength of the drift, a scalar or shape (d,); 1 by default.
        phase: shift of the state, a scalar or shape (d,); 0 by default.
    """

    scale: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)
    phase: Float[Array, "..."] = eqx.field(converter=parameter, default=0.0)

    @property
    def dim(self) -> int | None:
        return common_size(self.scale, self.phase)

    def __call__(self, x, t):
        return self.scale * jnp.sin(x - self.phase)


class SquareRoot(Drift):
    """The square-root drift f(x) = √(scale · |x|), coordinate by coordinate.

    Args:
        scale: a positive scalar or shape (d,); 1 by default.
    """

    constraints: ClassVar[dict[str, str]] = {"scale": "positive"}

    scale: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)

    @property
    def dim(self) -> int | None:
        return common_size(self.scale)

    def __call__(self, x, t):
        return jnp.sqrt(self.scale * jnp.abs(x))


class Logistic(Drift):
    """Logistic growth f(x) = rate · x (1 − x/capacity), coordinate by coordinate.

    Args:
        rate: rate of growth, a positive scalar or shape (d,); 1 by default.
        capacity: the state at which growth ends, a positive scalar or shape (d,); 1 by default.
    """

    constraints: ClassVar[dict[str, str]] = {"rate": "positive", "capacity": "positive"}

    rate: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)
    capacity: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)

    @property
    def dim(self) -> int | None:
        return common_size(self.rate, self.capacity)

    def __call__(self, x, t):
        return self.rate * x * (1.0 - x / self.capacity)


class Polynomial(Drift):
    """A polynomial f(x) = Σ_k coefficients[k] · xᵏ, coordinate by coordinate.

    Args:
        coefficients: shape (K + 1,), constant first and the same for all coordinates; or shape (K + 1, d).
    """

    coefficients: Float[Array, "K1 *d"] = eqx.field(converter=parameter)

    def __check_init__(self):
        if np.ndim(self.coefficients) not in (1, 2):
            raise ValueError(f"coefficients must have shape (K + 1,) or (K + 1, d), got {np.shape(self.coefficients)}")

    @property
    def dim(self) -> int | None:
        return self.coefficients.shape[1] if np.ndim(self.coefficients) == 2 else None

    def __call__(self, x, t):
        total = jnp.zeros_like(x)
        for c in self.coefficients[::-1]:  # Horner's scheme
            total = total * x + c
        return total
