"""Kinds of noise that depend on the state and have constant noise in coordinates known in closed form."""

from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.checks import is_finite
from girsanov._core.precision import parameter
from girsanov._core.types import Array
from girsanov.model.diffusions.state import (
    Correlation,
    StateDiffusion,
    as_correlation,
    as_scale,
    common_dim,
    spread,
)

_SERIES = 1e-6  # below this |1 − p|, a power is expanded about p = 1


class ByScale(StateDiffusion):
    """Base class of noises that have a parameter `scale`, a scalar or (d,)."""

    scale: eqx.AbstractVar[Float[Array, "..."]]

    @property
    def dim(self) -> int | None:
        return common_dim(self.scale)

    def scales(self, d):
        return spread(self.scale, d)


class OfPositiveStates(ByScale):
    """Base class of noises of positive states."""

    def support(self, d):
        return np.zeros(d), np.full(d, np.inf)


class Proportional(OfPositiveStates):
    """Noise in proportion to a positive state, σ(x) = scale · x, as in geometric Brownian motion.

    Args:
        scale: a positive number, or shape (d,).
        correlation: correlations of the noises of the coordinates, (d, d); by default they are independent.
    """

    scale: Float[Array, "..."]
    correlation: Correlation = eqx.field(static=True)
    constraints: ClassVar[dict[str, str]] = {"scale": "positive"}

    def __init__(self, scale: Any, correlation: Any = None):
        self.scale, self.correlation = as_scale("scale", scale), as_correlation(correlation)

    def to_state(self, w):
        return jnp.exp(w)

    def to_constant(self, x):
        return jnp.log(x)

    def edges(self, d):
        return np.full(d, -np.inf), np.full(d, np.inf)


class SquareRoot(OfPositiveStates):
    """Noise in proportion to the root of a positive state, σ(x) = scale · √x, as in the model of Cox, Ingersoll, Ross.

    The coordinate with constant noise is w = 2√x. A Gaussian in w does not stop at x = 0; a posterior that comes close
    to it gets the status `boundary`.

    Args:
        scale: a positive number, or shape (d,).
        correlation: correlations of the noises of the coordinates, (d, d); by default they are independent.
    """

    scale: Float[Array, "..."]
    correlation: Correlation = eqx.field(static=True)
    constraints: ClassVar[dict[str, str]] = {"scale": "positive"}

    def __init__(self, scale: Any, correlation: Any = None):
        self.scale, self.correlation = as_scale("scale", scale), as_correlation(correlation)

    def to_state(self, w):
        return 0.25 * w**2

    def to_constant(self, x):
        return 2.0 * jnp.sqrt(x)

    def edges(self, d):
        return np.zeros(d), np.full(d, np.inf)


class Power(OfPositiveStates):
    """Noise in proportion to a power of a positive state, σ(x) = scale · x^exponent.

    The coordinate with constant noise is w = (x^{1−p} − 1)/(1 − p) for the exponent p, which is log x for p = 1.

    Args:
        scale: a positive number, or shape (d,).
        exponent: a positive number, or shape (d,).
        correlation: correlations of the noises of the coordinates, (d, d); by default they are independent.
    """

    scale: Float[Array, "..."]
    exponent: Float[Array, "..."]
    correlation: Correlation = eqx.field(static=True)
    constraints: ClassVar[dict[str, str]] = {"scale": "positive", "exponent": "positive"}

    def __init__(self, scale: Any, exponent: Any, correlation: Any = None):
        self.scale, self.exponent = as_scale("scale", scale), as_scale("exponent", exponent)
        self.correlation = as_correlation(correlation)

    @property
    def dim(self) -> int | None:
        return common_dim(self.scale, self.exponent)

    def to_state(self, w):
        a = 1.0 - self.exponent
        near = jnp.abs(a) < _SERIES
        safe = jnp.where(near, 1.0, a)
        log_x = jnp.log(jnp.abs(1.0 + safe * w)) / safe
        return jnp.exp(jnp.where(near, w - 0.5 * a * w**2, log_x))

    def to_constant(self, x):
        a, log_x = 1.0 - self.exponent, jnp.log(x)
        near = jnp.abs(a) < _SERIES
        safe = jnp.where(near, 1.0, a)
        return jnp.where(near, log_x + 0.5 * a * log_x**2, jnp.expm1(safe * log_x) / safe)

    def edges(self, d):
        a = 1.0 - jnp.broadcast_to(self.exponent, (d,))
        near = jnp.abs(a) < _SERIES
        end = -1.0 / jnp.where(near, 1.0, a)
        return jnp.where(near | (a < 0.0), -jnp.inf, end), jnp.where(near | (a > 0.0), jnp.inf, end)


