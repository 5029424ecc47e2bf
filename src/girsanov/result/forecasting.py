"""Forecasts: the model simulated onwards from the last state of an estimate."""

from collections.abc import Callable
from typing import Any

import numpy as np

from girsanov.data.inputs import Inputs
from girsanov.data.series import TimeSeries
from girsanov.model.driven import check_driven, shift
from girsanov.model.estimate import PathEstimate
from girsanov.model.model import Model
from girsanov.model.simulate import check_draws, euler_paths, states


def forecast(
    estimate: PathEstimate,
    times: Any,
    start: Callable,
    *,
    key: Any,
    n: int = 1000,
    dt: float | None = None,
    inputs: Any = None,
) -> np.ndarray:
    """Simulate the model from the last state of an estimate by Euler–Maruyama; return the paths, (n, k, d).

    `start(n)` returns the law of the last state: its mean and covariance, or n states and None, in coordinates of the
    latent model. See `Posterior.forecast` for the other arguments.
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
    mean, cov = start(n)
    model, nodes = _onwards(estimate, end, t, inputs)
    if estimate.model.has_impulses:  # those up to now move the last state, and the later ones do what follows
        mean = mean + np.asarray(shift(estimate.model, np.array([end])))[0]
    paths: np.ndarray = np.empty((0, 0, 0))
    for shorter in (1.0, 4.0, 16.0):
        paths = euler_paths(model.latent, nodes, key=key, n=n, dt=float(step) / shorter, start=(end, mean, cov))
        paths = paths[:, np.searchsorted(nodes, t)]
        if np.isfinite(paths).all():
            return states(model, paths, t)
    good = np.isfinite(paths)
    lost, i = int(np.sum(~np.all(good, (1, 2)))), int(np.argmin(np.all(good, (0, 2))))
    raise ValueError(
        f"{lost} of {n} simulated paths are not finite from time {t[i]:g} on, even with steps of {step / 16.0:g}: "
        "the drift makes them grow without bound; use a smaller dt, or forecast earlier times only"
    )


def _onwards(estimate: Any, end: float, t: np.ndarray, given: Any) -> tuple[Model, np.ndarray]:
    """Return the model with the inputs after the end of the horizon, and the times with those of steps and impulses."""
    model, known = estimate.model, estimate.series.inputs
    if given is None and known is None:
        return model, t
    if known is None:
        raise ValueError("inputs= are for a model whose drift takes inputs, f(x, t, u); that of this one does not")
    inputs = known if given is None else Inputs.joined(given).counted(estimate.series.numbers)
    if inputs.dim != known.dim:
        raise ValueError(f"the inputs have {inputs.dim} components, but those of the series have {known.dim}")
    try:
        inputs.check_reach(end, float(t[-1]), past=True)
    except ValueError as error:
        if given is not None:
            raise
        raise ValueError(f"{error}. Or say what acts on the state from then on: forecast(times, inputs=...)") from None
    later = inputs.after(end)
    if given is not None and later.has_impulses:
        check_driven(model, TimeSeries(estimate.series.times, estimate.series.values, inputs=later))
    knots = later.knots
    nodes = np.union1d(t, knots[(knots > end) & (knots < t[-1])])
    return model.driven_by(later.on(np.union1d(end, nodes))), nodes
