"""Covariance functions of Gaussian processes f in time that are coordinates of linear SDEs.

With the state x_i of the SDE at time t_i,
    f(t_i) = h_iᵀx_i,  x_i | x_{i−1} ~ N(A_i x_{i−1}, P − A_i P A_iᵀ),  x_0 ~ N(0, P).
"""

import abc
import functools
import operator
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag
from jaxtyping import Float

from girsanov._core.checks import check_positive
from girsanov._core.precision import parameter
from girsanov._core.types import Array


class StateSpace(NamedTuple):
    """A Gaussian Markov process at n increasing times; see the equation of this module.

    Attributes:
        A: transition matrices from the time before, shape (n, m, m); the first is the identity.
        P: covariance of the initial state, shape (m, m).
        h: the vectors with f(t_i) = h_iᵀx_i, shape (n, m).
    """

    A: Float[Array, "n m m"]
    P: Float[Array, "m m"]
    h: Float[Array, "n m"]


class Kernel(eqx.Module):
    """Base class of covariance functions k(t, s) with positive parameters. Kernels can be added and multiplied."""

    @abc.abstractmethod
    def __call__(self, t: Float[Array, "*#n"], s: Float[Array, "*#n"]) -> Float[Array, "*n"]:
        """Evaluate the covariance function.

        Args:
            t: times.
            s: times, of a shape that broadcasts with that of t.

        Returns:
            k(t, s), in the broadcast shape.
        """

    @abc.abstractmethod
    def state_space(self, t: Float[Array, " n"]) -> StateSpace:
        """Return the Markov process with this covariance function.

        Args:
            t: increasing times, shape (n,).

        Returns:
            Transition matrices, initial covariance and observation vectors.
        """

    def __check_init__(self):
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):  # a traced value cannot be checked; the optimiser keeps it positive
                check_positive(**{f"{type(self).__name__}: {name}": value.tolist()})

    def __add__(self, other: Any) -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: Any) -> "Product":
        return Product(self, other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(_text(k, v) for k, v in vars(self).items())})"


def _text(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(repr, value))
    return f"{name}={float(value):.6g}" if isinstance(value, np.ndarray) else f"{name}={value!r}"


