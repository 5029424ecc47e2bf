"""Averages of positive numbers that are given by their logarithms, as importance weights are."""

from typing import NamedTuple

import numpy as np

_CONSTANT = 1e-6  # log weights with a smaller spread than this are treated as equal
_RANGE = 600.0  # exp of a log weight this many nats below the largest is beyond the range of floating-point numbers


class LogMean(NamedTuple):
    """The mean of the numbers exp(logs).

    Attributes:
        value: the logarithm of the mean.
        error: its standard error by the delta method; NaN for a single number.
        effective: the effective number of them, (Σw)²/Σw².
    """

    value: float
    error: float
    effective: float


def log_mean(logs: np.ndarray) -> LogMean:
    """Return the logarithm of the mean of exp(logs), without overflow; logs may be minus infinity, but not all."""
    top = logs.max()
    w = np.exp(logs - top)
    error = w.std(ddof=1) / w.mean() / np.sqrt(len(w)) if len(w) > 1 else np.nan
    return LogMean(float(top + np.log(w.mean())), float(error), float(w.sum() ** 2 / (w**2).sum()))


def pareto_smoothed(logs: np.ndarray) -> tuple[np.ndarray, float]:
    """Return log weights (n,) with the upper tail of the weights smoothed by a Pareto distribution, and its shape k̂.

    The weights are as they were where their tail is constant, with k̂ = 0, and where it is too wide for floating-point
    numbers, with k̂ = ∞.
    """
    from arviz_stats.base.array import array_stats

    logs = logs - logs.max()
    tail = np.sort(logs)[-int(min(0.2 * len(logs), 3.0 * np.sqrt(len(logs)))) - 1]
    if tail > -_CONSTANT:
        return logs, 0.0
    if tail < -_RANGE:
        return logs, float("inf")
    # `psislw` takes log likelihoods, the negatives of log weights. None may be −∞; the smallest are not smoothed.
    smoothed, k_hat = array_stats.psislw(-np.maximum(logs, -_RANGE))
    return np.asarray(smoothed), float(k_hat) if np.isfinite(k_hat) else float("inf")
