"""Noise σ(x) given by a function, with constant noise in coordinates that are computed numerically."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.checks import shown
from girsanov._core.precision import float64, own
from girsanov._core.types import Array
from girsanov.model.diffusions.kinds import interval
from girsanov.model.diffusions.state import Correlation, StateDiffusion, as_correlation

_CELLS = 1024
_POINTS = 6  # of Gauss–Legendre quadrature in a cell
_ROUNDS = 4  # times that the cells are laid anew
_NEWTON = 3  # steps from the interpolated x to the solution of w(x) = w


class Scale(StateDiffusion):
    """Noise σ(x) = fn(x), for every coordinate alike.

    The coordinate with constant noise is w(x) = ∫ du/fn(u) from the middle of the interval to x, by Gauss–Legendre
    quadrature in 1024 cells; its inverse is found by Newton's method. Beyond the interval the noise would be unknown: a
    posterior that comes close to an end gets the status `boundary`.

    Args:
        fn: a callable of a scalar state that returns a positive scalar, written with jax.numpy. If it is a pytree, such
            as an equinox module, its arrays are parameters that can be learnt.
        low, high: the interval on which fn is used. It must contain all states that the posterior may reach.
        correlation: correlations of the noises of the coordinates, (d, d); by default they are independent.
    """

    fn: Callable
    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)
    correlation: Correlation = eqx.field(static=True)

    @float64
    def __init__(self, fn: Callable, low: float, high: float, correlation: Any = None):
        if not callable(fn):
            raise ValueError(f"fn must be a callable of a scalar state, got {fn!r}")
        self.fn, self.correlation = fn, as_correlation(correlation)
        self.low, self.high = interval(low, high)
        self._check_positive()

    def _check_positive(self) -> None:
        """Raise a ValueError unless fn is positive and finite on the interval; traced parameters are not checked."""
        x = np.linspace(self.low, self.high, 4 * _CELLS + 1)
        try:
            sigma = np.asarray(jax.vmap(own(self.fn))(x), dtype=np.float64)
        except jax.errors.TracerArrayConversionError:
            return
        except Exception as error:
            raise ValueError(
                f"the noise fn failed on a scalar state: {type(error).__name__}: {error}. It is called as fn(x) with a "
                "JAX scalar; use jax.numpy inside"
            ) from error
        if sigma.shape != x.shape:
            raise ValueError(f"the noise fn must return a scalar for a scalar state, got shape {sigma.shape[1:]}")
        bad = ~(np.isfinite(sigma) & (sigma > 0.0))
        if bad.any():
            i = int(np.argmax(bad))
            raise ValueError(
                f"the noise fn returned {sigma[i]} at state {shown(x[i])}: it must be positive and finite from "
                f"low={shown(self.low)} to high={shown(self.high)}; choose an interval inside which it is"
            )

    @property
    def dim(self) -> int | None:
        return None

    def scales(self, d):
        return np.ones(d)

    def _sigma(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Return σ at every entry; beyond the interval it is that of the end, so that w(x) goes on."""
        inside = jnp.clip(x, self.low, self.high)
        return jnp.vectorize(self.fn)(inside)

    def _between(self, x0: Float[Array, "*n"], x1: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Return ∫ du/σ(u) from x0 to x1, which lie in one cell or beyond the interval."""
        half = 0.5 * (x1 - x0)
        abscissae, weights = np.polynomial.legendre.leggauss(_POINTS)
        u = 0.5 * (x0 + x1)[..., None] + half[..., None] * abscissae
        return half * (jnp.asarray(weights) / self._sigma(u)).sum(-1)

    def _table(self) -> tuple[Float[Array, " K"], Float[Array, " K"]]:
        """Return the ends x of the cells and w there."""
        x = jnp.linspace(self.low, self.high, _CELLS + 1)
        middle = 0.5 * (self.low + self.high)
        for last in (False,) * _ROUNDS + (True,):
            w = jnp.concatenate([jnp.zeros(1), jnp.cumsum(self._between(x[:-1], x[1:]))])
            if not last:  # cells of equal length in w are short where σ is small
                x = jax.lax.stop_gradient(jnp.interp(jnp.linspace(0.0, 1.0, _CELLS + 1) * w[-1], w, x))
        cell = jnp.searchsorted(x, middle, side="right") - 1
        return x, w - (w[cell] + self._between(x[cell], jnp.asarray(middle)))

    def to_constant(self, x):
        ends, w = self._table()
        cell = jnp.clip(jnp.searchsorted(ends, x, side="right") - 1, 0, _CELLS)
        return w[cell] + self._between(ends[cell], x)

    def to_state(self, w):
        ends, table = self._table()
        cell = jnp.clip(jnp.searchsorted(table, w, side="right") - 1, 0, _CELLS)
        start, rest = ends[cell], w - table[cell]
        x = start + rest * self._sigma(start)
        for _ in range(_NEWTON):
            x = x - (self._between(start, x) - rest) * self._sigma(x)
        return x

    def rates(self, w):
        x = self.to_state(w)
        slope, along = jax.jvp(self._sigma, (x,), (jnp.ones_like(x),))
        return x, slope, slope * along

    def support(self, d):
        return np.full(d, self.low), np.full(d, self.high)

    def edges(self, d):
        w = self._table()[1]
        return jnp.broadcast_to(w[0], (d,)), jnp.broadcast_to(w[-1], (d,))
