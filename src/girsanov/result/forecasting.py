"""Forecasts: the model simulated onwards from the last state of an estimate."""

from collections.abc import Callable
from typing import Any

import numpy as np

from girsanov.model.estimate import PathEstimate
from girsanov.model.simulate import check_draws, euler_paths, states


def forecast(
    estimate: PathEstimate, times: Any, start: Callable, *, key: Any, n: int = 1000, dt: float | None = None
) -> np.ndarray:
    """Simulate the model from the last state of an estimate by Euler–Maruyama; return the paths, (n, k, d).

    `start(n)` returns the law of the last state: its mean and covariance, or n states and None, in coordinates in which
    the noise is constant. See `Posterior.forecast` for the other arguments.
    """
    t = estimate._numbers(times)
    end = float(estimate.times[-1])
    if t.ndim != 1 or len(t) == 0 or not np.isfinite(t).all():
        raise ValueError(f"times must be finite and of shape (n,), got {times!r}")
    if t[0] < end or (np.diff(t) <= 0).any():
        raise ValueError(f"forecast times must increase and start at or after the horizon's end {end:g}, got {t!r}")
    if dt is None and len(estimate.times) == 1:
        raise ValueError("the grid has a single node and so no step: give forecast a step dt=")
    step = float(np.median(np.diff(estimate.times))) if dt is None else dt
    check_draws(key, n, step)
    begin = (end, *start(n))
    paths: np.ndarray = np.empty((0, 0, 0))
    for shorter in (1.0, 4.0, 16.0):
        paths = euler_paths(estimate.model.latent, t, key=key, n=n, dt=float(step) / shorter, start=begin)
        if np.isfinite(paths).all():
            return states(estimate.model, paths)
    good = np.isfinite(paths)
    lost, i = int(np.sum(~np.all(good, (1, 2)))), int(np.argmin(np.all(good, (0, 2))))
    raise ValueError(
        f"{lost} of {n} simulated paths are not finite from time {t[i]:g} on, even with steps of {step / 16.0:g}: "
        "the drift makes them grow without bound; use a smaller dt, or forecast earlier times only"
    )
