"""The predictive law of every output: its distribution function and its quantiles.

Under x ~ N(m, S) the law of an output is the mixture of p(y | z) over z. Where a function of y is z plus Gaussian
noise, and the emission is linear, it is Gaussian in closed form. Elsewhere the mixture is a sum over points in z: by
the trapezoidal rule where z is Gaussian, whose error falls exponentially with the number of points, and over
low-discrepancy points of the state where the emission is not linear.
"""

import functools
from typing import Any

import jax
import numpy as np

from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov.model.cumulative import Law, law_of, normal_cdf
from girsanov.model.model import Model

_REACH, _POINTS = 7.5, 241  # of the trapezoidal rule in standard deviations, and its number of points
_FINE = 2001  # number of points through an emission that is not linear, which the noise may not smooth
_DRAWS = 1024  # low-discrepancy points of a state of two coordinates or more
_HALVINGS = 46  # of the interval in which a quantile is sought
_WIDER = 60  # doublings of that interval
_AT_ONCE = 2_000_000  # numbers in memory at the same time


class Predictive:
    """The laws of the D outputs of a model at n times where its latent state is N(m, S), or is one of some draws.

    Args:
        model: the model.
        times: the times, (n,).
        mean: means of w, (n, d), or of each of K equally likely Gaussians, (K, n, d).
        cov: their covariances, (n, d, d).
        errors: known errors of the observations, (n, D), or None.
    """

    def __init__(self, model: Model, times: np.ndarray, mean: np.ndarray, cov: np.ndarray, errors: Any = None):
        self.outputs = model.data_dim
        self.laws = [law_of(model.likelihood, j, self.outputs) for j in range(self.outputs)]
        self.errors = np.zeros((len(times), self.outputs)) if errors is None else np.nan_to_num(np.asarray(errors))
        if mean.ndim == 3:
            self.normal, self.z, self.weights = None, *_mixed(model, times, mean, cov)
        elif model.latent.observation.is_linear:
            self.normal = _emitted(model, times, mean, cov)
            xi = np.linspace(-_REACH, _REACH, _POINTS)
            w = np.exp(-0.5 * xi**2)
            self.z = self.normal[0] + np.sqrt(self.normal[1]) * xi[:, None, None]
            self.weights = w / w.sum()
        else:
            self.normal, self.z, self.weights = None, *_spread(model, times, mean, cov)

    def cdf(self, output: int, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return P(Y < y) and P(Y ≤ y) of one output at every time, for y of shape (n,)."""
        law, error = self.laws[output], self.errors[:, output]
        if self._closed(law):
            assert self.normal is not None and law.shift is not None
            mean, variance = self.normal[0][:, output], self.normal[1][:, output] + law.shift(error)
            return self._through(law, y, mean, variance)
        z = self.z[:, :, output]
        return self.weights @ law.below(y, z, error), self.weights @ law.upto(y, z, error)

    def _closed(self, law: Law) -> bool:
        return self.normal is not None and law.shift is not None

    @staticmethod
    def _through(law: Law, y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P(Y ≤ y | z) is a normal distribution function of z, with the limits of what is censored."""
        if law.link is not None:
            return normal_cdf(law.link(y), mean, variance, True), normal_cdf(law.link(y), mean, variance)
        # A censored value: the law given z with the variance of z added to that of the noise, less the latter.
        own = np.asarray(law.shift(0.0)) if law.shift is not None else 0.0
        extra = np.sqrt(np.maximum(variance - own, 0.0))
        return law.below(y, mean, extra), law.upto(y, mean, extra)

    def quantiles(self, output: int, q: np.ndarray) -> np.ndarray:
        """Return quantiles of one output, the least y with P(Y ≤ y) ≥ q, by bisection; shape (k, n)."""
        centre, size = self._bracket(output)
        return np.stack([self._quantile(output, p, centre, size) for p in q])

    def _quantile(self, output: int, p: float, centre: np.ndarray, size: np.ndarray) -> np.ndarray:
        low, high, reach = centre - size, centre + size, size
        for _ in range(_WIDER):
            too_high, too_low = self.cdf(output, low)[1] >= p, self.cdf(output, high)[1] < p
            if not (too_high | too_low).any():
                break
            reach = 2.0 * reach
            low, high = np.where(too_high, low - reach, low), np.where(too_low, high + reach, high)
        discrete = self.laws[output].discrete
        for _ in range(_HALVINGS):
            middle = np.floor(0.5 * (low + high)) if discrete else 0.5 * (low + high)
            enough = self.cdf(output, middle)[1] >= p
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
            if discrete and (high - low <= 1.0).all():
                break
        return high

    def _bracket(self, output: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a centre and a size from which the interval of a quantile grows."""
        if self.laws[output].discrete:
            n = len(self.errors)
            return np.zeros(n), np.full(n, 2.0)
        if self.normal is not None:
            mean, sd = self.normal[0][:, output], np.sqrt(self.normal[1][:, output])
        else:
            mean = self.weights @ self.z[:, :, output]
            sd = np.sqrt(self.weights @ (self.z[:, :, output] - mean) ** 2)
        return mean, np.maximum(sd, 1e-3 * (1.0 + np.abs(mean)))


def predictive_quantiles(
    model: Model, times: np.ndarray, mean: np.ndarray, cov: np.ndarray, q: np.ndarray
) -> np.ndarray:
    """Return quantiles of every output, (k, n, D), in parts that limit memory; see `Predictive` for the arguments."""
    rows = max(1, _AT_ONCE // max(_FINE, len(mean) if mean.ndim == 3 else 0))
    out = np.empty((len(q), len(times), model.data_dim))
    for i in range(0, len(times), rows):
        part = slice(i, i + rows)
        laws = Predictive(model, times[part], mean[..., part, :], cov[part])
        for j in range(model.data_dim):
            out[:, part, j] = laws.quantiles(j, q)
    return out


@float64
def _emitted(model: Model, times: np.ndarray, mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means and variances of every z, (n, D), through a linear emission."""
    observation = model.latent.observation
    half = np.swapaxes(np.asarray(observation.turned(cov)), 1, 2)  # H S
    variance = np.diagonal(np.asarray(observation.turned(half)), axis1=1, axis2=2)
    return emissions(model, times, mean[None])[0], np.maximum(variance, 0.0)


def _spread(model: Model, times: np.ndarray, mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points of z, (K, n, D), and their weights (K,), through an emission that is not linear."""
    xi, weights = _standard_points(mean.shape[1])
    size, axes = np.linalg.eigh(cov)
    root = axes * np.sqrt(np.maximum(size, 0.0))[:, None, :]
    w = mean + np.einsum("nij,kj->kni", root, xi)
    return emissions(model, times, w), weights


def _mixed(model: Model, times: np.ndarray, mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points of z from K equally likely Gaussians with means (K, n, d): one point of each."""
    xi, _ = _standard_points(mean.shape[2], len(mean))
    size, axes = np.linalg.eigh(cov)
    root = axes * np.sqrt(np.maximum(size, 0.0))[:, None, :]
    w = mean + np.einsum("nij,kj->kni", root, xi)
    return emissions(model, times, w), np.full(len(mean), 1.0 / len(mean))


@functools.cache
def _standard_points(d: int, count: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return points of a standard normal law in d coordinates and their weights."""
    if d == 1 and not count:
        xi = np.linspace(-_REACH, _REACH, _FINE)
        w = np.exp(-0.5 * xi**2)
        return xi[:, None], w / w.sum()
    from scipy.special import ndtri
    from scipy.stats import qmc

    n = count or _DRAWS
    u = qmc.Sobol(d, scramble=True, rng=np.random.default_rng(0)).random_base2(int(np.ceil(np.log2(max(n, 2)))))[:n]
    return ndtri(np.clip(u, 1e-12, 1.0 - 1e-12)), np.full(n, 1.0 / n)


@compiled
def _emit(model: Model, times, w):
    return jax.vmap(jax.vmap(model.latent.observation.emit), in_axes=(None, 0))(times, w)


@float64
def emissions(model: Model, times: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return z of K draws of the latent state at n times, (K, n, d), in shape (K, n, D)."""
    return np.asarray(_emit(model, times, w))


def pit_interval(model: Model, series: Any, rows: np.ndarray, mean: np.ndarray, cov: np.ndarray) -> tuple:
    """Return P(Y < y) and P(Y ≤ y) of the values of some rows of a series, (n, D) each, NaN where one is missing.

    Args:
        model: the model.
        series: the observations.
        rows: indices of the rows, (n,).
        mean: means of w at their times, (n, d), without what these values say of it.
        cov: its covariances, (n, d, d).
    """
    errors = None if series.errors is None else series.errors[rows]
    laws = Predictive(model, series.times[rows], mean, cov, errors)
    ends = [laws.cdf(j, series.filled[rows, j]) for j in range(series.dim)]
    seen = series.observed[rows]
    below, upto = (np.where(seen, np.stack([e[k] for e in ends], 1), np.nan) for k in (0, 1))
    return below, upto
