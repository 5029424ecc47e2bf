"""Exact Gaussian process regression in time, in O(n), for kernels of Markov processes.

The model is y_i = f(t_i) + ε_i with f ~ GP(0, k) and ε_i ~ N(0, r + e_i²), where e_i is the known error of y_i, zero if
the series has none, and f is a coordinate of a linear SDE with state x:

    f(t_i) = h_iᵀx_i,  x_i | x_{i−1} ~ N(A_i x_{i−1}, P − A_i P A_iᵀ),  x_0 ~ N(0, P).

A Kalman filter gives the evidence, and a backward pass the posterior. No covariance is inverted. A vague prior (an
unknown level or slope) costs few digits, and observations so close together that x hardly moves between them cost none.
Quasiseparable matrices, which tinygp uses, are as fast, but they compute the posterior variance as a difference from
k(t, t), with a rounding error of about 1e-16 · k² / variance.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float

from girsanov._core.ascent import lbfgs
from girsanov._core.checks import check_positive
from girsanov._core.compile import compiled
from girsanov._core.precision import float64, parameter, to_numpy
from girsanov._core.special import LOG_2PI
from girsanov._core.types import Array
from girsanov.baselines.kernels import Kernel, StateSpace, check_kernel
from girsanov.chain.blocks import matmul, matvec, outer, transpose
from girsanov.data.rows import rows_of
from girsanov.data.series import TimeSeries
from girsanov.model.estimate import Marginals, PathEstimate
from girsanov.model.likelihoods import Gaussian
from girsanov.model.model import Model

_ROUNDING = 1e-6  # a variance may be negative by rounding up to this share of the largest prior variance


@dataclasses.dataclass(frozen=True, repr=False)
class GPEstimate(PathEstimate):
    """The posterior of a Gaussian process f, with one independent process for each column of the series.

    Attributes:
        model: the observation model y = f + N(0, noise_variance). A kernel has no drift; that of `model` has no
            meaning.
        series: the observations.
        times: times at which mean and covariance are given, shape (n,).
        mean: posterior mean of f, shape (n, D).
        cov: posterior covariance of f, shape (n, D, D), diagonal.
        log_evidence: log p(y) of all columns, or a lower bound on it.
        kernel: the kernel, with optimised parameters if they were optimised.
        noise_variance: the noise variance, a scalar or shape (D,).
        converged: whether the optimisation of the parameters converged; True if nothing was optimised.
        message: how the optimisation ended.
    """

    model: Model
    series: TimeSeries
    times: np.ndarray
    mean: np.ndarray
    cov: np.ndarray
    log_evidence: float
    kernel: Any
    noise_variance: np.ndarray
    converged: bool
    message: str


@dataclasses.dataclass(frozen=True, repr=False)
class GPPosterior(GPEstimate):
    """The exact posterior of a Gaussian process, as `gp_regression` returns it; see `GPEstimate` for its attributes."""

    @float64
    def marginals(self, times: Any) -> Marginals:
        """Return mean and covariance of f at any times, also outside those of the data.

        Args:
            times: times or dates, shape (n,) or a scalar.

        Returns:
            Means of shape (n, D) and diagonal covariances of shape (n, D, D).
        """
        t = check_times(self._numbers(times))
        return Marginals(*_posterior(self.kernel, self.noise_variance, self.series, t)[1:])


@float64
def gp_regression(
    series: TimeSeries,
    *,
    kernel: Kernel,
    noise_variance: Any,
    times: Any = None,
    optimise: bool = False,
    optimise_noise: bool = False,
    max_iterations: int = 200,
) -> GPPosterior:
    """Exact Gaussian process regression in O(n), with prior mean zero.

    The columns of the series are independent processes with the same kernel. Single entries may be missing (NaN).

    Args:
        series: the observations. The squares of their errors, if they have any, are added to the noise variance.
        kernel: `Matern12`, `Matern32`, `Matern52`, `Constant`, `Linear`, sums and products of them, or the result of
            `ornstein_uhlenbeck_kernel`.
        noise_variance: variance r of the observation noise, a scalar or shape (D,).
        times: times at which to report mean and covariance; by default the times of the series.
        optimise: whether to maximise the log evidence over the parameters of the kernel, starting from those given.
        optimise_noise: whether to maximise it over the noise variance as well.
        max_iterations: largest number of iterations of L-BFGS, which works on the logarithms of the parameters.

    Returns:
        The posterior at `times`, with the log evidence and the parameters.
    """
    r = check_problem(series, kernel, noise_variance)
    t = series.times if times is None else check_times(series.numbers(times))
    fit = maximise(_evidence, (kernel, r), (optimise, optimise_noise), _padded(series.times, series), max_iterations)
    log_evidence, mean, cov = _posterior(fit.kernel, fit.noise_variance, series, t)
    if not np.isfinite(log_evidence):
        raise ValueError(
            f"the log evidence is {log_evidence} for {fit.kernel!r}: noise_variance = {fit.noise_variance} is too "
            "small compared with the kernel's variance for float64; raise it"
        )
    model = observation_model(fit.noise_variance, series.dim)
    return GPPosterior(model, series, t, mean, cov, log_evidence, *fit)


class Padded(NamedTuple):
    """Increasing times, values, a mask of the values to use, and squared errors; padding at the end is masked out."""

    t: Float[Array, " N"]
    y: Float[Array, "N D"]
    seen: Bool[Array, "N D"]
    squared_errors: Float[Array, "N D"]

    def noise(self, r: Float[Array, "..."]) -> Float[Array, "N D"]:
        """Return the noise variance of every value, from that of all values or of each column."""
        return r + self.squared_errors


def _padded(nodes: np.ndarray, series: TimeSeries) -> Padded:
    """Put the series on `nodes`, padded to a power of two so that data of similar length share a compiled program."""
    N = 1 << (len(nodes) - 1).bit_length()
    t = np.append(nodes, np.full(N - len(nodes), nodes[-1]))
    y, seen, squares = np.zeros((N, series.dim)), np.zeros((N, series.dim), bool), np.zeros((N, series.dim))
    at = np.searchsorted(nodes, series.times)
    y[at], seen[at], squares[at] = series.filled, series.observed, squared_errors(series)
    return Padded(t, y, seen, squares)


def squared_errors(series: TimeSeries) -> np.ndarray:
    """Return the squares of the known errors, shape (n, D); zero for missing values and where there are no errors."""
    errors = rows_of(series).errors
    return np.zeros(series.values.shape) if errors is None else np.asarray(errors) ** 2


class Filtered(NamedTuple):
    """The output of the Kalman filter at every time.

    Attributes:
        mean: mean of x_i given the data up to t_i.
        cov: covariance of x_i given the data up to t_i.
        v: innovation, y_i minus its prediction.
        S: variance of the innovation.
        gain: Kalman gain, zero where y_i is missing.
    """

    mean: Float[Array, "N m"]
    cov: Float[Array, "N m m"]
    v: Float[Array, " N"]
    S: Float[Array, " N"]
    gain: Float[Array, "N m"]


def _filter(
    x: StateSpace, r: Float[Array, " N"], y: Float[Array, " N"], seen: Bool[Array, " N"]
) -> tuple[Filtered, Float[Array, ""]]:
    """Run the Kalman filter on one column; return its output and log p(y)."""
    Q = x.P - x.A @ x.P @ jnp.swapaxes(x.A, 1, 2)

    @functools.partial(jax.checkpoint, prevent_cse=False)  # gradients store only the states and recompute the rest
    def step(state, at):
        (m, P), (A, Q, h, r, y, seen) = state, at
        m, P = matvec(A, m), matmul(matmul(A, P), transpose(A)) + Q
        Ph = matvec(P, h)
        v, S = y - (h * m).sum(), (h * Ph).sum() + r
        g = jnp.where(seen, Ph / S, 0.0)
        # First (I − ghᵀ)P, then (I − ghᵀ)P(I − ghᵀ)ᵀ + r ggᵀ, which stays positive semi-definite under rounding.
        P = P - outer(g, Ph)
        m, P = m + g * v, P - outer(matvec(P, h) - r * g, g)
        return (m, P), Filtered(m, P, v, S, g)

    _, out = jax.lax.scan(step, (jnp.zeros(len(x.P)), x.P), (x.A, Q, x.h, r, y, seen))
    return out, -0.5 * jnp.where(seen, LOG_2PI + jnp.log(out.S) + out.v**2 / out.S, 0.0).sum()


def _smooth(
    x: StateSpace, filtered: Filtered, seen: Bool[Array, " N"]
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """Return mean and variance of f at every time given all data (Bryson and Frazier 1963).

    E[x_i] = m + Pℓ and Cov[x_i] = P − PΛP, where m and P are the filter's mean and covariance, and ℓ and −Λ are the
    first and second derivative in m of the filter's log density of all later data.
    """

    def step(later, at):
        (ell, Lam), (A, h, (m, P, v, S, g), seen) = later, at
        Ph = matvec(P, h)
        mean, var = (h * m + Ph * ell).sum(), (h * Ph - Ph * matvec(Lam, Ph)).sum()
        weight = jnp.where(seen, 1.0 / S, 0.0)
        ell = ell + (weight * v - (g * ell).sum()) * h
        Lam = Lam - outer(matvec(Lam, g), h)  # first Λ(I − ghᵀ), then (I − ghᵀ)ᵀΛ(I − ghᵀ) + hhᵀ/S
        Lam = Lam + outer(h, weight * h - matvec(transpose(Lam), g))
        return (matvec(transpose(A), ell), matmul(matmul(transpose(A), Lam), A)), (mean, var)

    start = jnp.zeros(len(x.P)), jnp.zeros_like(x.P)
    return jax.lax.scan(step, start, (x.A, x.h, filtered, seen), reverse=True)[1]


def _evidence(kernel: Kernel, noise: Float[Array, "..."], data: Padded) -> Float[Array, ""]:
    x = kernel.state_space(data.t)
    return jax.vmap(lambda *column: _filter(x, *column)[1], 1)(data.noise(noise), data.y, data.seen).sum()


@compiled
def _condition(kernel: Kernel, noise, data: Padded):
    """Return the log evidence, and mean, variance and prior variance of f at every time."""
    x = kernel.state_space(data.t)

    def column(r, y, seen):
        filtered, log_evidence = _filter(x, r, y, seen)
        return log_evidence, *_smooth(x, filtered, seen)

    log_evidence, mean, var = jax.vmap(column, 1, (0, 1, 1))(data.noise(noise), data.y, data.seen)
    return log_evidence.sum(), mean, var, kernel(data.t, data.t)


def _posterior(kernel: Kernel, noise: np.ndarray, series: TimeSeries, times: np.ndarray):
    """Return the log evidence, and mean (n, D) and covariance (n, D, D) of f at `times`."""
    nodes = np.union1d(series.times, times)
    log_evidence, mean, var, prior = _condition(kernel, noise, _padded(nodes, series))
    at = np.searchsorted(nodes, times)
    return float(log_evidence), np.asarray(mean)[at], covariances(times, np.asarray(var)[at], np.asarray(prior)[at])


def covariances(times: np.ndarray, var: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Return variances (n, D) as diagonal covariances (n, D, D).

    A variance that is negative by rounding becomes zero; one that is more negative than that is a ValueError.
    """
    lost = np.argwhere(var < -_ROUNDING * prior.max())
    if len(lost):
        i, j = lost[0]
        raise ValueError(
            f"the variance at time {float(times[i])!r} came out as {var[i, j]:.3g}, with a prior variance "
            f"{prior[i]:.3g}: rounding has destroyed its digits; give a larger noise_variance or a kernel with a "
            "smaller variance"
        )
    return np.where(var < 0.0, 0.0, var)[:, :, None] * np.eye(var.shape[1])


