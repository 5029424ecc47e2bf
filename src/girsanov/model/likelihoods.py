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

from girsanov._core.precision import parameter
from girsanov._core.special import half_step_of_log_gamma
from girsanov._core.types import Array
from girsanov.model.predictive import Entry, concave, in_parts, log_predictive, readings_at_the_mode, scale_mixture
from girsanov.model.quadrature import GaussHermite

LOG_2PI = 1.8378770664093453
_NODES = 32  # for E log p under a scalar Gaussian
_NARROW_NODES = 40  # the same for noise that may be narrower than the Gaussian
_REACH = 6.5  # standard deviations on either side, where the nodes are not Gauss–Hermite's
_STEPS = 64  # for moments of y


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

    def log_predictives(
        self,
        y: Float[Array, "n D"],
        observed: Bool[Array, "n D"],
        mean: Float[Array, "n D"],
        V: Float[Array, "n D D"],
    ) -> Float[Array, " n"]:
        """The same for many observations."""
        return jax.vmap(self.log_predictive)(y, observed, mean, V)

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
    """Entries of y independent given z, each with its own log density; expectations by quadrature.

    Subclasses work on arrays whose last axis is that of the entries.
    """

    @abc.abstractmethod
    def log_density(self, y: Float[Array, "*#n D"], z: Float[Array, "*#n D"]) -> Float[Array, "*n D"]: ...

    @abc.abstractmethod
    def conditional(self, z: Float[Array, "*n D"]) -> tuple[Float[Array, "*n D"], Float[Array, "*n D"]]:
        """Mean and variance of y given z."""

    def expected(self, y, observed, mean, V):
        xi, w = _hermite(_NODES)
        sd = jnp.sqrt(jnp.diagonal(V))
        values = jnp.where(observed, self.log_density(y, mean + sd * xi[:, None]), 0.0)
        # Gaussian weights: ∂/∂mean E = E[v ξ]/sd, ∂/∂var E = ½(E[v ξ²] − E[v])/sd². An entry whose z does not depend
        # on the state has sd = 0, and its gradients reach nothing.
        inverse_sd = jnp.where(sd > 0.0, 1.0 / jnp.where(sd > 0.0, sd, 1.0), 0.0)
        g_mean = (w * xi) @ values * inverse_sd
        g_var = 0.5 * ((w * (xi**2 - 1.0)) @ values) * inverse_sd**2
        return (w @ values).sum(), g_mean, jnp.diag(g_var)

    def log_predictive(self, y, observed, mean, V):
        reading, precision = self.readings(y, observed, mean, V)
        order = jnp.argsort(jnp.where(observed, -precision * jnp.diagonal(V), jnp.inf))
        y, observed, mean, V = y[order], observed[order], mean[order], V[order][:, order]
        parts = [jax.tree.map(lambda a, i=i: a[i] if jnp.ndim(a) else a, self) for i in order]
        entries = [part.pieces(y_i) for part, y_i in zip(parts, y, strict=True)]
        return log_predictive(entries, (reading[order], precision[order]), observed, mean, V)

    def log_predictives(self, y, observed, mean, V):
        return in_parts(self.log_predictive, y, observed, mean, V)

    def readings(self, y, observed, mean, V) -> tuple[Float[Array, " D"], Float[Array, " D"]]:
        """Gaussian readings of z, a mean and a precision of each entry, that are right near the mode of p(y | z) N(z).

        As here where the density is log-concave; one that is not gives its `start`.
        """

        def density(z):
            return self.log_density(y, z)

        return readings_at_the_mode(density, self.start(y), observed, mean, V)

    def pieces(self, y: Float[Array, ""]) -> Entry:
        """The density of one entry as readings of z, see `predictive`; as here where it is log-concave."""
        return concave(lambda z: self.log_density(y[None], z[..., None])[..., 0], self.start(y[None])[0][0])

    def predictive(self, mean, V):
        xi, w = _normal_nodes()
        mu, var = self.conditional(mean + jnp.sqrt(jnp.diagonal(V)) * xi[:, None])
        y_mean = w @ mu
        variances = w @ var + w @ (mu - y_mean) ** 2
        D = mean.shape[0]
        pairs = jnp.stack(jnp.meshgrid(xi, xi), -1).reshape(-1, 2)
        pair_weights = jnp.outer(w, w).ravel()

        def covariance(i, j):  # of E[y_i | z_i] and E[y_j | z_j], from the joint of the two
            both = jnp.stack([i, j])
            z = mean[both] + pairs @ _root(V[both][:, both]).T
            first = self.conditional(jnp.broadcast_to(z[:, :1], (z.shape[0], D)))[0][:, i]
            second = self.conditional(jnp.broadcast_to(z[:, 1:], (z.shape[0], D)))[0][:, j]
            return pair_weights @ (first * second) - y_mean[i] * y_mean[j]

        index = jnp.arange(D)
        cov = jax.vmap(lambda i: jax.vmap(lambda j: covariance(i, j))(index))(index)
        return y_mean, jnp.where(jnp.eye(D, dtype=bool), jnp.diag(variances), cov)

    def log_prob(self, y, observed, z):
        return jnp.where(observed, self.log_density(y, z), 0.0).sum()


