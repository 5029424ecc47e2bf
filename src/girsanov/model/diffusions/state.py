"""Noise whose size depends on the state, and the coordinates in which it is constant (Lamperti's transform).

    dx_i = f_i(x, t) dt + σ_i(x_i) dβ_i,   σ_i(x) = s_i g_i(x),   E dβ dβᵀ = R dt,

with constant scales s and correlations R. With x_i = ψ_i(w_i), where ψ_i' = g_i(ψ_i), Itô's formula gives

    dw_i = {f_i(x, t)/ψ_i'(w_i) − ½s_i²ψ_i''(w_i)/ψ_i'(w_i)} dt + s_i dβ_i,

so that w has the constant spectral density Q_ij = s_i R_ij s_j. Inference works on w, where a Gaussian process can be
close to the posterior, and results are mapped back to x. The evidence is the same in both coordinates.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.checks import check_covariance, shown
from girsanov._core.precision import parameter
from girsanov._core.types import Array

Correlation = tuple[tuple[float, ...], ...] | None


class StateDiffusion(eqx.Module):
    """Base class of noises whose size depends on the state.

    A kind of noise states ψ and its inverse. Both act on every entry of an array, whose last axis has the coordinates.

    Attributes:
        correlation: the correlations R of the noises as rows of numbers; None for independent noises.
        constraints: the parameters that learning keeps inside a range, as {"name": "positive"}.
    """

    correlation: eqx.AbstractVar[Correlation]
    constraints: ClassVar[dict[str, str]] = {}

    @property
    @abc.abstractmethod
    def dim(self) -> int | None:
        """The dimension d of the state if the parameters determine it; None if the noise works for every d."""

    @abc.abstractmethod
    def scales(self, d: int) -> Float[Array, " d"]:
        """Return the constant scales s of the noise in the coordinates w."""

    @abc.abstractmethod
    def to_state(self, w: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Return the state x = ψ(w)."""

    @abc.abstractmethod
    def to_constant(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Return the coordinates w = ψ⁻¹(x) in which the noise is constant."""

    @abc.abstractmethod
    def support(self, d: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and the upper end of the states, (d,) each; the ends do not belong to them."""

    @abc.abstractmethod
    def edges(self, d: int) -> tuple[Any, Any]:
        """Return the same ends in the coordinates w, (d,) each; infinite where w cannot leave the states."""

    def rates(self, w: Float[Array, " d"]) -> tuple[Float[Array, " d"], Float[Array, " d"], Float[Array, " d"]]:
        """Return x = ψ(w) and the derivatives ψ'(w) and ψ''(w)."""
        one = jnp.ones_like(w)

        def first(w):
            return jax.jvp(self.to_state, (w,), (one,))

        (x, slope), (_, curvature) = jax.jvp(first, (w,), (one,))
        return x, slope, curvature

    def spectral_density(self, d: int) -> Float[Array, "d d"]:
        """Return the constant spectral density Q of w."""
        s = self.scales(d)
        R = np.eye(d) if self.correlation is None else np.array(self.correlation)
        return s[:, None] * R * s[None, :]

    def noisy(self, d: int) -> tuple[int, ...]:
        """Return the coordinates that have noise."""
        return tuple(range(d))

    def check(self, d: int) -> None:
        """Raise a ValueError unless the noise fits a state of dimension d."""
        if self.correlation is not None and len(self.correlation) != d:
            k = len(self.correlation)
            raise ValueError(f"correlation must have shape ({d}, {d}), one row for each coordinate, got ({k}, {k})")


def as_correlation(value: Any) -> Correlation:
    """Convert a correlation matrix to rows of numbers, which are not parameters; None stays None."""
    if value is None:
        return None
    R = np.asarray(parameter(value))
    if R.ndim != 2 or R.shape[0] != R.shape[1]:
        raise ValueError(f"correlation must be a square matrix, got shape {R.shape}")
    if not np.allclose(R.diagonal(), 1.0, rtol=0.0, atol=1e-12):
        raise ValueError(f"correlation must have ones on its diagonal, got {R.diagonal()}; give the sizes as scale=")
    check_covariance("correlation", R)
    return tuple(tuple(row) for row in R.tolist())


def as_scale(name: str, value: Any) -> Any:
    """Convert the scale of a noise to a float64 array, a scalar or (d,); raise a ValueError unless it is positive."""
    s = parameter(value)
    if np.ndim(s) > 1:
        raise ValueError(f"{name} must be a scalar or of shape (d,), got shape {np.shape(s)}")
    if isinstance(s, np.ndarray) and not (np.isfinite(s).all() and (s > 0.0).all()):
        raise ValueError(f"{name} must be positive and finite, got {s!r}")
    return s


def common_dim(*values: Any) -> int | None:
    """Return the length of the parameters that are vectors, or None if there are none; they must agree."""
    sizes = {np.shape(v)[0] for v in values if np.ndim(v) == 1}
    if len(sizes) > 1:
        raise ValueError(f"the parameters of the diffusion have different lengths: {sorted(sizes)}")
    return sizes.pop() if sizes else None


def spread(value: Any, d: int) -> Any:
    """Return a scalar or a vector as a vector of shape (d,); a NumPy value gives a NumPy array."""
    return (np if isinstance(value, np.ndarray | float) else jnp).broadcast_to(value, (d,))


def check_inside(noise: StateDiffusion, name: str, x: np.ndarray) -> None:
    """Raise a ValueError if a state, shape (d,), is not one that the noise allows."""
    low, high = noise.support(len(x))
    bad = ~((x > low) & (x < high))
    if bad.any():
        i = int(np.argmax(bad))
        raise ValueError(
            f"{name}[{i}] = {shown(x[i])} is not between {shown(low[i])} and {shown(high[i])}, where the noise "
            f"{type(noise).__name__} has its states: give a value inside, e.g. initial=gv.GaussianState(mean=..., "
            "cov=...)"
        )