class Fitted(NamedTuple):
    """Kernel and noise variance after the optimisation, whether it converged, and a message that says how it ended."""

    kernel: Kernel
    noise_variance: np.ndarray
    converged: bool
    message: str


@compiled
def _slope(objective: Callable, theta: Float[Array, " k"], varied: Any, fixed: Any, data: Any):
    """Return the objective and its gradient in theta, the logarithms of the parameters in `varied`."""
    unravel = ravel_pytree(varied)[1]
    return jax.value_and_grad(lambda theta: objective(*eqx.combine(unravel(jnp.exp(theta)), fixed), data))(theta)


def maximise(
    objective: Callable, start: tuple[Kernel, np.ndarray], free: tuple[bool, bool], data: Any, max_iterations: int
) -> Fitted:
    """Maximise objective(kernel, noise, data) by L-BFGS over the logarithms of the parameters.

    `free` says whether the kernel's parameters are varied, and whether the noise variance is.
    """
    if not any(free):
        return Fitted(start[0], start[1], True, "the parameters are as given")
    varied, fixed = eqx.partition(start, free)
    first, unravel = ravel_pytree(varied)

    def slope(theta: np.ndarray) -> tuple[float, np.ndarray]:
        value, grad = _slope(objective, theta, varied, fixed, data)
        return float(value), np.asarray(grad)

    top, run = lbfgs(slope, np.log(first), 1.0, {"maxiter": max_iterations, "gtol": 1e-6, "ftol": 1e-13})
    if not np.isfinite(top.value):
        return Fitted(start[0], start[1], False, "the gradient at the given parameters is not finite: give other ones")
    kernel, noise = to_numpy(eqx.combine(unravel(jnp.exp(top.theta)), fixed))
    return Fitted(kernel, noise, bool(run.success), f"L-BFGS, {run.nit} iterations: {run.message}")


