"""Counts, binary outcomes and ordered categories."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Float

from girsanov._core.checks import check_whole
from girsanov._core.precision import parameter
from girsanov._core.special import log_rising
from girsanov._core.types import Array
from girsanov.model.likelihoods.base import Elementwise, check_parameter, check_values


def _whole_trials(value: Any) -> int:
    if np.ndim(value):
        raise ValueError(
            f"trials must be one whole number, got {value!r}; if outputs differ, give a list of likelihoods, such as "
            "[Binomial(3), Binomial(5)]"
        )
    check_whole(trials=value)
    return int(value)


class Poisson(Elementwise):
    """Counts with a Poisson distribution: y ~ Poisson(exposure · exp(z)).

    Args:
        exposure: a positive factor of the rate, such as the length of the counting window; a scalar or shape (D,), 1
            by default.
    """

    constraints: ClassVar[dict[str, str]] = {"exposure": "positive"}

    exposure: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)

    def __check_init__(self):
        check_parameter("exposure", self.exposure)

    def log_density(self, y, z):
        log_rate = z + jnp.log(jnp.asarray(self.exposure))
        return y * log_rate - jnp.exp(log_rate) - gammaln(y + 1.0)

    def conditional(self, z):
        rate = jnp.exp(z) * self.exposure
        return rate, rate

    def expected(self, y, observed, mean, V):
        """Return E log p = y E log rate − E rate − log y! and its gradients; E rate = exposure · exp(z̄ + ½V_ii)."""
        log_rate = mean + jnp.log(jnp.asarray(self.exposure))
        rate = jnp.exp(log_rate + 0.5 * jnp.diagonal(V))
        values = y * log_rate - rate - gammaln(y + 1.0)
        value, g_mean, g_var = (jnp.where(observed, a, 0.0) for a in (values, y - rate, -0.5 * rate))
        return value.sum(), g_mean, jnp.diag(g_var)

    def predictive(self, mean, V):
        """Return E y_i = exposure · exp(z̄_i + ½V_ii) and Cov(y_i, y_j) = E y_i E y_j (exp V_ij − 1) + δ_ij E y_i."""
        y = jnp.exp(mean + 0.5 * jnp.diagonal(V)) * self.exposure
        return y, jnp.outer(y, y) * jnp.expm1(V) + jnp.diag(y)

    def sample(self, key, z):
        return jax.random.poisson(key, jnp.exp(z) * self.exposure, z.shape).astype(z.dtype)

    def start(self, y):
        return jnp.log((y + 0.5) / self.exposure), y + 0.5

    def check(self, y, observed):
        check_values("Poisson", "a count: 0, 1, 2, …", y, observed, (y >= 0) & (y == np.round(y)))


class Bernoulli(Elementwise):
    """Binary observations y ∈ {0, 1} with P(y = 1) = 1/(1 + exp(−z))."""

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
        check_values("Bernoulli", "0 or 1", y, observed, (y == 0) | (y == 1))


class NegativeBinomial(Elementwise):
    """Counts with mean μ = exp(z) and variance μ + μ²/dispersion: they vary more than those of `Poisson`.

    Args:
        dispersion: a positive scalar or shape (D,); the counts become those of `Poisson` as it grows.
    """

    constraints: ClassVar[dict[str, str]] = {"dispersion": "positive"}

    dispersion: Float[Array, "..."] = eqx.field(converter=parameter)

    def __check_init__(self):
        check_parameter("dispersion", self.dispersion)

    def log_density(self, y, z):
        # With r = dispersion and o = z − log r, p = Γ(y + r)/(Γ(r) y!) · (1 + eᵒ)^−(y + r) · e^{yo}; y log r cancels
        # between the ratio of Gamma functions and yo, so that large r lose no digits.
        r = jnp.asarray(self.dispersion)
        return log_rising(r, y) - gammaln(y + 1.0) + y * z - (y + r) * jax.nn.softplus(z - jnp.log(r))

    def conditional(self, z):
        mean = jnp.exp(z)
        return mean, mean + mean**2 / self.dispersion

    def predictive(self, mean, V):
        """E y = exp(z̄ + ½V_ii) and Cov(y_i, y_j) as for `Poisson`, and E μ_i²/dispersion in addition if i = j."""
        y = jnp.exp(mean + 0.5 * jnp.diagonal(V))
        more = y + y**2 * jnp.exp(jnp.diagonal(V)) / self.dispersion
        return y, jnp.outer(y, y) * jnp.expm1(V) + jnp.diag(more)

    def sample(self, key, z):
        rate_key, count_key = jax.random.split(key)
        r = jnp.broadcast_to(jnp.asarray(self.dispersion), z.shape)
        return jax.random.poisson(count_key, jnp.exp(z) * jax.random.gamma(rate_key, r) / r).astype(z.dtype)

    def start(self, y):
        mean = y + 0.5
        return jnp.log(mean), mean * self.dispersion / (mean + self.dispersion)

    def check(self, y, observed):
        check_values("NegativeBinomial", "a count: 0, 1, 2, …", y, observed, (y >= 0) & (y == np.round(y)))


class Binomial(Elementwise):
    """y successes in a number of trials, each with P(success) = 1/(1 + exp(−z)).

    Args:
        trials: a positive whole number, the same for all outputs. It is part of the data and is not learnt.
    """

    trials: int = eqx.field(static=True, converter=_whole_trials)

    def log_density(self, y, z):
        n, y = self.trials, jnp.clip(y, 0.0, self.trials)  # a missing entry may hold any number
        choose = gammaln(n + 1.0) - gammaln(y + 1.0) - gammaln(n - y + 1.0)
        return choose - y * jax.nn.softplus(-z) - (n - y) * jax.nn.softplus(z)

    def conditional(self, z):
        p = jax.nn.sigmoid(z)
        return self.trials * p, self.trials * p * (1.0 - p)

    def sample(self, key, z):
        return jax.random.binomial(key, self.trials, jax.nn.sigmoid(z)).astype(z.dtype)

    def start(self, y):
        p = (jnp.clip(y, 0.0, self.trials) + 0.5) / (self.trials + 1.0)
        return jnp.log(p / (1.0 - p)), self.trials * p * (1.0 - p)

    def check(self, y, observed):
        good = (y >= 0) & (y <= self.trials) & (y == np.round(y))
        check_values("Binomial", f"a whole number from 0 to {self.trials}", y, observed, good)


class Ordinal(Elementwise):
    """Ordered categories y = 0, …, K with P(y ≤ k) = 1/(1 + exp(z − cutpoints[k])).

    Args:
        cutpoints: K increasing numbers, shape (K,), the same for all outputs.
    """

    constraints: ClassVar[dict[str, str]] = {"cutpoints": "ordered"}
    shared: ClassVar[tuple[str, ...]] = ("cutpoints",)

    cutpoints: Float[Array, " K"] = eqx.field(converter=parameter)

    def __check_init__(self):
        c = self.cutpoints
        if np.ndim(c) != 1 or np.size(c) == 0:
            raise ValueError(f"cutpoints must have shape (K,) with K ≥ 1, got {np.shape(c)}")
        if isinstance(c, np.ndarray) and not (np.isfinite(c).all() and (np.diff(c) > 0).all()):
            raise ValueError(f"cutpoints must be finite and increase, got {c.tolist()}")

    def entry(self, i):
        return self

    def log_density(self, y, z):
        # σ(u) − σ(l) = σ(u) σ(−l) (1 − e^{l − u}) for the ends u and l of the category, less z: nothing cancels.
        ends = jnp.concatenate([jnp.full(1, -jnp.inf), jnp.asarray(self.cutpoints), jnp.full(1, jnp.inf)])
        k = jnp.clip(y, 0, len(ends) - 2).astype(int)
        low, high = ends[k], ends[k + 1]
        return jnp.log(-jnp.expm1(low - high)) - jax.nn.softplus(z - high) - jax.nn.softplus(low - z)

    def conditional(self, z):
        above = jax.nn.sigmoid(z[..., None] - jnp.asarray(self.cutpoints))  # P(y ≥ k), k = 1, …, K
        k = jnp.arange(1, above.shape[-1] + 1)
        mean = above.sum(-1)
        return mean, ((2 * k - 1) * above).sum(-1) - mean**2

    def sample(self, key, z):
        at = z + jax.random.logistic(key, z.shape)
        return (at[..., None] > jnp.asarray(self.cutpoints)).sum(-1).astype(z.dtype)

    def start(self, y):
        c = jnp.asarray(self.cutpoints)
        ends = jnp.concatenate([c[:1] - 1.0, c, c[-1:] + 1.0])
        k = jnp.clip(y, 0, len(ends) - 2).astype(int)
        return 0.5 * (ends[k] + ends[k + 1]), jnp.full_like(y, 0.25)

    def check(self, y, observed):
        K = len(self.cutpoints)
        check_values("Ordinal", f"a category from 0 to {K}", y, observed, (y >= 0) & (y <= K) & (y == np.round(y)))
