"""Estimates from a set of drawn paths: moments, marginals and predictive densities."""

from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov.data.grid import locate
from girsanov.data.rows import Rows, rows_of
from girsanov.data.series import TimeSeries
from girsanov.model.diffusions import StateDiffusion
from girsanov.model.estimate import Marginals, PathEstimate, predicted
from girsanov.model.likelihoods import Gaussian
from girsanov.model.model import Model
from girsanov.model.simulate import to_constant
from girsanov.model.state_law import of_state


class DrawnPaths(PathEstimate):
    """An estimate of the path from K equally weighted draws.

    Attributes:
        series: the observations.
        samples: the paths at the nodes, shape (K, N, d).
    """

    series: TimeSeries
    samples: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Mean of the draws at every node, shape (N, d)."""
        return self.samples.mean(0)

    @property
    def cov(self) -> np.ndarray:
        """Covariance of the draws at every node, shape (N, d, d)."""
        return _covariance(self.samples, self.samples)

    @property
    def lag_cov(self) -> np.ndarray:
        """Lag-one covariances Cov(x_{m+1}, x_m) of the draws, shape (N − 1, d, d)."""
        return _covariance(self.samples[:, 1:], self.samples[:, :-1])

    def marginals(self, times: Any) -> Marginals:
        """Return mean and covariance of the state at any times inside the horizon.

        Args:
            times: times or dates from the first to the last node, shape (n,) or a scalar.

        Returns:
            Means of shape (n, d) and covariances of shape (n, d, d). Between nodes they include the spread of the
            state given the two nodes around it.
        """
        t = self._inside(times)
        mean, cov = self._conditional(t)
        if not self.model.is_transformed:
            return Marginals(mean.mean(0), _covariance(mean, mean) + cov)
        return self._mixed(mean, cov, t)

    def _latent_marginals(self, times: Any) -> Marginals:
        mean, cov = self._conditional(self._inside(times))
        return Marginals(mean.mean(0), _covariance(mean, mean) + cov)

    def _latent_laws(self, times: Any) -> tuple[np.ndarray, np.ndarray]:
        return self._conditional(self._inside(times))

    def predict(self, times: Any) -> Marginals:
        """Predict an observation at each of the given times, including the observation noise.

        Args:
            times: times or dates inside the horizon, shape (n,) or a scalar.

        Returns:
            Means of shape (n, D) and covariances of shape (n, D, D), of the mixture of the draws' predictions.
        """
        observation = self.model.latent.observation
        if observation.is_linear and isinstance(self.model.likelihood, Gaussian):
            return super().predict(times)  # the moments of the state are enough
        t = self._inside(times)
        mean, cov = self._conditional(t)
        each = [predicted(self.model, t, m, cov) for m in mean]
        y, within = np.stack([e[0] for e in each]), np.stack([e[1] for e in each])
        return Marginals(y.mean(0), _covariance(y, y) + within.mean(0))

    def _mixed(self, m: np.ndarray, S: np.ndarray, t: np.ndarray) -> Marginals:
        """Return the moments of the state where w given a draw has mean m, (K, n, d), and covariance S, (n, d, d)."""
        K, n, d = m.shape
        each = of_state(self.model, Marginals(m.reshape(-1, d), np.tile(S, (K, 1, 1))), np.tile(t, K))
        mean, cov = each.mean.reshape(K, n, d), each.cov.reshape(K, n, d, d)
        return Marginals(mean.mean(0), _covariance(mean, mean) + cov.mean(0))

    def nlpd_values(self, test: TimeSeries) -> np.ndarray:
        """Return the negative log predictive density of every held-out observation.

        The density is the mean over the draws of p(y_i | neighbouring nodes), with the state between them integrated
        out.

        Args:
            test: the held-out observations.

        Returns:
            −log p(y_i | data) in nats, shape (n,).
        """
        self._check_test(test)
        mean, cov = self._conditional(self._inside(test.times))
        return -np.asarray(_log_average(self.model, rows_of(test), mean, cov))

    def _conditional(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (K, n, d) and covariance (n, d, d) of x(t) given the draws at the nodes before and after t.

        With x_l at t − s and x_r at t + u, x_t | x_l, x_r ≈ N((u a + s b)/(s + u), s u/(s + u) Q), where
        a = x_l + s f(x_l) and b = x_r − u f((x_l + x_r)/2). This holds also if t is a node, with its neighbours for x_l
        and x_r. But if t is the first node or an observation time, the draws at t are used as they are.
        """
        return _bridge(self.model.latent, self.times, self.series.times, self._latent_samples, t)

    @cached_property
    def _latent_samples(self) -> np.ndarray:
        """The draws in coordinates in which the noise is constant."""
        return to_constant(self.model, self.samples, self.times)

    def band(self) -> tuple[np.ndarray, np.ndarray]:
        """Return quantiles of the draws at every node if the noise depends on the state; else mean ± 2 sd."""
        if not isinstance(self.model.noise, StateDiffusion):
            return super().band()
        low, high = np.quantile(self.samples, [0.02275, 0.97725], axis=0)
        return low, high


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
    return mean, np.where(direct, 0.0, spread)[:, None, None] * np.asarray(model.noise.Q)


@compiled
def _drifts(model: Model, x, t):
    return jax.vmap(jax.vmap(model.drift), in_axes=(0, None))(x, t)


@float64
def _log_average(model: Model, rows: Rows, mean, cov) -> np.ndarray:
    return np.array([_log_mean(model, rows[i], mean[:, i], cov[i]) for i in range(len(rows.t))])


@compiled
def _log_mean(model: Model, row: Rows, mean, cov):
    cov = jnp.broadcast_to(cov, (len(mean), *cov.shape))
    values = model.latent.observation.log_predictives(row.repeated(len(mean)), mean, cov)
    return jax.scipy.special.logsumexp(values) - jnp.log(len(mean))
