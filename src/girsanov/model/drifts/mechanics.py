"""Drifts of positions and velocities, and of Matérn processes.

Only the velocities (or the highest derivative) have noise. The state has the positions first and then the velocities.
Give such a model a diffusion with zeros for the positions, such as `diffusion=[0, s]`.
"""

import operator
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.precision import parameter
from girsanov._core.types import Array
from girsanov.model.drifts.base import Drift, common_size
from girsanov.model.drifts.linear import stationary_law


def _halves(x: Float[Array, " d"]) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
    """Return the positions and the velocities of a state."""
    k = x.shape[0] // 2
    return x[:k], x[k:]


def _doubled(size: int | None) -> int | None:
    return None if size is None else 2 * size


class Langevin(Drift):
    """Particles in a force field: dx = v dt, dv = (force(x, t) − friction · v) dt.

    Args:
        force: the force on the positions, a callable of shape (k,) and a scalar time that returns shape (k,). Any drift
            will do, such as `DoubleWell(scale=4.0)`; its parameters are named "drift.force.…" in learning.
        friction: a positive scalar or shape (k,); 1 by default.
    """

    constraints: ClassVar[dict[str, str]] = {"friction": "positive"}

    force: Callable
    friction: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)

    @property
    def dim(self) -> int | None:
        size = getattr(self.force, "dim", None)
        return _doubled(size if isinstance(size, int) else common_size(self.friction))

    def __call__(self, x, t):
        place, velocity = _halves(x)
        return jnp.concatenate([velocity, self.force(place, t) - self.friction * velocity])


class ConstantVelocity(Drift):
    """Motion whose velocity changes only through the noise: dx = v dt, dv = 0. It has no parameters.

    Args:
        axes: the number k of positions; the state has dimension 2k. 1 by default.
    """

    axes: int = eqx.field(static=True, converter=operator.index, default=1)

    def __check_init__(self):
        if self.axes < 1:
            raise ValueError(f"ConstantVelocity needs a positive number of positions, got {self.axes!r}")

    @property
    def dim(self) -> int | None:
        return 2 * self.axes

    def __call__(self, x, t):
        _, velocity = _halves(x)
        return jnp.concatenate([velocity, jnp.zeros_like(velocity)])


class IntegratedOU(Drift):
    """Motion whose velocity is an Ornstein–Uhlenbeck process: dx = v dt, dv = −decay · v dt.

    Args:
        decay: rate of decay of the velocity, a positive scalar or shape (k,); 1 by default.
    """

    constraints: ClassVar[dict[str, str]] = {"decay": "positive"}

    decay: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)

    @property
    def dim(self) -> int | None:
        return _doubled(common_size(self.decay))

    def __call__(self, x, t):
        _, velocity = _halves(x)
        return jnp.concatenate([velocity, -self.decay * velocity])


class HarmonicOscillator(Drift):
    """A damped oscillator: dx = v dt, dv = (−frequency² · x − damping · v) dt, with a state of dimension 2.

    Args:
        frequency: angular frequency without damping, a positive scalar; 1 by default.
        damping: rate of damping, a positive scalar; 0.1 by default.
    """

    constraints: ClassVar[dict[str, str]] = {"frequency": "positive", "damping": "positive"}

    frequency: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)
    damping: Float[Array, ""] = eqx.field(converter=parameter, default=0.1)

    @property
    def dim(self) -> int | None:
        return 2

    def __call__(self, x, t):
        return jnp.stack([x[1], -(self.frequency**2) * x[0] - self.damping * x[1]])

    def stationary(self, Q: Float[Array, "2 2"]) -> tuple[Float[Array, " 2"], Float[Array, "2 2"]]:
        """Return the stationary law N(0, P).

        Args:
            Q: spectral density of the noise, shape (2, 2).

        Returns:
            The mean, shape (2,), and the covariance P, shape (2, 2).
        """
        A = jnp.stack([jnp.array([0.0, 1.0]), jnp.stack([-(self.frequency**2), -jnp.asarray(self.damping)])])
        return stationary_law(A, jnp.zeros(2), Q)


