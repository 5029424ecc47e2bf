"""Observation models p(y | z) with z = H x, the emission of the state.

A likelihood works on one observation: y of shape (D,) and a mask `observed` of the entries that are there. Entries
that are missing carry an arbitrary finite number and must not matter.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Bool, Float

from girsanov._precision import parameter
from girsanov._types import Array
from girsanov.quadrature import GaussHermite

LOG_2PI = 1.8378770664093453
_NODES = 32  # for E log p under a scalar Gaussian
_PREDICTIVE_NODES = {1: 128, 2: 40, 3: 20}  # a dimension, for log E p under a joint Gaussian
_PREDICTIVE_DRAWS = 20_000  # above three dimensions


class Likelihood(eqx.Module):
    """The interface of an observation model; V is the covariance of z, all gradients are in (z̄, V).

    `constraints` says which parameters learning keeps positive (a matrix: positive definite).
    """

    constraints: ClassVar[dict[str, str]] = {}

    @abc.abstractmethod
    def expected(
        self, y: Float[Array, " D"], observed: Bool[Array, " D"], mean: Float[Array, " D"], V: Float[Array, "D D"]
    ) -> tuple[Float[Array, ""], Float[Array, " D"], Float[Array, "D D"]]:
        """E log p(y | z) under z ~ N(mean, V), its gradient in the mean and its (symmetric) gradient in V."""

    @abc.abstractmethod
    def log_predictive(
        self, y: Float[Array, " D"], observed: Bool[Array, " D"], mean: Float[Array, " D"], V: Float[Array, "D D"]
    ) -> Float[Array, ""]:
        """log E p(y | z) under z ~ N(mean, V)."""

    @abc.abstractmethod
    def predictive(
        self, mean: Float[Array, " D"], V: Float[Array, "D D"]
    ) -> tuple[Float[Array, " D"], Float[Array, "D D"]]:
        """Mean and covariance of y when z ~ N(mean, V)."""

    @abc.abstractmethod
    def log_prob(
        self, y: Float[Array, " D"], observed: Bool[Array, " D"], z: Float[Array, " D"]
    ) -> Float[Array, ""]: ...

    @abc.abstractmethod
    def sample(self, key: Array, z: Float[Array, " D"]) -> Float[Array, " D"]: ...

    @abc.abstractmethod
    def start(self, y: Float[Array, " D"]) -> tuple[Float[Array, " D"], Float[Array, " D"]]:
        """A rough Gaussian reading of y, as a mean and a precision of each entry of z, to start the iterations from."""

    def check(self, y: np.ndarray, observed: np.ndarray) -> None:
        """Raise a ValueError that names the value and its place where y is outside the likelihood's domain."""


def _positive(name: str, value: Any) -> None:
    if not isinstance(value, np.ndarray):
        return  # traced: constraints are the optimiser's business
    bad = ~(np.isfinite(value) & (value > 0))
    if bad.any():
        raise ValueError(f"{name} must be positive and finite, got {float(value[bad].flat[0])!r}")


class Gaussian(Likelihood):
    """y = z + ε, ε ~ N(0, R); `variance` is a scalar, (D,) for a diagonal R, or a full (D, D) matrix."""

    constraints: ClassVar[dict[str, str]] = {"variance": "positive"}

    variance: Float[Array, "..."] = eqx.field(converter=parameter)

    def __check_init__(self):
        v = self.variance
        if np.ndim(v) < 2:
            _positive("variance", v)
        elif isinstance(v, np.ndarray):
            check_covariance("variance", v)

    def covariance(self, D: int) -> Float[Array, "D D"]:
        v = jnp.asarray(self.variance)
        return v if v.ndim == 2 else jnp.diag(jnp.broadcast_to(v, (D,)))

    def _precision(self, observed):
        """Inverse of the observed block of R, zero elsewhere, and log|2πR| of that block."""
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
        return z + jnp.linalg.cholesky(self.covariance(z.shape[0])) @ jax.random.normal(key, z.shape)

    def start(self, y):
        return y, 1.0 / jnp.diagonal(self.covariance(y.shape[0]))


