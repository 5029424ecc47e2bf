"""Sparse Gaussian process regression: the collapsed bound of Titsias (2009) with fixed inducing inputs.

The posterior of f is approximated through its values u at m inducing inputs z. With Q = K_fu K_uu⁻¹ K_uf,

    log p(y) ≥ log N(y; 0, Q + rI) − tr(K_ff − Q) / 2r,

which takes O(n m²). The bound equals the log evidence if z contains every input. If the values have known errors, their
squares are added to r, one for each value.
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
from girsanov._core.special import LOG_2PI
from girsanov._core.types import Array
from girsanov.baselines.gp import (
    GPEstimate,
    check_problem,
    check_times,
    covariances,
    maximise,
    observation_model,
    squared_errors,
)
from girsanov.baselines.kernels import Constant, Kernel, Linear, Matern12, Matern32
from girsanov.data.series import TimeSeries
from girsanov.model.estimate import Marginals


@dataclasses.dataclass(frozen=True, repr=False)
class SparseGPPosterior(GPEstimate):
    """The approximate posterior that maximises Titsias' bound, as `sparse_gp_regression` returns it.

    See `GPEstimate` for the other attributes.

    Attributes:
        log_evidence: the bound on the log evidence.
        inducing: the inducing inputs, shape (m,).
        jitter: variance of the noise of the inducing values, as a share of their mean prior variance.
    """

    inducing: np.ndarray
    jitter: float

    @property
    def elbo(self) -> float:
        """The bound, the same as `log_evidence`."""
        return self.log_evidence

    @float64
    def marginals(self, times: Any) -> Marginals:
        """Return mean and covariance of f at any times, also outside those of the data.

        Args:
            times: times or dates, shape (n,) or a scalar.

        Returns:
            Means of shape (n, D) and diagonal covariances of shape (n, D, D).
        """
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
    """Sparse Gaussian process regression with prior mean zero.

    The columns of the series are independent processes with the same kernel. Single entries may be missing (NaN).
    `gp_regression` gives the exact answer for the same kernels and is faster; this function exists because the
    literature compares with this approximation.

    Args:
        series: the observations. The squares of their errors, if they have any, are added to the noise variance.
        noise_variance: variance r of the observation noise, a scalar or shape (D,).
        kernel: by default Constant() + Linear() + Matern12() + Matern32(), all with unit variance and lengthscale.
        inducing: the number of inducing inputs, which are then equally spaced quantiles of the times with data (or all
            these times, if there are no more), or the inputs themselves, shape (m,); 500 by default.
        times: times at which to report mean and covariance; by default the times of the series.
        optimise: whether to maximise the bound over the parameters of the kernel, starting from those given.
        optimise_noise: whether to maximise it over the noise variance as well.
        jitter: variance added to the diagonal of K_uu, as a share of its mean; 0 by default. The inducing values are
            then noisy values of f, so the result is still a lower bound, but a slightly lower one. It is needed if
            inducing inputs lie too close together for a smooth kernel.
        max_iterations: largest number of iterations of L-BFGS, which works on the logarithms of the parameters.

    Returns:
        The approximate posterior at `times`, with the bound and the parameters.
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
        return np.unique(check_times(inducing, "inducing"))
    if not isinstance(inducing, int | np.integer) or isinstance(inducing, bool) or inducing < 1:
        raise ValueError(
            f"inducing must be a whole number of at least 1, or the inputs of shape (m,), got {inducing!r}"
        )
    if len(times) <= inducing:
        return times
    return np.quantile(times, np.linspace(0.0, 1.0, inducing) if inducing > 1 else [0.5])


class SparseData(NamedTuple):
    """Inducing inputs z, jitter, observation times t, values y (zero if missing), the mask `seen`, squared errors."""

    z: Float[Array, " m"]
    jitter: Float[Array, ""]
    t: Float[Array, " n"]
    y: Float[Array, "n D"]
    seen: Bool[Array, "n D"]
    squared_errors: Float[Array, "n D"]


def _data(series: TimeSeries, z: np.ndarray, jitter: float) -> SparseData:
    y, seen = series.filled, np.array(series.observed)
    return SparseData(z, np.asarray(jitter, dtype=np.float64), series.times, y, seen, squared_errors(series))


class Factors(NamedTuple):
    """The factor L of K_uu = LLᵀ and, for every column, B of I + AAᵀ = BBᵀ with A = L⁻¹K_uf/√r, and c = B⁻¹A(y/√r)."""

    L: Float[Array, "m m"]
    B: Float[Array, "D m m"]
    c: Float[Array, "D m"]


def _factors(kernel: Kernel, noise: Float[Array, "..."], data: SparseData) -> tuple[Factors, Float[Array, ""]]:
    """Return the factors and the bound.

    The bound is −½ (Σ log 2πr + log|BBᵀ| + Σ y²/r − cᵀc + Σ (K_ff − Q)/r), summed over the columns; the sums are over
    the observed values, of which each has its own r.
    """
    z, t = data.z, data.t
    K_uu = kernel(z[:, None], z[None, :])
    L = jnp.linalg.cholesky(K_uu + data.jitter * jnp.mean(jnp.diagonal(K_uu)) * jnp.eye(len(z)))
    V = solve_triangular(L, kernel(z[:, None], t[None, :]), lower=True)
    left = kernel(t, t) - (V**2).sum(0)  # variance of f given the inducing values, diag(K_ff − Q)

    def column(r, y, seen):
        A = jnp.where(seen, V, 0.0) / jnp.sqrt(r)
        B = jnp.linalg.cholesky(jnp.eye(len(z)) + A @ A.T)
        c = solve_triangular(B, A @ (y / jnp.sqrt(r)), lower=True)
        each = jnp.where(seen, LOG_2PI + jnp.log(r) + (y**2 + left) / r, 0.0).sum()
        return B, c, -0.5 * (each + 2.0 * jnp.log(jnp.diagonal(B)).sum() - c @ c)

    B, c, bounds = jax.vmap(column, 1)(noise + data.squared_errors, data.y, data.seen)
    return Factors(L, B, c), bounds.sum()


def _bound(kernel: Kernel, noise: Float[Array, "..."], data: SparseData) -> Float[Array, ""]:
    return _factors(kernel, noise, data)[1]


@compiled
def _condition(kernel: Kernel, noise, data: SparseData, s):
    """Return the bound, and mean, variance and prior variance of f at times s.

    With v = L⁻¹k(z, s) they are vᵀB⁻ᵀc, k(s, s) − |v|² + |B⁻¹v|² and k(s, s).
    """
    (L, B, c), bound = _factors(kernel, noise, data)
    v = solve_triangular(L, kernel(data.z[:, None], s[None, :]), lower=True)

    def column(B, c):
        w = solve_triangular(B, v, lower=True)
        return c @ w, kernel(s, s) - (v**2).sum(0) + (w**2).sum(0)

    mean, var = jax.vmap(column, out_axes=1)(B, c)
    return bound, mean, var, kernel(s, s)


def _posterior(kernel: Kernel, noise: np.ndarray, data: SparseData, times: np.ndarray):
    """Return the bound, and mean (n, D) and covariance (n, D, D) of f at `times`."""
    bound, mean, var, prior = _condition(kernel, noise, data, times)
    return float(bound), np.asarray(mean), covariances(times, np.asarray(var), np.asarray(prior))