def _no_drift(x, t):
    return jnp.zeros_like(x)


def observation_model(noise_variance: np.ndarray, D: int) -> Model:
    """Return the model y = f + N(0, noise_variance) with D columns, which is used to score predictions."""
    return Model(_no_drift, likelihood=Gaussian(noise_variance), dim=D)


def check_problem(series: Any, kernel: Any, noise_variance: Any) -> np.ndarray:
    """Return the noise variance as an array, or raise a ValueError if series, kernel or noise variance is not valid."""
    if not isinstance(series, TimeSeries):
        raise ValueError(f"the series must be a gv.TimeSeries, got {type(series).__name__}")
    check_kernel(kernel)
    r = parameter(noise_variance)
    if r.shape not in ((), (series.dim,)):
        raise ValueError(f"noise_variance must be a scalar or of shape ({series.dim},), got shape {r.shape}")
    for value in np.ravel(r):
        check_positive(noise_variance=float(value))
    return r


def check_times(times: Any, name: str = "times") -> np.ndarray:
    """Return the times as an array of shape (n,), or raise a ValueError if one of them is not finite."""
    t = np.atleast_1d(np.asarray(times, dtype=np.float64))
    if t.ndim != 1 or len(t) == 0:
        raise ValueError(f"{name} must have shape (n,) with n ≥ 1, got {t.shape}")
    if not np.isfinite(t).all():
        i = int(np.argmin(np.isfinite(t)))
        raise ValueError(f"{name}[{i}] is {t[i]}; every time must be finite")
    return t
