"""`gv.filter`: predictive distributions one step ahead, and their log scores."""

import dataclasses
from typing import Any

import numpy as np

from girsanov._core.checks import shown
from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov.data.series import TimeSeries
from girsanov.inference.cvi_dp import CVIDP, check_method
from girsanov.inference.filtering import filter_forward
from girsanov.inference.functional import lay_out
from girsanov.inference.method import Method
from girsanov.model.estimate import Marginals, predicted
from girsanov.model.model import Model
from girsanov.model.state_law import of_state

_filter_forward = compiled(filter_forward)


@dataclasses.dataclass(frozen=True)
class Filtered:
    """Predictions of every observation from all earlier ones, the result of `gv.filter`.

    Attributes:
        model: the model of the series.
        series: the observations.
        mean: means of the state before each observation, (n, d).
        cov: covariances of the state before each observation, (n, d, d).
        predicted: means (n, D) and covariances (n, D, D) of each observation, with its noise, before it is seen.
        log_scores: log p(y_i | y_1, …, y_{i−1}) of each observation in nats, (n,); zero where all of it is missing.
    """

    model: Model
    series: TimeSeries
    mean: np.ndarray
    cov: np.ndarray
    predicted: Marginals
    log_scores: np.ndarray

    @property
    def times(self) -> np.ndarray:
        """The times of the observations, (n,)."""
        return self.series.times

    @property
    def std(self) -> np.ndarray:
        """Standard deviations of the state before each observation, (n, d)."""
        return Marginals(self.mean, self.cov).std

    @property
    def total(self) -> float:
        """The sum of the log scores in nats, which is the log evidence, exact for linear models with Gaussian noise."""
        return float(self.log_scores.sum())

    def plot(self, *, axes: Any = None) -> Any:
        """Plot the predictions with bands of two standard deviations, the observations, and the log scores below.

        Args:
            axes: matplotlib axes to draw in, one for each output and one for the scores; by default a new figure.

        Returns:
            The matplotlib figure.
        """
        from girsanov.plotting import plot_filtered

        return plot_filtered(self, axes=axes)

    def __repr__(self) -> str:
        return f"Filtered(n={len(self.times)}, d={self.model.dim}, total={self.total:.6g})"


@float64
def filter(
    model: Model,
    series: TimeSeries,
    dt: float | None = None,
    span: Any = None,
    *,
    grid: Any = None,
    method: Method | None = None,
) -> Filtered:
    """Predict every observation from all earlier ones, and score the predictions.

    This is assumed-density filtering: the law of the state is carried forward as a Gaussian, with the mean and the
    covariance that each step of the grid and each observation give it. It takes a single pass. For a linear model with
    Gaussian noise it is the Kalman filter, and exact; elsewhere it is an approximation, see docs/online.md.

    Args:
        model: the model.
        series: the observations.
        dt: step of the time grid, in the time unit of the series. The observation times are added to the grid.
        span: time of the initial state and end of the horizon; by default the first and last time of the series.
        grid: times of the nodes, (N,), instead of `dt` and `span`. They must contain the observation times.
        method: `gv.CVIDP(...)`, of which the quadrature and `time="continuous"` count: by default steps are those of
            Euler–Maruyama, as in `gv.infer`, and of the equation itself where the noise is singular.

    Returns:
        The predictions as a `Filtered`: `mean` and `cov` of the state, `predicted` observations, `log_scores`, `total`.

    Raises:
        ValueError: if an argument is not valid, or if the law of the state is no Gaussian any more, with the time.
    """
    method = check_method(method, model)
    if not isinstance(method, CVIDP):
        raise ValueError(f"filter takes method=gv.CVIDP(...), got {method!r}")
    if not isinstance(series, TimeSeries):
        raise ValueError(
            f"filter takes one gv.TimeSeries, got {type(series).__name__}; for a panel use "
            "{name: gv.filter(model, series, dt) for name, series in panel.items()}"
        )
    problem = lay_out(model, series, dt, span, grid, method).of(model)
    ours, node = problem.series_model, np.asarray(problem.data.node)
    mean, cov, scores = (np.asarray(a) for a in _filter_forward(problem, method.time))
    good = np.isfinite(mean).all(1) & np.isfinite(cov).all((1, 2)) & np.isfinite(scores)
    good[good] = np.linalg.eigvalsh(cov[good])[:, 0] > 0.0
    if not good[: int(problem.data.size)].all():
        t = problem.data.times[int(np.argmin(good))]
        raise ValueError(
            f"at time {shown(t)} the filter has no Gaussian law of the state any more: the steps are too long for the "
            "drift, or an observation is too far from its prediction. Take a smaller dt, or use gv.infer"
        )
    w = Marginals(mean[node], cov[node])
    state = of_state(ours, w, series.times)
    ahead = Marginals(*predicted(ours, series.times, w.mean, w.cov))
    return Filtered(ours, series, state.mean, state.cov, ahead, scores[node])