class Matern(Kernel):
    """Base class of Matérn kernels, k(t, s) = variance · ρ(r) with r = |t − s| / lengthscale.

    In the rescaled time u = rate · t / lengthscale the state x = (f, ḟ, …) satisfies dx = Fx du + noise. The only
    eigenvalue of F is −1, so the transition over u is exp(−u)(I + uN + ½u²N²) with the nilpotent matrix N = F + I.

    Args:
        variance: k(t, t), a positive scalar; 1 by default.
        lengthscale: a positive scalar in units of time; 1 by default.
    """

    rate: ClassVar[float]
    F: ClassVar[Any]
    correlations: ClassVar[Any]  # stationary covariance of the state for unit variance, P = variance · correlations

    variance: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)
    lengthscale: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)

    @abc.abstractmethod
    def correlation(self, u: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Return the correlation ρ as a function of u = rate · r."""

    def __call__(self, t, s):
        return self.variance * self.correlation(self.rate / self.lengthscale * jnp.abs(t - s))

    def state_space(self, t):
        u = (self.rate / self.lengthscale * jnp.diff(t, prepend=t[:1]))[:, None, None]
        identity = np.eye(len(self.F))
        N = np.array(self.F) + identity
        A = jnp.exp(-u) * (identity + u * N + 0.5 * u**2 * (N @ N))
        return StateSpace(A, self.variance * np.array(self.correlations), jnp.tile(identity[0], (len(t), 1)))


class Matern12(Matern):
    """The Matérn-½ kernel variance · exp(−r) with r = |t − s| / lengthscale, that of an Ornstein–Uhlenbeck process.

    Args:
        variance: a positive scalar; 1 by default.
        lengthscale: a positive scalar in units of time; 1 by default.
    """

    rate = 1.0
    F = ((-1.0,),)
    correlations = ((1.0,),)

    def correlation(self, u):
        return jnp.exp(-u)


class Matern32(Matern):
    """The Matérn-3/2 kernel variance · (1 + √3 r) exp(−√3 r) with r = |t − s| / lengthscale.

    Args:
        variance: a positive scalar; 1 by default.
        lengthscale: a positive scalar in units of time; 1 by default.
    """

    rate = 3.0**0.5
    F = ((0.0, 1.0), (-1.0, -2.0))
    correlations = ((1.0, 0.0), (0.0, 1.0))

    def correlation(self, u):
        return (1.0 + u) * jnp.exp(-u)


class Matern52(Matern):
    """The Matérn-5/2 kernel variance · (1 + √5 r + 5r²/3) exp(−√5 r) with r = |t − s| / lengthscale.

    Args:
        variance: a positive scalar; 1 by default.
        lengthscale: a positive scalar in units of time; 1 by default.
    """

    rate = 5.0**0.5
    F = ((0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (-1.0, -3.0, -3.0))
    correlations = ((1.0, 0.0, -1.0 / 3.0), (0.0, 1.0 / 3.0, 0.0), (-1.0 / 3.0, 0.0, 1.0))

    def correlation(self, u):
        return (1.0 + u + u**2 / 3.0) * jnp.exp(-u)


class Constant(Kernel):
    """The constant kernel k(t, s) = variance, for an unknown constant level.

    Args:
        variance: a positive scalar; 1 by default.
    """

    variance: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)

    def __call__(self, t, s):
        return self.variance * jnp.ones_like(t * s)

    def state_space(self, t):
        return StateSpace(jnp.ones((len(t), 1, 1)), jnp.reshape(self.variance, (1, 1)), jnp.ones((len(t), 1)))


class Linear(Kernel):
    """The linear kernel k(t, s) = variance · t s, for a line with unknown slope that is zero at time zero.

    Args:
        variance: a positive scalar, the variance of the slope; 1 by default.
    """

    variance: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)

    def __call__(self, t, s):
        return self.variance * t * s

    def state_space(self, t):
        return StateSpace(jnp.ones((len(t), 1, 1)), jnp.reshape(self.variance, (1, 1)), t[:, None])


class Sum(Kernel):
    """The sum k(t, s) = k₁(t, s) + k₂(t, s) + …, the kernel of a sum of independent processes.

    Args:
        *kernels: at least one kernel.
    """

    kernels: tuple[Kernel, ...]

    def __init__(self, *kernels: Any):
        self.kernels = _parts(Sum, kernels)

    def __call__(self, t, s):
        return functools.reduce(operator.add, (k(t, s) for k in self.kernels))

    def state_space(self, t):
        A, P, h = zip(*(k.state_space(t) for k in self.kernels), strict=True)
        return StateSpace(jax.vmap(block_diag)(*A), block_diag(*P), jnp.concatenate(h, 1))


class Product(Kernel):
    """The product k(t, s) = k₁(t, s) · k₂(t, s) · …

    Args:
        *kernels: at least one kernel.
    """

    kernels: tuple[Kernel, ...]

    def __init__(self, *kernels: Any):
        self.kernels = _parts(Product, kernels)

    def __call__(self, t, s):
        return functools.reduce(operator.mul, (k(t, s) for k in self.kernels))

    def state_space(self, t):
        A, P, h = zip(*(k.state_space(t) for k in self.kernels), strict=True)
        kron = jax.vmap(jnp.kron)
        return StateSpace(functools.reduce(kron, A), functools.reduce(jnp.kron, P), functools.reduce(kron, h))


def _parts(kind: type, kernels: tuple) -> tuple[Kernel, ...]:
    """Return the kernels of a sum or product; a sum inside a sum, or a product inside a product, is flattened."""
    if not kernels:
        raise ValueError(f"{kind.__name__}() has no kernels: give at least one")
    return tuple(part for k in map(check_kernel, kernels) for part in (vars(k)["kernels"] if type(k) is kind else (k,)))


def ornstein_uhlenbeck_kernel(decay: float, diffusion: float) -> Matern12:
    """Return the kernel of the stationary Ornstein–Uhlenbeck process dx = −decay · x dt + dβ.

    It is k(t, s) = Q / (2 decay) · exp(−decay |t − s|) with the spectral density Q = `diffusion` of β.

    Args:
        decay: rate of decay, a positive scalar.
        diffusion: spectral density Q, a positive scalar.

    Returns:
        The kernel.
    """
    check_positive(decay=decay, diffusion=diffusion)
    return Matern12(variance=diffusion / (2.0 * decay), lengthscale=1.0 / decay)


def check_kernel(kernel: Any) -> Kernel:
    """Return the kernel, or raise a ValueError if it is not one."""
    if not isinstance(kernel, Kernel):
        raise ValueError(
            "a kernel is Matern12, Matern32, Matern52, Constant, Linear, or a sum or product of them, such as "
            f"Matern12(variance=1.0, lengthscale=0.5); got {kernel!r}"
        )
    return kernel
