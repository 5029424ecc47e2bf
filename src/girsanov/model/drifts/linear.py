"""Linear drifts. They have a stationary law if they are stable: every eigenvalue of A has a negative real part."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.precision import parameter
from girsanov._core.types import Array
from girsanov.model.drifts.base import Drift, common_size


class OrnsteinUhlenbeck(Drift):
    """The Ornstein–Uhlenbeck drift f(x) = −decay · (x − mean), coordinate by coordinate.

    Args:
        decay: rate of decay, a scalar or shape (d,). A stationary initial state needs positive rates.
        mean: the state at which the drift is zero, a scalar or shape (d,). By default it is fixed at zero; a mean that
            you give, including zero, can be learnt.
    """

    constraints: ClassVar[dict[str, str]] = {"decay": "positive"}

    decay: Float[Array, "..."] = eqx.field(converter=parameter)
    mean: Float[Array, "..."] | None = eqx.field(converter=lambda m: None if m is None else parameter(m), default=None)

    @property
    def dim(self) -> int | None:
        return common_size(self.decay, *(() if self.mean is None else (self.mean,)))

    def __call__(self, x, t):
        return -self.decay * (x if self.mean is None else x - self.mean)

    def stationary(self, Q: Float[Array, "d d"]) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        """Return the stationary law N(mean, P), where decay_i P_ij + P_ij decay_j = Q_ij.

        Args:
            Q: spectral density of the noise, shape (d, d).

        Returns:
            The mean, shape (d,), and the covariance P, shape (d, d).
        """
        decay = jnp.broadcast_to(jnp.asarray(self.decay), (Q.shape[0],))
        mean = jnp.zeros(()) if self.mean is None else jnp.asarray(self.mean)
        return jnp.broadcast_to(mean, (Q.shape[0],)), Q / (decay[:, None] + decay[None, :])


class Linear(Drift):
    """The linear drift f(x) = A x + b, or with inputs f(x, u) = A x + b + B u.

    Args:
        A: matrix of shape (d, d), or a scalar for a state of dimension 1.
        b: constant, a scalar or shape (d,); 0 by default.
        B: the effect of the m inputs of the series, shape (d, m), (d,) for a single one, or a scalar for one input of
            one state. By default the drift takes no inputs.
    """

    A: Float[Array, "d d"] = eqx.field(converter=parameter)
    b: Float[Array, " d"] = eqx.field(converter=parameter)
    B: Float[Array, "d m"] | None

    def __init__(self, A: Any, b: Any = 0.0, B: Any = None):
        A = parameter(A)
        A = A.reshape(1, 1) if A.ndim == 0 else A
        if A.ndim != 2 or A.shape[0] != A.shape[1]:
            raise ValueError(f"Linear needs a square matrix A, got shape {A.shape}")
        b = parameter(b)
        if b.ndim > 1 or (b.ndim == 1 and b.shape[0] != A.shape[0]):
            raise ValueError(f"Linear needs b of shape ({A.shape[0]},) to fit A of shape {A.shape}, got {b.shape}")
        self.A, self.b = A, (np if isinstance(b, np.ndarray) else jnp).broadcast_to(b, A.shape[:1])
        self.B = None if B is None else _effects(parameter(B), A.shape[0])

    @property
    def dim(self) -> int | None:
        return self.A.shape[0]

    @property
    def takes_inputs(self) -> bool:
        """Whether the drift has a matrix B, and so takes inputs."""
        return self.B is not None

    @property
    def inputs_dim(self) -> int | None:
        """m, the number of inputs, or None if the drift takes none."""
        return None if self.B is None else self.B.shape[1]

    def __call__(self, x, t, u=None):
        f = self.A @ x + self.b
        return f if self.B is None else f + self.B @ u

    def stationary(self, Q: Float[Array, "d d"]) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        """Return the stationary law N(−A⁻¹b, P), where A P + P Aᵀ + Q = 0 (solved as a linear system of size d²).

        Args:
            Q: spectral density of the noise, shape (d, d).

        Returns:
            The mean, shape (d,), and the covariance P, shape (d, d).
        """
        return stationary_law(jnp.asarray(self.A), jnp.asarray(self.b), Q)


def _effects(B: Any, d: int) -> Any:
    """Return B as a matrix of shape (d, m)."""
    B = B.reshape(1, 1) if B.ndim == 0 else B[:, None] if B.ndim == 1 else B
    if B.ndim != 2 or B.shape[0] != d or B.shape[1] == 0:
        raise ValueError(f"Linear needs B of shape ({d}, m), one column for each input, got {B.shape}")
    return B


def stationary_law(
    A: Float[Array, "d d"], b: Float[Array, " d"], Q: Float[Array, "d d"]
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Return mean −A⁻¹b and covariance P of dx = (A x + b) dt + L dβ, where A P + P Aᵀ + Q = 0."""
    eye = jnp.eye(Q.shape[0], dtype=Q.dtype)
    P = jnp.linalg.solve(jnp.kron(A, eye) + jnp.kron(eye, A), -Q.reshape(-1)).reshape(Q.shape)
    return -jnp.linalg.solve(A, b), 0.5 * (P + P.T)
