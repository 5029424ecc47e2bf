"""Systems of several coordinates."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.precision import parameter
from girsanov._core.types import Array
from girsanov.model.drifts.base import Drift, common_size


class VanDerPol(Drift):
    """The Van der Pol oscillator f(x) = rate · (damping · (x₁ − x₁³/3 − x₂), x₁/damping), with a state of dimension 2.

    Args:
        rate: speed of the motion, a positive scalar; 5 by default.
        damping: strength of the non-linear damping, a positive scalar; 2 by default.
    """

    constraints: ClassVar[dict[str, str]] = {"rate": "positive", "damping": "positive"}

    rate: Float[Array, ""] = eqx.field(converter=parameter, default=5.0)
    damping: Float[Array, ""] = eqx.field(converter=parameter, default=2.0)

    @property
    def dim(self) -> int | None:
        return 2

    def __call__(self, x, t):
        return self.rate * jnp.stack([self.damping * (x[0] - x[0] ** 3 / 3.0 - x[1]), x[0] / self.damping])


class LotkaVolterra(Drift):
    """Prey x₁ and predators x₂, f(x) = (growth · x₁ − predation · x₁x₂, conversion · x₁x₂ − death · x₂).

    Args:
        growth: rate of growth of the prey, a positive scalar; 1 by default.
        predation: rate at which a predator takes prey, a positive scalar; 1 by default.
        conversion: rate at which prey becomes predators, a positive scalar; 1 by default.
        death: rate of death of the predators, a positive scalar; 1 by default.
    """

    constraints: ClassVar[dict[str, str]] = dict.fromkeys(("growth", "predation", "conversion", "death"), "positive")

    growth: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)
    predation: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)
    conversion: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)
    death: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)

    @property
    def dim(self) -> int | None:
        return 2

    def __call__(self, x, t):
        met = x[0] * x[1]
        return jnp.stack([self.growth * x[0] - self.predation * met, self.conversion * met - self.death * x[1]])


class FitzHughNagumo(Drift):
    """A neuron with voltage x₁ and recovery x₂, f(x) = (x₁ − x₁³/3 − x₂ + current, (x₁ + a − b · x₂)/tau).

    Args:
        a: a scalar; 0.7 by default.
        b: a scalar; 0.8 by default.
        tau: time scale of the recovery, a positive scalar; 12.5 by default.
        current: input current, a scalar; 0.5 by default, with which the neuron fires again and again.
    """

    constraints: ClassVar[dict[str, str]] = {"tau": "positive"}

    a: Float[Array, ""] = eqx.field(converter=parameter, default=0.7)
    b: Float[Array, ""] = eqx.field(converter=parameter, default=0.8)
    tau: Float[Array, ""] = eqx.field(converter=parameter, default=12.5)
    current: Float[Array, ""] = eqx.field(converter=parameter, default=0.5)

    @property
    def dim(self) -> int | None:
        return 2

    def __call__(self, x, t):
        voltage = x[0] - x[0] ** 3 / 3.0 - x[1] + self.current
        return jnp.stack([voltage, (x[0] + self.a - self.b * x[1]) / self.tau])


class Lorenz63(Drift):
    """Lorenz' system of 1963, f(x) = (sigma · (x₂ − x₁), x₁ (rho − x₃) − x₂, x₁x₂ − beta · x₃).

    Args:
        sigma: a scalar; 10 by default.
        rho: a scalar; 28 by default.
        beta: a scalar; 8/3 by default.
    """

    sigma: Float[Array, ""] = eqx.field(converter=parameter, default=10.0)
    rho: Float[Array, ""] = eqx.field(converter=parameter, default=28.0)
    beta: Float[Array, ""] = eqx.field(converter=parameter, default=8.0 / 3.0)

    @property
    def dim(self) -> int | None:
        return 3

    def __call__(self, x, t):
        first, second = self.sigma * (x[1] - x[0]), x[0] * (self.rho - x[2]) - x[1]
        return jnp.stack([first, second, x[0] * x[1] - self.beta * x[2]])


class Lorenz96(Drift):
    """Lorenz' system of 1996 on a circle, f_i(x) = (x_{i+1} − x_{i−2}) x_{i−1} − x_i + forcing.

    The state has four coordinates or more: give `Model` its `dim`.

    Args:
        forcing: a scalar, or shape (d,); 8 by default.
    """

    forcing: Float[Array, "..."] = eqx.field(converter=parameter, default=8.0)

    @property
    def dim(self) -> int | None:
        return common_size(self.forcing)

    def __call__(self, x, t):
        if x.shape[0] < 4:
            raise ValueError(f"Lorenz96 needs a state of four coordinates or more, got {x.shape[0]}; give Model a dim=")
        return (jnp.roll(x, -1) - jnp.roll(x, 2)) * jnp.roll(x, 1) - x + self.forcing
