"""The step of the time grid where none is given: from the data and the drift's time scale, and checked by halving."""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from girsanov._core.progress import reporter

_CHANGE = 0.1  # largest change of a mean by halving the step, in standard deviations
_NATS = 0.5  # largest change of the bound; a standard error of a parameter is half a nat too
_HALVINGS = 5  # at most
_FEWEST, _MOST = 40, 20_000  # nodes of the grid


class Step(NamedTuple):
    """A step of the time grid, and why it was chosen."""

    dt: float
    line: str


def chosen_step(model: Any, data: Any, span: Any, method: Any, progress: bool = False) -> Step:
    """Choose a step: halved until the posterior, at the parameters of the model, no longer depends on it.

    Args:
        model: the model.
        data: the series; of a panel, the longest is looked at.
        span: begin and end, or None.
        method: the method of inference.
        progress: whether to show which step is tried, if it takes longer than two seconds.

    Returns:
        The step, and a line for the user.
    """
    import girsanov as gv

    series = data if hasattr(data, "times") else max(data.values(), key=len)
    begin, end = span or (float(series.times[0]), float(series.times[-1]))
    if not end > begin:
        return Step(1.0, "")
    dt = first_step(series.times, begin, end)

    with reporter(progress) as say:

        def run(dt: float) -> Any:
            if say is not None:
                say(f"looking for a step of the time grid: {dt:g}")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the run with the step that is chosen warns again
                return gv.infer(model, series, dt=dt, span=span, method=method, progress=False)

        return halved(dt, run, (end - begin) / _MOST)


def halved(dt: float, run: Callable[[float], Any], shortest: float) -> Step:
    """Halve a step until the posterior that `run` returns for it no longer changes.

    The error of Euler's scheme is of first order in the step, so that what the first halving changes says how many more
    are needed; the last of them is checked.
    """
    change, nats, left = math.inf, math.inf, _HALVINGS
    done: dict[float, Any] = {}

    def at(step: float) -> Any:
        if step not in done:
            done[step] = run(step)
        return done[step]

    while 0.5 * dt >= shortest:
        change, nats = _change(at(dt), at(0.5 * dt))
        excess = max(change / _CHANGE, nats / _NATS)
        if excess <= 1.0:
            return Step(dt, f"dt = {dt:g}, since half of it changes {_said(change, nats)}")
        if left == 0:
            break
        halvings = min(left, math.ceil(math.log2(excess)) if math.isfinite(excess) else 1)
        dt, left = dt * 0.5**halvings, left - halvings
    said = f"the last halving changed {_said(change, nats)}" if math.isfinite(change) else "it could not be checked"
    return Step(dt, f"dt = {dt:g}; {said}: compare with a smaller --dt")


def first_step(times: np.ndarray, begin: float, end: float) -> float:
    """Return a step that gives the grid at least some nodes, and that divides the gap of regular data."""
    gaps = np.diff(times)
    wanted = (end - begin) / _FEWEST
    if len(gaps) and np.ptp(gaps) <= 1e-6 * gaps.mean():
        return float(gaps.mean()) / max(1, math.ceil(gaps.mean() / wanted - 1e-9))
    wanted = min(wanted, float(np.median(gaps))) if len(gaps) else wanted
    wanted = max(wanted, (end - begin) / _MOST)
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(m * power for m in (5.0, 2.0, 1.0) if m * power <= wanted * (1 + 1e-9))


def _change(coarse: Any, fine: Any) -> tuple[float, float]:
    """Return the largest change of a mean at an observation, in standard deviations, and that of the bound."""
    if not (coarse.converged and fine.converged):
        return math.inf, math.inf
    a, b = (post.mean[post.node] for post in (coarse, fine))
    spread = np.sqrt(np.diagonal(fine.cov[fine.node], axis1=1, axis2=2))
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.where(spread > 0.0, np.abs(a - b) / spread, 0.0)
    return float(apart.max()), abs(coarse.elbo - fine.elbo)


def _said(change: float, nats: float) -> str:
    return f"the means by at most {change:.2g} standard deviations and the bound by {nats:.2g} nats"
