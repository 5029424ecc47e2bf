"""What a set of drawn paths says: moments, marginals and predictive densities."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov.data.grid import locate
from girsanov.data.series import TimeSeries
from girsanov.model.estimate import Marginals, PathEstimate
from girsanov.model.model import Model


class DrawnPaths(PathEstimate):
    """An estimate of the path by `samples` (K, N, d), equally weighted."""

    series: TimeSeries
    samples: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        return self.samples.mean(0)

    @property
    def cov(self) -> np.ndarray:
        return _covariance(self.samples, self.samples)

    @property
    def lag_cov(self) -> np.ndarray:
        """Cov(x_{m+1}, x_m), (N − 1, d, d)."""
        return _covariance(self.samples[:, 1:], self.samples[:, :-1])

    def marginals(self, times: Any) -> Marginals:
        mean, cov = self._conditional(self._inside(times))
        return Marginals(mean.mean(0), _covariance(mean, mean) + cov)

    def nlpd_values(self, test: TimeSeries) -> np.ndarray:
        """−log of the mean over the draws of p(y | neighbouring states): the state between them is integrated out."""
        self._check_test(test)
        mean, cov = self._conditional(self._inside(test.times))
        y = np.where(test.observed, test.values, 0.0)
        return -np.asarray(_log_average(self.model, y, np.array(test.observed), mean, cov))

    def _conditional(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean (K, n, d) and covariance (n, d, d) of x(t) given the two nearest other nodes, by the local bridge.

        With x_l before and x_r after it, x_t | x_l, x_r ≈ N((u a + s b)/(s + u), s u/(s + u) Q), a = x_l + s f(x_l) and
        b = x_r − u f((x_l + x_r)/2). A time that is itself observed, or the first, is taken from the draws as they are.
        """
        return _bridge(self.model, self.times, self.series.times, self.samples, t)


def _covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = a - a.mean(0), b - b.mean(0)
    return np.einsum("kni,knj->nij", a, b) / len(a)


@float64
def _bridge(model: Model, nodes, observed, samples, t) -> tuple[np.ndarray, np.ndarray]:
    nearest, on_node = locate(nodes, t)
    seen = np.isin(nodes[nearest], observed)
    direct = on_node & (seen | (nearest == 0))
    left = np.where(on_node, nearest - 1, np.searchsorted(nodes, t) - 1).clip(0)
    right = np.where(on_node, nearest + 1, np.searchsorted(nodes, t))
    ends = right >= len(nodes)
    right = np.minimum(right, len(nodes) - 1)
    s, u = t - nodes[left], nodes[right] - t
    x_l, x_r = samples[:, left], samples[:, right]
    a = x_l + s[:, None] * np.asarray(_drifts(model, x_l, nodes[left]))
    b = x_r - u[:, None] * np.asarray(_drifts(model, 0.5 * (x_l + x_r), t))
    total = np.where(s + u > 0.0, s + u, 1.0)
    mean = (u[:, None] * a + s[:, None] * b) / total[:, None]
    spread = s * u / total
    mean, spread = np.where(ends[:, None], a, mean), np.where(ends, s, spread)
    mean = np.where(direct[:, None], samples[:, nearest], mean)
    return mean, np.where(direct, 0.0, spread)[:, None, None] * np.asarray(model.diffusion)


@compiled
def _drifts(model: Model, x, t):
    return jax.vmap(jax.vmap(model.drift), in_axes=(0, None))(x, t)


@float64
def _log_average(model: Model, y, observed, mean, cov) -> np.ndarray:
    return np.array([_log_mean(model, y[i], observed[i], mean[:, i], cov[i]) for i in range(len(y))])


@compiled
def _log_mean(model: Model, y, observed, mean, cov):
    H = jnp.asarray(model.emission)
    rows = (jnp.broadcast_to(a, (len(mean), *a.shape)) for a in (y, observed, H @ cov @ H.T))
    y, observed, V = rows
    values = model.likelihood.log_predictives(y, observed, mean @ H.T, V)
    return jax.scipy.special.logsumexp(values) - jnp.log(len(mean))
