"""Drifts f(x, t) of the latent process: modules whose parameters are arrays, so that they can be traced and learnt.

A drift takes one state of shape (d,) and one time and returns an array of shape (d,). `dim` is the dimension that
the parameters fix, or None where any will do.
"""

import abc
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.precision import parameter
from girsanov._core.types import Array


class Drift(eqx.Module):
    """What a drift of this library offers beyond being callable.

    `constraints` says which parameters learning keeps positive; the others are free.
    """

    constraints: ClassVar[dict[str, str]] = {}

    @property
    @abc.abstractmethod
    def dim(self) -> int | None: ...

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " d"], t: Float[Array, ""]) -> Float[Array, " d"]: ...


def _common_size(*parameters: Any) -> int | None:
    sizes = {np.shape(p)[0] for p in parameters if np.ndim(p) == 1}
    if len(sizes) > 1:
        raise ValueError(f"the drift's parameters have different lengths: {sorted(sizes)}")
    return sizes.pop() if sizes else None


class OrnsteinUhlenbeck(Drift):
    """f(x) = −decay · x, coordinate by coordinate; decay is a scalar or of shape (d,)."""

    constraints: ClassVar[dict[str, str]] = {"decay": "positive"}

    decay: Float[Array, "..."] = eqx.field(converter=parameter)

    @property
    def dim(self) -> int | None:
        return _common_size(self.decay)

    def __call__(self, x, t):
        return -self.decay * x

    def stationary(self, Q: Float[Array, "d d"]) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        """Mean zero and covariance P with decay_i P_ij + P_ij decay_j = Q_ij."""
        decay = jnp.broadcast_to(jnp.asarray(self.decay), (Q.shape[0],))
        return jnp.zeros(Q.shape[0], Q.dtype), Q / (decay[:, None] + decay[None, :])


class Benes(Drift):
    """f(x) = scale · tanh(x)."""

    scale: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)

    @property
    def dim(self) -> int | None:
        return _common_size(self.scale)

    def __call__(self, x, t):
        return self.scale * jnp.tanh(x)


class DoubleWell(Drift):
    """f(x) = scale · x (well − x²): stable states at ±√well."""

    scale: Float[Array, "..."] = eqx.field(converter=parameter, default=4.0)
    well: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)

    @property
    def dim(self) -> int | None:
        return _common_size(self.scale, self.well)

    def __call__(self, x, t):
        return self.scale * x * (self.well - x**2)


class Sine(Drift):
    """f(x) = scale · sin(x − phase)."""

    scale: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)
    phase: Float[Array, "..."] = eqx.field(converter=parameter, default=0.0)

    @property
    def dim(self) -> int | None:
        return _common_size(self.scale, self.phase)

    def __call__(self, x, t):
        return self.scale * jnp.sin(x - self.phase)


class SquareRoot(Drift):
    """f(x) = √(scale · |x|)."""

    constraints: ClassVar[dict[str, str]] = {"scale": "positive"}

    scale: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)

    @property
    def dim(self) -> int | None:
        return _common_size(self.scale)

    def __call__(self, x, t):
        return jnp.sqrt(self.scale * jnp.abs(x))


class VanDerPol(Drift):
    """f(x) = rate · (damping · (x₁ − x₁³/3 − x₂), x₁/damping)."""

    constraints: ClassVar[dict[str, str]] = {"rate": "positive", "damping": "positive"}

    rate: Float[Array, ""] = eqx.field(converter=parameter, default=5.0)
    damping: Float[Array, ""] = eqx.field(converter=parameter, default=2.0)

    @property
    def dim(self) -> int | None:
        return 2

    def __call__(self, x, t):
        return self.rate * jnp.stack([self.damping * (x[0] - x[0] ** 3 / 3.0 - x[1]), x[0] / self.damping])


class Linear(Drift):
    """f(x) = A x + b."""

    A: Float[Array, "d d"] = eqx.field(converter=parameter)
    b: Float[Array, " d"] = eqx.field(converter=parameter)

    def __init__(self, A: Any, b: Any = 0.0):
        A = parameter(A)
        if A.ndim != 2 or A.shape[0] != A.shape[1]:
            raise ValueError(f"Linear needs a square matrix A, got shape {A.shape}")
        b = parameter(b)
        if b.ndim > 1 or (b.ndim == 1 and b.shape[0] != A.shape[0]):
            raise ValueError(f"Linear needs b of shape ({A.shape[0]},) to fit A of shape {A.shape}, got {b.shape}")
        self.A, self.b = A, np.broadcast_to(b, A.shape[:1]) if isinstance(b, np.ndarray) else b

    @property
    def dim(self) -> int | None:
        return self.A.shape[0]

    def __call__(self, x, t):
        return self.A @ x + self.b

    def stationary(self, Q: Float[Array, "d d"]) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
        """Mean −A⁻¹b and covariance P with A P + P Aᵀ + Q = 0 (one linear system of size d²)."""
        A, eye = jnp.asarray(self.A), jnp.eye(Q.shape[0], dtype=Q.dtype)
        P = jnp.linalg.solve(jnp.kron(A, eye) + jnp.kron(eye, A), -Q.reshape(-1)).reshape(Q.shape)
        return -jnp.linalg.solve(A, jnp.asarray(self.b)), 0.5 * (P + P.T)


ACTIVATIONS: dict[str, Callable] = {"relu": jax.nn.relu, "tanh": jnp.tanh, "softplus": jax.nn.softplus}


class MLP(Drift):
    """A neural network from ℝᵈ to ℝᵈ; by default one hidden layer of three ReLU units."""

    layers: tuple[tuple[Float[Array, "i o"], Float[Array, " i"]], ...]
    activation: str = eqx.field(static=True)

    def __init__(self, dim: int, width: int = 3, depth: int = 1, activation: str = "relu", *, key: Array):
        if activation not in ACTIVATIONS:
            raise ValueError(f"unknown activation {activation!r}; choose one of {sorted(ACTIVATIONS)}")
        sizes = [dim] + [width] * depth + [dim]
        layers = []
        for n_in, n_out in itertools.pairwise(sizes):
            key, kw, kb = jax.random.split(key, 3)
            bound = 1.0 / np.sqrt(n_in)
            W = jax.random.uniform(kw, (n_out, n_in), minval=-bound, maxval=bound)
            b = jax.random.uniform(kb, (n_out,), minval=-bound, maxval=bound)
            layers.append((np.asarray(W, np.float64), np.asarray(b, np.float64)))
        self.layers, self.activation = tuple(layers), activation

    @property
    def dim(self) -> int | None:
        return self.layers[0][0].shape[1]

    def reinitialise(self, key: Array) -> "MLP":
        """A network of the same shape with weights drawn anew."""
        return MLP(self.layers[0][0].shape[1], len(self.layers[0][1]), len(self.layers) - 1, self.activation, key=key)

    def __call__(self, x, t):
        act = ACTIVATIONS[self.activation]
        for W, b in self.layers[:-1]:
            x = act(W @ x + b)
        W, b = self.layers[-1]
        return W @ x + b


DRIFTS: tuple[type[Drift], ...] = (OrnsteinUhlenbeck, Benes, DoubleWell, Sine, SquareRoot, VanDerPol, Linear, MLP)