class Duffing(Drift):
    """The Duffing oscillator, with a state of dimension 2:

    dx = v dt, dv = (−damping · v − linear · x − cubic · x³ + amplitude · cos(frequency · t)) dt.

    Args:
        linear: linear stiffness, a scalar; −1 by default, which gives two wells.
        cubic: cubic stiffness, a scalar; 1 by default.
        damping: rate of damping, a positive scalar; 0.1 by default.
        amplitude: amplitude of the driving force, a scalar; 0 by default.
        frequency: angular frequency of the driving force, a scalar; 1 by default.
    """

    constraints: ClassVar[dict[str, str]] = {"damping": "positive"}

    linear: Float[Array, ""] = eqx.field(converter=parameter, default=-1.0)
    cubic: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)
    damping: Float[Array, ""] = eqx.field(converter=parameter, default=0.1)
    amplitude: Float[Array, ""] = eqx.field(converter=parameter, default=0.0)
    frequency: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)

    @property
    def dim(self) -> int | None:
        return 2

    def __call__(self, x, t):
        push = self.amplitude * jnp.cos(self.frequency * t)
        return jnp.stack([x[1], -self.damping * x[1] - self.linear * x[0] - self.cubic * x[0] ** 3 + push])


class Matern(Drift):
    """The drift of a Gaussian process with a Matérn covariance: the process and its first derivatives.

    With λ = √(2ν)/lengthscale, the companion form of (d/dt + λ)^(ν + ½). `gv.matern` makes the whole model.

    Args:
        order: ν, one of 0.5, 1.5 and 2.5; the state has dimension ν + ½.
        lengthscale: a positive scalar; 1 by default.
    """

    constraints: ClassVar[dict[str, str]] = {"lengthscale": "positive"}

    order: float = eqx.field(static=True, converter=float)
    lengthscale: Float[Array, ""] = eqx.field(converter=parameter, default=1.0)

    def __check_init__(self):
        if self.order not in _COMPANION:
            raise ValueError(f"Matern has the orders 0.5, 1.5 and 2.5, got {self.order!r}")

    @property
    def dim(self) -> int | None:
        return int(self.order + 0.5)

    def matrix(self) -> Float[Array, "d d"]:
        """Return the matrix of the drift A x.

        Returns:
            A, shape (d, d).
        """
        rate = np.sqrt(2.0 * self.order) / self.lengthscale
        d = int(self.order + 0.5)
        last = -jnp.asarray(_COMPANION[self.order]) * rate ** jnp.arange(d, 0, -1)
        return jnp.eye(d, k=1).at[-1].set(last)

    def __call__(self, x, t):
        return self.matrix() @ x

    def stationary(self, Q: Float[Array, "d d"]) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        """Return the stationary law N(0, P).

        Args:
            Q: spectral density of the noise, shape (d, d).

        Returns:
            The mean, shape (d,), and the covariance P, shape (d, d).
        """
        return stationary_law(self.matrix(), jnp.zeros(Q.shape[0]), Q)

    def spectral_density(self, variance: Any) -> Any:
        """Return the density q of the noise in the last coordinate with which the process has this variance.

        Args:
            variance: variance of the process, a positive scalar.

        Returns:
            q, a scalar.
        """
        rate = np.sqrt(2.0 * self.order) / self.lengthscale
        return variance * _NOISE[self.order] * rate ** (2.0 * self.order)


_COMPANION = {0.5: (1.0,), 1.5: (1.0, 2.0), 2.5: (1.0, 3.0, 3.0)}  # binomial coefficients of (d/dt + λ)^d
_NOISE = {0.5: 2.0, 1.5: 4.0, 2.5: 16.0 / 3.0}