def _hermite(n: int) -> tuple[np.ndarray, np.ndarray]:
    rule = GaussHermite(n).rule(1)
    return rule.nodes[0], rule.weights


def _normal_nodes() -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Nodes and weights of the trapezoidal rule for a standard normal, fine enough for steps under a broad marginal."""
    xi = jnp.linspace(-6.5, 6.5, _STEPS)
    w = jnp.exp(-0.5 * xi**2)
    return xi, w / w.sum()


def _root(V: Float[Array, "D D"]) -> Float[Array, "D D"]:
    """A square root of V, which is only semi-definite where the emission has more rows than the state."""
    e, U = jnp.linalg.eigh(V)
    return U * jnp.sqrt(jnp.maximum(e, 0.0))


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

    def expected(self, y, observed, mean, V):
        """E log p = y log rate − E rate − log y! with E rate = exposure · exp(z̄ + ½V_ii)."""
        log_rate = mean + jnp.log(jnp.asarray(self.exposure))
        rate = jnp.exp(log_rate + 0.5 * jnp.diagonal(V))
        values = y * log_rate - rate - gammaln(y + 1.0)
        value, g_mean, g_var = (jnp.where(observed, a, 0.0) for a in (values, y - rate, -0.5 * rate))
        return value.sum(), g_mean, jnp.diag(g_var)

    def predictive(self, mean, V):
        """E y = exposure · exp(z̄ + ½V_ii), Cov(y_i, y_j) = E y_i E y_j (exp V_ij − 1), and E y_i more where i = j."""
        y = jnp.exp(mean + 0.5 * jnp.diagonal(V)) * self.exposure
        return y, jnp.outer(y, y) * jnp.expm1(V) + jnp.diag(y)

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
        norm = half_step_of_log_gamma(0.5 * nu) - 0.5 * LOG_2PI - jnp.log(s)
        return norm - 0.5 * (nu + 1) * jnp.log1p(((y - z) / s) ** 2 / nu)

    def expected(self, y, observed, mean, V):
        sd = jnp.sqrt(jnp.diagonal(V))
        xi, w = self._nodes(y, mean, sd)
        values = w * jnp.where(observed, self.log_density(y, mean + sd * xi), 0.0)
        inverse_sd = jnp.where(sd > 0.0, 1.0 / jnp.where(sd > 0.0, sd, 1.0), 0.0)
        value, first, second = (jnp.einsum("nd,nd->d", values, a) for a in (jnp.ones_like(xi), xi, xi**2 - 1.0))
        return value.sum(), first * inverse_sd, jnp.diag(0.5 * second * inverse_sd**2)

    def _nodes(self, y, mean, sd) -> tuple[Float[Array, "n D"], Float[Array, "n D"]]:
        """Nodes and weights for ξ ~ N(0, 1). Where z is broader than the noise, z = y + a sinh(t), a = scale·√df.

        There log p = −(df + 1) log cosh(t) and a constant, smooth in t, so equal steps in t resolve both scales.
        """
        xi, w = (a[:, None] for a in _hermite(_NARROW_NODES))
        a = self.scale * jnp.sqrt(jnp.asarray(self.df))
        unit = jnp.where(sd > 0.5 * a, sd, a)
        low, high = (jnp.arcsinh((mean - y + side * unit) / a) for side in (-_REACH, _REACH))
        step = (high - low) / (_NARROW_NODES - 1)
        up = jnp.exp(low + step * jnp.arange(_NARROW_NODES)[:, None])
        down = 1.0 / up
        at = (y - mean) / unit + (0.5 * a / unit) * (up - down)
        weight = jnp.exp(-0.5 * at**2) * (up + down) * (step * a / unit * (0.5 / np.sqrt(2.0 * np.pi)))
        return jnp.where(sd > 0.5 * a, at, xi), jnp.where(sd > 0.5 * a, weight, w)

    def conditional(self, z):
        var = jnp.where(self.df > 2, self.scale**2 * self.df / (self.df - 2.0), jnp.inf)
        return z, jnp.broadcast_to(var, z.shape)

    def predictive(self, mean, V):
        return mean, V + jnp.diag(self.conditional(mean)[1])

    def sample(self, key, z):
        return z + self.scale * jax.random.t(key, self.df, z.shape)

    def start(self, y):
        return y, jnp.broadcast_to(1.0 / jnp.asarray(self.scale) ** 2, y.shape)

    def readings(self, y, observed, mean, V):
        return self.start(y)

    def pieces(self, y):
        return scale_mixture(y, jnp.asarray(self.scale), jnp.asarray(self.df))


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