class Bounded(ByScale):
    """Noise that vanishes at both ends of an interval, σ(x) = scale · √((x − low)(high − x)), as in Jacobi's process.

    The coordinate with constant noise is the angle w with x = low + (high − low) sin²(w/2). A posterior that comes
    close to an end gets the status `boundary`.

    Args:
        scale: a positive number, or shape (d,).
        low, high: the ends of the interval, the same for all coordinates; by default 0 and 1. They are not parameters.
        correlation: correlations of the noises of the coordinates, (d, d); by default they are independent.
    """

    scale: Float[Array, "..."]
    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)
    correlation: Correlation = eqx.field(static=True)
    constraints: ClassVar[dict[str, str]] = {"scale": "positive"}

    def __init__(self, scale: Any, low: float = 0.0, high: float = 1.0, correlation: Any = None):
        self.scale, self.correlation = as_scale("scale", scale), as_correlation(correlation)
        self.low, self.high = interval(low, high)

    def to_state(self, w):
        return self.low + (self.high - self.low) * jnp.sin(0.5 * w) ** 2

    def to_constant(self, x):
        return 2.0 * jnp.arcsin(jnp.sqrt((x - self.low) / (self.high - self.low)))

    def support(self, d):
        return np.full(d, self.low), np.full(d, self.high)

    def edges(self, d):
        return np.zeros(d), np.full(d, np.pi)


class Constant(StateDiffusion):
    """Noise of a single coordinate that does not depend on the state, beside others that do; made from a number.

    Args:
        spectral: the spectral density Q of the coordinate, as in `Model(diffusion=...)`; 0 for no noise.
    """

    spectral: Float[Array, ""] | None  # None for no noise, which is not a parameter
    correlation: Correlation = eqx.field(static=True)
    constraints: ClassVar[dict[str, str]] = {"spectral": "positive"}

    def __init__(self, spectral: Any = 0.0):
        value = parameter(spectral)
        if np.ndim(value) or (isinstance(value, np.ndarray) and not (np.isfinite(value) and value >= 0.0)):
            raise ValueError(
                f"diffusion has an entry {spectral!r}: in a list, every entry must be one number ≥ 0 or a noise of "
                "gv.diffusions for one coordinate"
            )
        self.spectral = None if isinstance(value, np.ndarray) and value == 0.0 else value
        self.correlation = None

    @property
    def dim(self) -> int | None:
        return None

    def scales(self, d):
        return np.zeros(d) if self.spectral is None else spread(self.spectral**0.5, d)

    def to_state(self, w):
        return w

    def to_constant(self, x):
        return x

    def support(self, d):
        return np.full(d, -np.inf), np.full(d, np.inf)

    def edges(self, d):
        return self.support(d)


class Each(StateDiffusion):
    """A noise of its own for every coordinate; `Model(diffusion=[a, b])` makes it from a list.

    Args:
        parts: one noise for each coordinate, of this module, or a number for a constant spectral density. Their
            parameters are named "diffusion[0].scale" and so on in learning.
        correlation: correlations of the noises of the coordinates, (d, d); by default they are independent.
    """

    parts: tuple[StateDiffusion, ...]
    correlation: Correlation = eqx.field(static=True)

    def __init__(self, parts: Sequence[Any], correlation: Any = None):
        self.parts = tuple(p if isinstance(p, StateDiffusion) else Constant(p) for p in parts)
        self.correlation = as_correlation(correlation)
        for i, part in enumerate(self.parts):
            if part.dim is not None:
                raise ValueError(f"diffusion[{i}] is for {part.dim} coordinates; in a list, give each noise one number")
            if part.correlation is not None or isinstance(part, Each):
                raise ValueError(
                    f"diffusion[{i}] is the noise of one coordinate and has no correlations of its own: give them for "
                    "all coordinates, gv.diffusions.Each([...], correlation=...)"
                )

    @property
    def dim(self) -> int | None:
        return len(self.parts)

    def noisy(self, d):
        return tuple(i for i, p in enumerate(self.parts) if not (isinstance(p, Constant) and p.spectral is None))

    def _joined(self, values: list[Any]) -> Any:
        host = all(isinstance(v, np.ndarray) for v in values)
        return (np if host else jnp).concatenate(values)

    def scales(self, d):
        return self._joined([part.scales(1) for part in self.parts])

    def to_state(self, w):
        return jnp.stack([part.to_state(w[..., i]) for i, part in enumerate(self.parts)], -1)

    def to_constant(self, x):
        return jnp.stack([part.to_constant(x[..., i]) for i, part in enumerate(self.parts)], -1)

    def support(self, d):
        low, high = zip(*(part.support(1) for part in self.parts), strict=True)
        return np.concatenate(low), np.concatenate(high)

    def edges(self, d):
        low, high = zip(*(part.edges(1) for part in self.parts), strict=True)
        return self._joined(list(low)), self._joined(list(high))


def interval(low: Any, high: Any) -> tuple[float, float]:
    """Return the ends of an interval as numbers; raise a ValueError unless they are finite and low < high."""
    if not (is_finite(low) and is_finite(high) and float(low) < float(high)):
        raise ValueError(f"low and high must be finite numbers with low < high, got {low!r} and {high!r}")
    return float(low), float(high)
