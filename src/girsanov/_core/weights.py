"""Averages of positive numbers that are given by their logarithms, as importance weights are."""

from typing import NamedTuple

import numpy as np


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
