"""Positive values, and returns whose volatility is the state."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Float

from girsanov._core.precision import parameter
from girsanov._core.special import LOG_2PI
from girsanov._core.types import Array
from girsanov.model.likelihoods.base import Elementwise, Likelihood, check_parameter, check_values
from girsanov.model.likelihoods.gaussian import Gaussian
from girsanov.model.predictive import Belief, Entry, Pieces

_ZERO = 1e-24  # a squared return below which it counts as zero


class Gamma(Elementwise):
    """Positive values with mean μ = exp(z) and variance μ²/shape.

    Args:
        shape: shape of the Gamma distribution, a positive scalar or shape (D,).
    """

    constraints: ClassVar[dict[str, str]] = {"shape": "positive"}

    shape: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)

    def __check_init__(self):
        check_parameter("shape", self.shape)

    def _constant(self, y):
        k = jnp.asarray(self.shape)
        return k * jnp.log(k) - gammaln(k) + (k - 1.0) * jnp.log(y)

    def log_density(self, y, z):
        return self._constant(y) - self.shape * (z + y * jnp.exp(-z))

    def expected(self, y, observed, mean, V):
        """E log p = const − shape · (z̄ + y E e^{−z}) with E e^{−z} = exp(−z̄ + ½V_ii)."""
        y = jnp.where(observed, y, 1.0)
        ratio = y * jnp.exp(-mean + 0.5 * jnp.diagonal(V))
        k = jnp.broadcast_to(jnp.asarray(self.shape), y.shape)
        parts = self._constant(y) - k * (mean + ratio), k * (ratio - 1.0), -0.5 * k * ratio
        value, g_mean, g_var = (jnp.where(observed, a, 0.0) for a in parts)
        return value.sum(), g_mean, jnp.diag(g_var)

    def conditional(self, z):
        mean = jnp.exp(z)
        return mean, mean**2 / self.shape

    def predictive(self, mean, V):
        """E y = exp(z̄ + ½V_ii), Cov(y_i, y_j) = E y_i E y_j (exp V_ij − 1), and E μ_i²/shape in addition if i = j."""
        y = jnp.exp(mean + 0.5 * jnp.diagonal(V))
        return y, jnp.outer(y, y) * jnp.expm1(V) + jnp.diag(y**2 * jnp.exp(jnp.diagonal(V)) / self.shape)

    def log_prob(self, y, observed, z):
        return super().log_prob(jnp.where(observed, y, 1.0), observed, z)

    def log_predictive(self, y, observed, mean, V):
        return super().log_predictive(jnp.where(observed, y, 1.0), observed, mean, V)

    def sample(self, key, z):
        k = jnp.broadcast_to(jnp.asarray(self.shape), z.shape)
        return jnp.exp(z) * jax.random.gamma(key, k) / k

    def start(self, y):
        y = jnp.where(y > 0.0, y, 1.0)  # a missing entry may hold any number
        return jnp.log(y), jnp.broadcast_to(jnp.asarray(self.shape), y.shape)

    def check(self, y, observed):
        check_values("Gamma", "positive", y, observed, y > 0)


class LogNormal(Likelihood):
    """Positive values with log y ~ N(z, variance).

    Args:
        variance: of log y: a positive scalar, shape (D,), or a positive-definite matrix of shape (D, D).
    """

    constraints: ClassVar[dict[str, str]] = {"variance": "positive"}

    variance: Float[Array, "..."] = eqx.field(converter=parameter)

    def __check_init__(self):
        Gaussian(self.variance)

    def _logs(self, y, observed):
        """Return log y, zero where it is missing, and the log Jacobian −Σ log y."""
        logs = jnp.log(jnp.where(observed, y, 1.0))
        return logs, -logs.sum()

    def expected(self, y, observed, mean, V):
        logs, jacobian = self._logs(y, observed)
        value, g_mean, g_V = Gaussian(self.variance).expected(logs, observed, mean, V)
        return value + jacobian, g_mean, g_V

    def log_predictive(self, y, observed, mean, V):
        logs, jacobian = self._logs(y, observed)
        return Gaussian(self.variance).log_predictive(logs, observed, mean, V) + jacobian

    def log_prob(self, y, observed, z):
        logs, jacobian = self._logs(y, observed)
        return Gaussian(self.variance).log_prob(logs, observed, z) + jacobian

    def predictive(self, mean, V):
        """E y = exp(z̄ + ½W_ii) and Cov(y_i, y_j) = E y_i E y_j (exp W_ij − 1), with W = V + the covariance of log y."""
        _, W = Gaussian(self.variance).predictive(mean, V)
        y = jnp.exp(mean + 0.5 * jnp.diagonal(W))
        return y, jnp.outer(y, y) * jnp.expm1(W)

    def sample(self, key, z):
        return jnp.exp(Gaussian(self.variance).sample(key, z))

    def conditional(self, z):
        """Return mean and variance of y given z; see `Gaussian.conditional`."""
        variance = Gaussian(self.variance).conditional(z)[1]
        mean = jnp.exp(z + 0.5 * variance)
        return mean, mean**2 * jnp.expm1(variance)

    def readings(self, y, observed, mean, V):
        """Return log y as a reading of z; see `Elementwise.readings`."""
        return self.start(y)

    def pieces(self, y: Float[Array, ""]) -> Entry:
        """Return the only piece of a single entry, the reading log y; see the module `predictive`.

        Args:
            y: one entry of an observation, a scalar.

        Returns:
            A function from beliefs about z to pieces.
        """
        (log_y,), jacobian = self._logs(y[None], y[None] > 0.0)
        entry = Gaussian(self.variance).pieces(log_y)

        def with_jacobian(belief: Belief) -> Pieces:
            pieces = entry(belief)
            return pieces._replace(log_weight=pieces.log_weight + jacobian)

        return with_jacobian

    def start(self, y):
        return Gaussian(self.variance).start(jnp.log(jnp.where(y > 0.0, y, 1.0)))

    def check(self, y, observed):
        check_values("LogNormal", "positive", y, observed, y > 0)


class StochasticVolatility(Elementwise):
    """Returns y ~ N(0, exp(z)): the state is the logarithm of their variance."""

    def log_density(self, y, z):
        return -0.5 * (LOG_2PI + z + y**2 * jnp.exp(-z))

    def expected(self, y, observed, mean, V):
        """E log p = −½(log 2π + z̄ + y² E e^{−z}) with E e^{−z} = exp(−z̄ + ½V_ii)."""
        ratio = y**2 * jnp.exp(-mean + 0.5 * jnp.diagonal(V))
        parts = -0.5 * (LOG_2PI + mean + ratio), 0.5 * (ratio - 1.0), -0.25 * ratio
        value, g_mean, g_var = (jnp.where(observed, a, 0.0) for a in parts)
        return value.sum(), g_mean, jnp.diag(g_var)

    def conditional(self, z):
        return jnp.zeros_like(z), jnp.exp(z)

    def predictive(self, mean, V):
        """E y = 0 and Var y_i = exp(z̄ + ½V_ii); entries are not correlated."""
        return jnp.zeros_like(mean), jnp.diag(jnp.exp(mean + 0.5 * jnp.diagonal(V)))

    def sample(self, key, z):
        return jnp.exp(0.5 * z) * jax.random.normal(key, z.shape)

    def start(self, y):
        # log y² is z plus the logarithm of a χ² variable with one degree of freedom, of mean −1.27 and variance π²/2.
        # A return of zero says nothing of where z is.
        square = y**2
        return jnp.log(square + _ZERO) + 1.27, 0.2 * square / (square + _ZERO)
