"""Noise with heavy tails."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.precision import parameter
from girsanov._core.special import LOG_2PI, half_step_of_log_gamma
from girsanov._core.types import Array
from girsanov.model.likelihoods.base import Elementwise, check_parameter
from girsanov.model.likelihoods.integrals import quadrature_sums, two_scale_nodes
from girsanov.model.predictive import scale_mixture


class StudentT(Elementwise):
    """Student-t noise: y = z + scale · t, where t has `df` degrees of freedom. It allows for outliers.

    Args:
        scale: a positive scalar or shape (D,).
        df: degrees of freedom, a positive scalar; 4 by default. The variance of y is infinite for df ≤ 2.
    """

    constraints: ClassVar[dict[str, str]] = {"scale": "positive", "df": "positive"}
    heavy_tailed: ClassVar[bool] = True
    about_z: ClassVar[bool] = True

    scale: Float[Array, "..."] = eqx.field(converter=parameter)
    df: Float[Array, ""] = eqx.field(converter=parameter, default=4.0)

    def __check_init__(self):
        check_parameter("scale", self.scale)
        check_parameter("df", self.df)

    def log_density(self, y, z):
        nu, s = jnp.asarray(self.df), jnp.asarray(self.scale)
        norm = half_step_of_log_gamma(0.5 * nu) - 0.5 * LOG_2PI - jnp.log(s)
        return norm - 0.5 * (nu + 1) * jnp.log1p(((y - z) / s) ** 2 / nu)

    def by_quadrature(self, y, observed, mean, V, factor):
        sd, width = jnp.sqrt(jnp.diagonal(V)), self.scale * jnp.sqrt(jnp.asarray(self.df))
        # With z = y + width sinh(t), log p = −(df + 1) log cosh(t) + const is smooth in t.
        xi, w = two_scale_nodes(y, jnp.broadcast_to(width, y.shape), mean, sd, factor)
        values = jnp.where(observed, self.log_density(y, mean + sd * xi), 0.0)
        value, g_mean, g_var = quadrature_sums(values, xi, w, sd)
        return value.sum(), g_mean, jnp.diag(g_var)

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
