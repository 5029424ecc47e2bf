"""Sparse Gaussian process regression: the collapsed bound of Titsias (2009) with fixed inducing inputs.

The posterior of f is approximated through its values u at m inducing inputs z. With Q = K_fu K_uu⁻¹ K_uf,

    log p(y) ≥ log N(y; 0, Q + rI) − tr(K_ff − Q) / 2r,

in O(n m²). The bound is the log evidence where z holds every input.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Bool, Float

from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov._core.types import Array
from girsanov.baselines.gp import GPEstimate, check_problem, check_times, covariances, maximise, observation_model
from girsanov.baselines.kernels import Constant, Kernel, Linear, Matern12, Matern32
from girsanov.data.series import TimeSeries
from girsanov.model.estimate import Marginals
from girsanov.model.likelihoods import LOG_2PI


@dataclasses.dataclass(frozen=True, repr=False)
class SparseGPPosterior(GPEstimate):
    """The Gaussian process that reaches Titsias' bound.

    - log_evidence, elbo: the bound.
    - inducing: the inducing inputs, (m,).
    - jitter: noise of the inducing values, as a share of their mean prior variance.
    """

    inducing: np.ndarray
    jitter: float

    @property
    def elbo(self) -> float:
        return self.log_evidence

    @float64
    def marginals(self, times: Any) -> Marginals:
        """Mean and covariance of f at any times, beyond the data too."""
        data = _data(self.series, self.inducing, self.jitter)
        return Marginals(*_posterior(self.kernel, self.noise_variance, data, check_times(self._numbers(times)))[1:])


@float64
def sparse_gp_regression(
    series: TimeSeries,
    *,
    noise_variance: Any,
    kernel: Kernel | None = None,
    inducing: Any = 500,
    times: Any = None,
    optimise: bool = True,
    optimise_noise: bool = False,
    jitter: float = 0.0,
    max_iterations: int = 200,
) -> SparseGPPosterior:
    """Sparse Gaussian process regression with prior mean zero; NaN entries are missing one by one.

    Columns of the series are independent processes with the same kernel. `gp_regression` gives the exact answer for the
    same kernels, and sooner: this is the approximation that the literature compares with.

    - kernel: by default Constant() + Linear() + Matern12() + Matern32(), all with unit variance and lengthscale.
    - noise_variance: r, a scalar or one a column.
    - inducing: how many inducing inputs, at equally spaced quantiles of the times with data (all of them where there
      are no more), or the inputs themselves, (m,).
    - times: where to report mean and covariance, by default the times of the series.
    - optimise, optimise_noise: maximise the bound over the kernel's parameters, and over r, from those given, by at
      most `max_iterations` of L-BFGS on their logarithms.
    - jitter: variance added to the diagonal of K_uu, as a share of its mean. It makes u noisy values of f, so that the
      bound stays one, a little lower; needed where inducing inputs lie too close together for a smooth kernel.
    """
    kernel = Constant() + Linear() + Matern12() + Matern32() if kernel is None else kernel
    r = check_problem(series, kernel, noise_variance)
    if not (np.isfinite(jitter) and jitter >= 0):
        raise ValueError(f"jitter must be zero or a small positive number such as 1e-8, got {jitter!r}")
    t = series.times if times is None else check_times(series.numbers(times))
    z = _inducing_inputs(inducing, series.times[series.observed.any(1)])
    data = _data(series, z, jitter)
    fit = maximise(_bound, (kernel, r), (optimise, optimise_noise), data, max_iterations)
    elbo, mean, cov = _posterior(fit.kernel, fit.noise_variance, data, t)
    if not np.isfinite(elbo):
        raise ValueError(
            f"the covariance matrix of the {len(z)} inducing values is not positive definite in float64 for "
            f"{fit.kernel!r}: take fewer with inducing=, or add jitter=1e-8 (it is {jitter:g})"
        )
    model = observation_model(fit.noise_variance, series.dim)
    return SparseGPPosterior(model, series, t, mean, cov, elbo, *fit, z, float(jitter))


def _inducing_inputs(inducing: Any, times: np.ndarray) -> np.ndarray:
    if np.ndim(inducing):
        return np.unique(check_times(inducing))
    if not isinstance(inducing, int | np.integer) or isinstance(inducing, bool) or inducing < 1:
        raise ValueError(
            f"inducing must be a whole number of at least 1, or the inputs of shape (m,), got {inducing!r}"
        )
    if len(times) <= inducing:
        return times
    return np.quantile(times, np.linspace(0.0, 1.0, inducing) if inducing > 1 else [0.5])


class SparseData(NamedTuple):
    z: Float[Array, " m"]
    jitter: Float[Array, ""]
    t: Float[Array, " n"]
    y: Float[Array, "n D"]
    seen: Bool[Array, "n D"]


def _data(series: TimeSeries, z: np.ndarray, jitter: float) -> SparseData:
    y = np.where(series.observed, series.values, 0.0)
    return SparseData(z, np.asarray(jitter, dtype=np.float64), series.times, y, np.array(series.observed))


class Factors(NamedTuple):
    """K_uu = LLᵀ and, for every column, I + AAᵀ = BBᵀ with A = L⁻¹K_uf/√r, and c = B⁻¹Ay/√r."""

    L: Float[Array, "m m"]
    B: Float[Array, "D m m"]
    c: Float[Array, "D m"]


def _factors(kernel: Kernel, noise: Float[Array, "..."], data: SparseData) -> tuple[Factors, Float[Array, ""]]:
    """The factors and the bound

    −½ (n log 2πr + log|BBᵀ| + yᵀy/r − cᵀc + tr K_ff/r − tr AAᵀ), summed over the columns; n counts the values seen.
    """
    z, t = data.z, data.t
    K_uu = kernel(z[:, None], z[None, :])
    L = jnp.linalg.cholesky(K_uu + data.jitter * jnp.mean(jnp.diagonal(K_uu)) * jnp.eye(len(z)))
    V = solve_triangular(L, kernel(z[:, None], t[None, :]), lower=True)
    left = kernel(t, t) - (V**2).sum(0)  # what the inducing values leave of the variance, diag(K_ff − Q)

    def column(r, y, seen):
        A = jnp.where(seen, V, 0.0) / jnp.sqrt(r)
        B = jnp.linalg.cholesky(jnp.eye(len(z)) + A @ A.T)
        c = solve_triangular(B, A @ y, lower=True) / jnp.sqrt(r)
        log_det = seen.sum() * (LOG_2PI + jnp.log(r)) + 2.0 * jnp.log(jnp.diagonal(B)).sum()
        return B, c, -0.5 * (log_det + y @ y / r - c @ c + jnp.where(seen, left, 0.0).sum() / r)

    r = jnp.broadcast_to(noise, data.y.shape[1:])
    B, c, bounds = jax.vmap(column, (0, 1, 1))(r, data.y, data.seen)
    return Factors(L, B, c), bounds.sum()


def _bound(kernel: Kernel, noise: Float[Array, "..."], data: SparseData) -> Float[Array, ""]:
    return _factors(kernel, noise, data)[1]


@compiled
def _condition(kernel: Kernel, noise, data: SparseData, s):
    """The bound; mean vᵀB⁻ᵀc, variance k(s, s) − |v|² + |B⁻¹v|² and k(s, s) at times s, with v = L⁻¹k(z, s)."""
    (L, B, c), bound = _factors(kernel, noise, data)
    v = solve_triangular(L, kernel(data.z[:, None], s[None, :]), lower=True)

    def column(B, c):
        w = solve_triangular(B, v, lower=True)
        return c @ w, kernel(s, s) - (v**2).sum(0) + (w**2).sum(0)

    mean, var = jax.vmap(column, out_axes=1)(B, c)
    return bound, mean, var, kernel(s, s)


def _posterior(kernel: Kernel, noise: np.ndarray, data: SparseData, times: np.ndarray):
    """The bound, and mean (n, D) and covariance (n, D, D) at `times`."""
    bound, mean, var, prior = _condition(kernel, noise, data, times)
    return float(bound), np.asarray(mean), covariances(times, np.asarray(var), np.asarray(prior))
