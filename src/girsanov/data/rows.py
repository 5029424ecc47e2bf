"""Observations as the rows of arrays, the form in which the observation model takes them."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from girsanov._core.types import Array
from girsanov.data.series import TimeSeries


class Rows(eqx.Module):
    """Observations at n times; with other leading axes, an array of such observations, or a single one.

    Attributes:
        t: times, shape (n,).
        y: values, shape (n, D), with an arbitrary finite number for a missing value.
        observed: mask of the values that are not missing, shape (n, D).
        errors: known standard deviations of the values, shape (n, D), or None if the series has none.
    """

    t: Float[Array, "*n"]
    y: Float[Array, "*n D"]
    observed: Bool[Array, "*n D"]
    errors: Float[Array, "*n D"] | None = None

    def __getitem__(self, index) -> "Rows":
        errors, t = None if self.errors is None else self.errors[index], self.t[index]
        return Rows(np.asarray(t) if isinstance(t, np.generic) else t, self.y[index], self.observed[index], errors)

    def repeated(self, n: int) -> "Rows":
        """Return n copies of a single observation."""
        t, y, observed = (jnp.broadcast_to(a, (n, *jnp.shape(a))) for a in (self.t, self.y, self.observed))
        errors = None if self.errors is None else jnp.broadcast_to(self.errors, y.shape)
        return Rows(t, y, observed, errors)


def rows_of(series: TimeSeries) -> Rows:
    """Return the observations of a series, with zeros for missing values, in arrays of their own."""
    errors = None if series.errors is None else np.where(series.observed, series.errors, 0.0)
    return Rows(np.array(series.times), series.filled, np.array(series.observed), errors)
