"""Gaussian process regression in time, exact and in O(n), for kernels of Markov processes.

y_i = f(t_i) + ε_i with f ~ GP(0, k) and ε_i ~ N(0, r). Where f is a coordinate of a linear SDE with state x,

    f(t_i) = h_iᵀx_i,  x_i | x_{i−1} ~ N(A_i x_{i−1}, P − A_i P A_iᵀ),  x_0 ~ N(0, P),

a Kalman filter gives the evidence and a second pass, backwards, the posterior. The covariances that both carry are
those of what is still unknown, and none is inverted: a vague prior (an unknown level or slope) costs few digits, and
observations so close that x hardly moves between them cost none. (Quasiseparable matrices, tinygp's way, are as fast,
but take the posterior variance as a difference from k(t, t): its rounding error is about 1e-16 · k² / variance.)
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

from girsanov._core.compile import compiled
from girsanov._core.precision import float64, parameter, to_numpy
from girsanov._core.types import Array
from girsanov.baselines.kernels import Kernel, StateSpace, check_kernel, check_positive
from girsanov.chain.blocks import matmul, matvec, outer, transpose
from girsanov.data.series import TimeSeries
from girsanov.model.estimate import Marginals, PathEstimate
from girsanov.model.likelihoods import LOG_2PI, Gaussian
from girsanov.model.model import Model

_ROUNDING = 1e-6  # of the largest prior variance: how far below zero rounding may take a variance
_PENALTY = 1e12  # in place of a value that is not finite: the line search steps back from it


@dataclasses.dataclass(frozen=True, repr=False)
class GPEstimate(PathEstimate):
    """The posterior of f at `times`, a column of the series at a time, with the parameters that it was found with.

    - model: how f is observed, y = f + N(0, noise_variance); a kernel has no drift, and that of `model` means nothing.
    - log_evidence: log p(y) of all columns, or a bound on it.
    - converged, message: how the search for the parameters ended.
    """

    model: Model
    series: TimeSeries
    times: np.ndarray
    mean: np.ndarray
    cov: np.ndarray
    log_evidence: float
    kernel: Any  # of the kind that was given
    noise_variance: np.ndarray
    converged: bool
    message: str


@dataclasses.dataclass(frozen=True, repr=False)
class GPPosterior(GPEstimate):
    """The exact posterior of a Gaussian process."""

    @float64
    def marginals(self, times: Any) -> Marginals:
        """Mean and covariance of f at any times, beyond the data too."""
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
    """Exact Gaussian process regression in O(n), with prior mean zero; NaN entries are missing one by one.

    Columns of the series are independent processes with the same kernel.

    - kernel: Matern12, Matern32, Matern52, Constant, Linear, their sums and products; `ornstein_uhlenbeck_kernel`.
    - noise_variance: r, a scalar or one a column.
    - times: where to report mean and covariance, by default the times of the series.
    - optimise, optimise_noise: maximise the log evidence over the kernel's parameters, and over r, from those given, by
      at most `max_iterations` of L-BFGS on their logarithms.
    """
    r = check_problem(series, kernel, noise_variance)
    t = series.times if times is None else check_times(series.numbers(times))
    fit = maximise(_evidence, (kernel, r), (optimise, optimise_noise), _padded(series.times, series), max_iterations)
    log_evidence, mean, cov = _posterior(fit.kernel, fit.noise_variance, series, t)
    if not np.isfinite(log_evidence):
        raise ValueError(
            f"the log evidence is {log_evidence} for {fit.kernel!r}: noise_variance = {fit.noise_variance} is too "
            "small beside the kernel's variance for float64; raise it"
        )
    model = observation_model(fit.noise_variance, series.dim)
    return GPPosterior(model, series, t, mean, cov, log_evidence, *fit)


class Padded(NamedTuple):
    """Increasing times, values and which of them count; what is added at the end counts for nothing."""

    t: Float[Array, " N"]
    y: Float[Array, "N D"]
    seen: Bool[Array, "N D"]


def _padded(nodes: np.ndarray, series: TimeSeries) -> Padded:
    """The series on `nodes`, filled up to a power of two, so that data of about the same length share a program."""
    N = 1 << (len(nodes) - 1).bit_length()
    t = np.append(nodes, np.full(N - len(nodes), nodes[-1]))
    y, seen = np.zeros((N, series.dim)), np.zeros((N, series.dim), bool)
    at = np.searchsorted(nodes, series.times)
    y[at], seen[at] = np.where(series.observed, series.values, 0.0), series.observed
    return Padded(t, y, seen)


class Filtered(NamedTuple):
    """x_i given the data up to t_i: mean and covariance; innovation v_i, its variance S_i, and the gain g_i."""

    mean: Float[Array, "N m"]
    cov: Float[Array, "N m m"]
    v: Float[Array, " N"]
    S: Float[Array, " N"]
    gain: Float[Array, "N m"]


def _filter(
    x: StateSpace, r: Float[Array, ""], y: Float[Array, " N"], seen: Bool[Array, " N"]
) -> tuple[Filtered, Float[Array, ""]]:
    """Kalman filter of one column and log p(y); a value that is missing has no gain."""
    Q = x.P - x.A @ x.P @ jnp.swapaxes(x.A, 1, 2)

    @functools.partial(jax.checkpoint, prevent_cse=False)  # gradients keep the states and repeat the rest: faster
    def step(state, at):
        (m, P), (A, Q, h, y, seen) = state, at
        m, P = matvec(A, m), matmul(matmul(A, P), transpose(A)) + Q
        Ph = matvec(P, h)
        v, S = y - (h * m).sum(), (h * Ph).sum() + r
        g = jnp.where(seen, Ph / S, 0.0)
        P = P - outer(g, Ph)  # (I − ghᵀ)P, then (I − ghᵀ)P(I − ghᵀ)ᵀ + r ggᵀ, which rounding leaves a covariance
        m, P = m + g * v, P - outer(matvec(P, h) - r * g, g)
        return (m, P), Filtered(m, P, v, S, g)

    _, out = jax.lax.scan(step, (jnp.zeros(len(x.P)), x.P), (x.A, Q, x.h, y, seen))
    return out, -0.5 * jnp.where(seen, LOG_2PI + jnp.log(out.S) + out.v**2 / out.S, 0.0).sum()


def _smooth(
    x: StateSpace, filtered: Filtered, seen: Bool[Array, " N"]
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """Mean and variance of f at every time given all data (Bryson and Frazier 1963).

    E[x_i] = m + Pℓ and Cov[x_i] = P − PΛP, with m and P filtered, and ℓ and −Λ the first two derivatives in m of the
    log density that the filter gives all later data.
    """

    def step(later, at):
        (ell, Lam), (A, h, (m, P, v, S, g), seen) = later, at
        Ph = matvec(P, h)
        mean, var = (h * m + Ph * ell).sum(), (h * Ph - Ph * matvec(Lam, Ph)).sum()
        weight = jnp.where(seen, 1.0 / S, 0.0)
        ell = ell + (weight * v - (g * ell).sum()) * h
        Lam = Lam - outer(matvec(Lam, g), h)  # Λ(I − ghᵀ), then (I − ghᵀ)ᵀΛ(I − ghᵀ) + hhᵀ/S
        Lam = Lam + outer(h, weight * h - matvec(transpose(Lam), g))
        return (matvec(transpose(A), ell), matmul(matmul(transpose(A), Lam), A)), (mean, var)

    start = jnp.zeros(len(x.P)), jnp.zeros_like(x.P)
    return jax.lax.scan(step, start, (x.A, x.h, filtered, seen), reverse=True)[1]


def _evidence(kernel: Kernel, noise: Float[Array, "..."], data: Padded) -> Float[Array, ""]:
    x, r = kernel.state_space(data.t), jnp.broadcast_to(noise, data.y.shape[1:])
    return jax.vmap(lambda *column: _filter(x, *column)[1], (0, 1, 1))(r, data.y, data.seen).sum()


@compiled
def _condition(kernel: Kernel, noise, data: Padded):
    """Log evidence, and mean, variance and prior variance of f at every time."""
    x, r = kernel.state_space(data.t), jnp.broadcast_to(noise, data.y.shape[1:])

    def column(r, y, seen):
        filtered, log_evidence = _filter(x, r, y, seen)
        return log_evidence, *_smooth(x, filtered, seen)

    log_evidence, mean, var = jax.vmap(column, (0, 1, 1), (0, 1, 1))(r, data.y, data.seen)
    return log_evidence.sum(), mean, var, kernel(data.t, data.t)


def _posterior(kernel: Kernel, noise: np.ndarray, series: TimeSeries, times: np.ndarray):
    """Log evidence, and mean (n, D) and covariance (n, D, D) at `times`."""
    nodes = np.union1d(series.times, times)
    log_evidence, mean, var, prior = _condition(kernel, noise, _padded(nodes, series))
    at = np.searchsorted(nodes, times)
    return float(log_evidence), np.asarray(mean)[at], covariances(times, np.asarray(var)[at], np.asarray(prior)[at])


def covariances(times: np.ndarray, var: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """(n, D) variances as (n, D, D) covariances; a variance that is zero may be negative by rounding, and no more."""
    lost = np.argwhere(var < -_ROUNDING * prior.max())
    if len(lost):
        i, j = lost[0]
        raise ValueError(
            f"the variance at time {float(times[i])!r} came out as {var[i, j]:.3g}, with a prior variance "
            f"{prior[i]:.3g}: its digits were lost; give a larger noise_variance or a kernel that varies less"
        )
    return np.where(var < 0.0, 0.0, var)[:, :, None] * np.eye(var.shape[1])


class Fitted(NamedTuple):
    kernel: Kernel
    noise_variance: np.ndarray
    converged: bool
    message: str


@compiled
def _slope(objective: Callable, theta: Float[Array, " k"], varied: Any, fixed: Any, data: Any):
    """The objective and its gradient in theta, the logarithms of the parameters in `varied`."""
    unravel = ravel_pytree(varied)[1]
    return jax.value_and_grad(lambda theta: objective(*eqx.combine(unravel(jnp.exp(theta)), fixed), data))(theta)


def maximise(
    objective: Callable, start: tuple[Kernel, np.ndarray], free: tuple[bool, bool], data: Any, max_iterations: int
) -> Fitted:
    """The largest objective(kernel, noise, data) over the logarithms of the parts that are `free`, by L-BFGS."""
    if not any(free):
        return Fitted(start[0], start[1], True, "the parameters are as given")
    import scipy.optimize

    varied, fixed = eqx.partition(start, free)
    first, unravel = ravel_pytree(varied)
    best = np.inf, np.log(first)

    def descend(theta: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        value, grad = (np.asarray(a) for a in _slope(objective, theta, varied, fixed, data))
        if not (np.isfinite(value) and np.isfinite(grad).all()):
            return _PENALTY, np.zeros_like(theta)
        if -value < best[0]:
            best = -float(value), np.array(theta)
        return -float(value), -grad

    options = {"maxiter": max_iterations, "gtol": 1e-6, "ftol": 1e-13}
    run = scipy.optimize.minimize(descend, best[1], jac=True, method="L-BFGS-B", options=options)
    if not np.isfinite(best[0]):
        return Fitted(start[0], start[1], False, "the gradient at the given parameters is not finite: start elsewhere")
    kernel, noise = to_numpy(eqx.combine(unravel(jnp.exp(best[1])), fixed))
    return Fitted(kernel, noise, bool(run.success), f"L-BFGS, {run.nit} iterations: {run.message}")


def _no_drift(x, t):
    return jnp.zeros_like(x)


def observation_model(noise_variance: np.ndarray, D: int) -> Model:
    """y = f + N(0, noise_variance), in the form in which estimates are scored."""
    return Model(_no_drift, likelihood=Gaussian(noise_variance), dim=D)


def check_problem(series: Any, kernel: Any, noise_variance: Any) -> np.ndarray:
    """The noise variance as an array; a ValueError where the three are not a regression problem."""
    if not isinstance(series, TimeSeries):
        raise ValueError(f"the series must be a gv.TimeSeries, got {type(series).__name__}")
    check_kernel(kernel)
    r = parameter(noise_variance)
    if r.shape not in ((), (series.dim,)):
        raise ValueError(f"noise_variance must be a scalar or of shape ({series.dim},), got shape {r.shape}")
    for value in np.ravel(r):
        check_positive("noise_variance", value)
    return r


def check_times(times: Any) -> np.ndarray:
    t = np.atleast_1d(np.asarray(times, dtype=np.float64))
    if t.ndim != 1 or len(t) == 0:
        raise ValueError(f"times must have shape (n,) with n ≥ 1, got {t.shape}")
    if not np.isfinite(t).all():
        i = int(np.argmin(np.isfinite(t)))
        raise ValueError(f"times[{i}] is {t[i]}; every time must be finite")
    return t
