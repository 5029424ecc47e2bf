"""Gaussian noise with detection limits."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr, ndtr
from jaxtyping import Float

from girsanov._core.checks import as_floats
from girsanov._core.precision import parameter
from girsanov._core.special import LOG_2PI
from girsanov._core.types import Array
from girsanov.model.likelihoods.base import Elementwise, check_parameter
from girsanov.model.likelihoods.integrals import quadrature_sums, two_scale_nodes
from girsanov.model.predictive import Belief, Entry, Pieces, beyond, reading


def _limit(value: Any) -> float:
    if np.ndim(value):
        raise ValueError(
            f"a detection limit must be one number, got {value!r}; if outputs differ, give a list of likelihoods, such "
            "as [Censored(0.1, low=0.0), Censored(0.1, low=1.0)]"
        )
    return float(as_floats("a detection limit", value))


class Censored(Elementwise):
    """y = z + ε with ε ~ N(0, variance), recorded as `low` or `high` where it lies beyond that detection limit.

    A value at or below `low` says only that y is not above it, and one at or above `high` that y is not below it.

    Args:
        variance: variance of the noise, a positive scalar or shape (D,).
        low: lower detection limit, by default none. It is part of the data and is not learnt.
        high: upper detection limit, by default none.
    """

    constraints: ClassVar[dict[str, str]] = {"variance": "positive"}
    takes_errors: ClassVar[bool] = True
    about_z: ClassVar[bool] = True

    variance: Float[Array, "..."] = eqx.field(converter=parameter)
    low: float = eqx.field(static=True, converter=_limit, default=-float("inf"))
    high: float = eqx.field(static=True, converter=_limit, default=float("inf"))

    def __check_init__(self):
        check_parameter("variance", self.variance)
        if not self.low < self.high:
            raise ValueError(
                f"the detection limits must have low < high, got low = {self.low} and high = {self.high}; leave one "
                "out where there is none"
            )

    def _limit(self, y):
        """Return whether y is at a limit, that limit, and the side of z on which it is likely."""
        below, above = y <= self.low, y >= self.high
        limit = jnp.where(below, self.low, jnp.where(above, self.high, y))
        return below | above, limit, jnp.where(below, -1.0, 1.0)

    def log_density(self, y, z):
        sd = jnp.sqrt(jnp.asarray(self.variance))
        at_limit, limit, side = self._limit(y)
        e = (z - limit) / sd
        return jnp.where(at_limit, log_ndtr(side * e), -0.5 * (e**2 + LOG_2PI) - jnp.log(sd))

    def by_quadrature(self, y, observed, mean, V, factor):
        """Closed form between the limits, and quadrature that resolves the noise at them."""
        variance, v = jnp.broadcast_to(jnp.asarray(self.variance), y.shape), jnp.diagonal(V)
        at_limit, limit, side = self._limit(y)
        sd, width = jnp.sqrt(v), jnp.sqrt(variance)
        xi, w = two_scale_nodes(limit, width, mean, sd, factor)
        tail = quadrature_sums(log_ndtr(side * (mean + sd * xi - limit) / width), xi, w, sd)
        e = y - mean
        inside = -0.5 * ((e**2 + v) / variance + LOG_2PI + jnp.log(variance)), e / variance, -0.5 / variance
        parts = (jnp.where(at_limit, a, b) for a, b in zip(tail, inside, strict=True))
        value, g_mean, g_var = (jnp.where(observed, a, 0.0) for a in parts)
        return value.sum(), g_mean, jnp.diag(g_var)

    def pieces(self, y: Float[Array, ""]) -> Entry:
        """Return readings beyond the limit, or the observation itself in as many equal pieces; see `predictive`.

        Args:
            y: one entry of an observation, a scalar.

        Returns:
            A function from beliefs about z to pieces.
        """
        variance = jnp.asarray(self.variance)
        at_limit, limit, side = self._limit(y)
        tail, inside = beyond(limit, side, variance), reading(y, variance)

        def entry(belief: Belief) -> Pieces:
            many, one = tail(belief), inside(belief)
            one = one._replace(log_weight=one.log_weight - jnp.log(many.log_weight.shape[1]))
            return Pieces(*(jnp.where(at_limit, a, b) for a, b in zip(many, one, strict=True)))

        return entry

    def conditional(self, z):
        """Moments of a Gaussian that is clipped at the limits."""
        sd = jnp.sqrt(jnp.asarray(self.variance))
        density = lambda e: jnp.exp(-0.5 * e**2 - 0.5 * LOG_2PI)  # noqa: E731
        a, b = (self.low - z) / sd, (self.high - z) / sd
        inside = ndtr(b) - ndtr(a)
        # E[y; inside] and E[(y − z)²; inside]; at an infinite limit its terms are zero.
        at = lambda e: jnp.where(jnp.isfinite(e), e, 0.0) * density(e)  # noqa: E731
        first = sd * (density(a) - density(b))
        second = sd**2 * (inside + at(a) - at(b))
        mean = z * inside + first
        square = z**2 * inside + 2.0 * z * first + second
        for limit, share in ((self.low, ndtr(a)), (self.high, ndtr(-b))):
            if abs(limit) < float("inf"):
                mean, square = mean + limit * share, square + limit**2 * share
        return mean, square - mean**2

    def sample(self, key, z):
        y = z + jnp.sqrt(jnp.asarray(self.variance)) * jax.random.normal(key, z.shape)
        return jnp.clip(y, self.low, self.high)

    def with_errors(self, errors):
        return Censored(jnp.asarray(self.variance) + errors**2, self.low, self.high)

    def start(self, y):
        return jnp.clip(y, self.low, self.high), jnp.broadcast_to(1.0 / jnp.asarray(self.variance), y.shape)