class Elementwise(Likelihood):
    """Entries of y independent given z, each with its own log density; expectations by quadrature."""

    @abc.abstractmethod
    def log_density(self, y: Float[Array, "..."], z: Float[Array, "..."]) -> Float[Array, "..."]: ...

    @abc.abstractmethod
    def conditional(self, z: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Mean and variance of y given z."""

    def expected(self, y, observed, mean, V):
        rule = GaussHermite(_NODES).rule(1)
        xi, w = rule.nodes[0], rule.weights
        sd = jnp.sqrt(jnp.diagonal(V))
        values = self.log_density(y[:, None], mean[:, None] + sd[:, None] * xi)
        values = jnp.where(observed[:, None], values, 0.0)
        # Gaussian weights: ∂/∂mean E = E[v ξ]/sd, ∂/∂var E = ½(E[v ξ²] − E[v])/sd²
        E = values @ w
        g_mean = values @ (w * xi) / sd
        g_var = 0.5 * (values @ (w * (xi**2 - 1.0))) / sd**2
        return E.sum(), g_mean, jnp.diag(g_var)

    def log_predictive(self, y, observed, mean, V):
        D = y.shape[0]
        if D in _PREDICTIVE_NODES:
            rule = GaussHermite(_PREDICTIVE_NODES[D]).rule(D)
            xi, w = jnp.asarray(rule.nodes), jnp.asarray(rule.weights)
        else:
            xi = jax.random.normal(jax.random.key(0), (D, _PREDICTIVE_DRAWS))
            w = jnp.full(_PREDICTIVE_DRAWS, 1.0 / _PREDICTIVE_DRAWS)
        e, U = jnp.linalg.eigh(V)  # V is only semi-definite where the emission has more rows than the state
        root = U * jnp.sqrt(jnp.maximum(e, 0.0))
        z = mean[:, None] + root @ xi
        values = jnp.where(observed[:, None], self.log_density(y[:, None], z), 0.0).sum(0)
        return jax.scipy.special.logsumexp(values, b=w)

    def predictive(self, mean, V):
        rule = GaussHermite(_NODES).rule(1)
        xi, w = rule.nodes[0], rule.weights
        sd = jnp.sqrt(jnp.diagonal(V))
        mu, var = self.conditional(mean[:, None] + sd[:, None] * xi)
        y_mean = mu @ w
        # Cov(y) = diag E[var(y|z)] + Cov(E[y|z]); the latter off the diagonal to first order (Bonnet: E[∇μ] V E[∇μ]ᵀ)
        slope = mu @ (w * xi) / sd
        cov = slope[:, None] * V * slope[None, :]
        diag = var @ w + (mu - y_mean[:, None]) ** 2 @ w
        return y_mean, cov - jnp.diag(jnp.diagonal(cov)) + jnp.diag(diag)

    def log_prob(self, y, observed, z):
        return jnp.where(observed, self.log_density(y, z), 0.0).sum()


class Poisson(Elementwise):
    """Counts y ~ Poisson(exposure · exp(z))."""

    constraints: ClassVar[dict[str, str]] = {"exposure": "positive"}

    exposure: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)

    def __check_init__(self):
        _positive("exposure", self.exposure)

    def log_density(self, y, z):
        log_rate = z + jnp.log(jnp.asarray(self.exposure))
        return y * log_rate - jnp.exp(log_rate) - gammaln(y + 1.0)

    def conditional(self, z):
        rate = jnp.exp(z) * self.exposure
        return rate, rate

    def sample(self, key, z):
        return jax.random.poisson(key, jnp.exp(z) * self.exposure, z.shape).astype(z.dtype)

    def start(self, y):
        return jnp.log((y + 0.5) / self.exposure), y + 0.5

    def check(self, y, observed):
        _check_values("Poisson", "a count: 0, 1, 2, …", y, observed, (y >= 0) & (y == np.round(y)))


class Bernoulli(Elementwise):
    """y ∈ {0, 1} with P(y = 1) = 1/(1 + exp(−z))."""

    def log_density(self, y, z):
        return -jax.nn.softplus(jnp.where(y > 0.5, -z, z))

    def conditional(self, z):
        p = jax.nn.sigmoid(z)
        return p, p * (1.0 - p)

    def sample(self, key, z):
        return jax.random.bernoulli(key, jax.nn.sigmoid(z)).astype(z.dtype)

    def start(self, y):
        return 2.0 * y - 1.0, jnp.full_like(y, 0.25)

    def check(self, y, observed):
        _check_values("Bernoulli", "0 or 1", y, observed, (y == 0) | (y == 1))


class StudentT(Elementwise):
    """y = z + scale · t, t Student-t with `df` degrees of freedom: Gaussian noise with outliers."""

    constraints: ClassVar[dict[str, str]] = {"scale": "positive", "df": "positive"}

    scale: Float[Array, "..."] = eqx.field(converter=parameter)
    df: Float[Array, ""] = eqx.field(converter=parameter, default=4.0)

    def __check_init__(self):
        _positive("scale", self.scale)
        _positive("df", self.df)

    def log_density(self, y, z):
        nu, s = jnp.asarray(self.df), jnp.asarray(self.scale)
        norm = gammaln(0.5 * (nu + 1)) - gammaln(0.5 * nu) - 0.5 * jnp.log(nu * jnp.pi) - jnp.log(s)
        return norm - 0.5 * (nu + 1) * jnp.log1p(((y - z) / s) ** 2 / nu)

    def conditional(self, z):
        var = jnp.where(self.df > 2, self.scale**2 * self.df / (self.df - 2.0), jnp.inf)
        return z, jnp.broadcast_to(var, z.shape)

    def sample(self, key, z):
        return z + self.scale * jax.random.t(key, self.df, z.shape)

    def start(self, y):
        return y, jnp.broadcast_to(1.0 / jnp.asarray(self.scale) ** 2, y.shape)


def _check_values(name: str, wanted: str, y: np.ndarray, observed: np.ndarray, good: np.ndarray) -> None:
    bad = np.argwhere(observed & ~good)
    if len(bad):
        i, j = bad[0]
        raise ValueError(f"{name} observations must be {wanted}; values[{i}, {j}] is {float(y[i, j])!r}")


def check_covariance(name: str, value: np.ndarray) -> None:
    """Raise a ValueError unless `value` is a symmetric positive-definite matrix."""
    if value.ndim != 2 or value.shape[0] != value.shape[1]:
        raise ValueError(f"{name} must be a square matrix, got shape {value.shape}")
    if not np.isfinite(value).all():
        i, j = np.argwhere(~np.isfinite(value))[0]
        raise ValueError(f"{name}[{i}, {j}] is {float(value[i, j])!r}; it must be finite")
    if not np.allclose(value, value.T, rtol=1e-10, atol=0):
        i, j = np.unravel_index(np.argmax(abs(value - value.T)), value.shape)
        raise ValueError(
            f"{name} must be symmetric: [{i}, {j}] is {float(value[i, j])!r} but [{j}, {i}] is {float(value[j, i])!r}; "
            "symmetrise it with 0.5 * (a + a.T)"
        )
    smallest = np.linalg.eigvalsh(value)[0]
    if not smallest > 0:
        raise ValueError(f"{name} must be positive definite; its smallest eigenvalue is {smallest:.3g}")


LIKELIHOODS: tuple[type[Likelihood], ...] = (Gaussian, Poisson, Bernoulli, StudentT)
