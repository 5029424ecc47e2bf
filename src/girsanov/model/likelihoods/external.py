"""Likelihoods that are distributions of numpyro."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from girsanov.model.likelihoods.base import Elementwise, check_values

_RANGE, _POINTS = 12.0, 241  # of z, where the peak of a density is looked for


class FromDistribution(Elementwise):
    """y ~ fn(z), where fn returns a distribution of numpyro, one for each entry of z.

    Expectations are by quadrature, which needs a log density that is smooth in z. Scores need it to be concave in z,
    as it is for the usual links. Values of y for which the density has its peak outside |z| ≤ 12 start from that edge.

    Args:
        fn: a function of an array z that returns a numpyro distribution of z's shape, such as
            `lambda z: numpyro.distributions.GammaPoisson(2.0, 2.0 / jnp.exp(z))`. Its parameters can be learnt if it is
            a module of arrays; those of a plain function are fixed.
    """

    fn: Callable

    def __check_init__(self):
        if not callable(self.fn):
            raise ValueError(f"FromDistribution takes a function of z that returns a distribution, got {self.fn!r}")
        shape = getattr(self._at(jnp.zeros(3)), "batch_shape", None)
        if shape != (3,):
            raise ValueError(
                "FromDistribution takes a function that returns a numpyro distribution with one entry for each entry "
                f"of z; for z of shape (3,) its batch shape is {shape}"
            )

    def _at(self, z: Any) -> Any:
        return self.fn(z)

    def entry(self, i):
        return self

    def log_density(self, y, z):
        shape = jnp.broadcast_shapes(jnp.shape(y), jnp.shape(z))
        return self._at(jnp.broadcast_to(z, shape)).log_prob(jnp.broadcast_to(y, shape))

    def conditional(self, z):
        at = self._at(z)
        return jnp.asarray(at.mean, z.dtype), jnp.asarray(at.variance, z.dtype)

    def sample(self, key, z):
        return self._at(z).sample(key).astype(z.dtype)

    def start(self, y):
        """Where the density is largest on a grid of z, with its curvature there."""
        z = jnp.linspace(-_RANGE, _RANGE, _POINTS)
        step = z[1] - z[0]
        values = jax.vmap(lambda v: self.log_density(y, jnp.full_like(y, v)))(z)
        values = jnp.where(jnp.isnan(values), -jnp.inf, values)
        top = jnp.clip(jnp.argmax(values, 0), 1, _POINTS - 2)
        here = lambda k: jnp.take_along_axis(values, (top + k)[None], 0)[0]  # noqa: E731
        curvature = -(here(1) - 2.0 * here(0) + here(-1)) / step**2
        good = jnp.isfinite(curvature) & (curvature > 0.0)
        return z[top], jnp.where(good, curvature, 1e-2)

    def check(self, y, observed):
        support = self._at(jnp.zeros(y.shape)).support
        good = np.broadcast_to(np.asarray(support(np.where(observed, y, 0.0))), y.shape)
        check_values("FromDistribution", f"in the support {support!r} of the distribution", y, observed, good)
