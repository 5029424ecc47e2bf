"""Gaussian noise."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.checks import check_covariance
from girsanov._core.precision import parameter
from girsanov._core.special import LOG_2PI
from girsanov._core.types import Array
from girsanov.model.likelihoods.base import Likelihood, check_parameter
from girsanov.model.predictive import Entry, reading


def _maybe_parameter(value: Any) -> Any:
    return None if value is None else parameter(value)


class Gaussian(Likelihood):
    """Gaussian noise: y = z + ε with ε ~ N(0, R).

    If the series has errors, their squares are added to the diagonal of R for each observation.

    Args:
        variance: R as a scalar, as its diagonal of shape (D,), or as a matrix of shape (D, D). None (the default) is
            for a series with errors, which then are all the noise there is.
    """

    constraints: ClassVar[dict[str, str]] = {"variance": "positive"}
    takes_errors: ClassVar[bool] = True
    about_z: ClassVar[bool] = True

    variance: Float[Array, "..."] | None = eqx.field(converter=_maybe_parameter, default=None)

    def __check_init__(self):
        v = self.variance
        if v is None:
            return
        if np.ndim(v) < 2:
            check_parameter("variance", v)
        elif isinstance(v, np.ndarray):
            check_covariance("variance", v)

    def covariance(self, D: int) -> Float[Array, "D D"]:
        """Return R as a matrix.

        Args:
            D: number of entries of an observation.

        Returns:
            The noise covariance, shape (D, D).
        """
        v = jnp.asarray(0.0 if self.variance is None else self.variance)
        return v if v.ndim == 2 else jnp.diag(jnp.broadcast_to(v, (D,)))

    def _precision(self, observed):
        """Return the inverse of the observed block of R, with zeros elsewhere, and log|2πR| of that block."""
        R = self.covariance(observed.shape[0])
        both = observed[:, None] & observed[None, :]
        R = jnp.where(both, R, jnp.eye(R.shape[0], dtype=R.dtype))
        log_det = jnp.linalg.slogdet(R)[1] + LOG_2PI * observed.sum()
        return jnp.where(both, jnp.linalg.inv(R), 0.0), log_det

    def expected(self, y, observed, mean, V):
        P, log_det = self._precision(observed)
        e = jnp.where(observed, y - mean, 0.0)
        return -0.5 * (e @ P @ e + (P * V).sum() + log_det), P @ e, -0.5 * P

    def log_predictive(self, y, observed, mean, V):
        total = Gaussian(V + self.covariance(y.shape[0]))
        return total.log_prob(y, observed, mean)

    def predictive(self, mean, V):
        return mean, V + self.covariance(mean.shape[0])

    def log_prob(self, y, observed, z):
        P, log_det = self._precision(observed)
        e = jnp.where(observed, y - z, 0.0)
        return -0.5 * (e @ P @ e + log_det)

    def sample(self, key, z):
        if self.variance is None:
            return z
        return z + jnp.linalg.cholesky(self.covariance(z.shape[0])) @ jax.random.normal(key, z.shape)

    def with_errors(self, errors):
        return Gaussian(self.covariance(errors.shape[0]) + jnp.diag(errors**2))

    def check_errors(self, errors, observed):
        if self.variance is not None:
            return
        if errors is None:
            raise ValueError(
                "the Gaussian likelihood has no variance, and the series has no errors: give Gaussian(variance=...), "
                "or TimeSeries(times, values, errors=...)"
            )
        bad = np.argwhere(observed & (errors == 0.0))
        if len(bad):
            i, j = bad[0]
            raise ValueError(
                f"errors[{i}, {j}] is 0, and the likelihood adds no noise to it; give a positive error, or a "
                "likelihood Gaussian(variance=...) whose variance is added to the squared errors"
            )

    def conditional(self, z):
        """Return mean and variance of y given z, if each entry of y has a variance of its own.

        Args:
            z: emissions; the last axis is that of the D entries.

        Returns:
            The means and the variances, both of the shape of z.
        """
        return z, jnp.broadcast_to(jnp.diagonal(self.covariance(z.shape[-1])), z.shape)

    def readings(self, y, observed, mean, V):
        """Return the observation itself as a reading of z; see `Elementwise.readings`."""
        return self.start(y)

    def pieces(self, y: Float[Array, ""]) -> Entry:
        """Return the only piece of a single entry, the observation itself; see the module `predictive`.

        Args:
            y: one entry of an observation, a scalar.

        Returns:
            A function from beliefs about z to pieces.
        """
        return reading(y, self.covariance(1)[0, 0])

    def start(self, y):
        return y, 1.0 / jnp.diagonal(self.covariance(y.shape[0]))
