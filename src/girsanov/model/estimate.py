"""The common interface of all estimates of a path: marginals, predictions and their scores."""

import abc
from typing import Any, NamedTuple

import numpy as np

from girsanov._core.checks import as_floats, shown
from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov.data.grid import locate
from girsanov.data.rows import Rows, rows_of
from girsanov.data.series import TimeSeries
from girsanov.model.model import Model


class Marginals(NamedTuple):
    """Means and covariances of the state, or of an observation, at n times.

    Attributes:
        mean: shape (n, d) for a state of dimension d, or (n, D) for an observation with D values.
        cov: shape (n, d, d) or (n, D, D).
    """

    mean: np.ndarray
    cov: np.ndarray

    @property
    def std(self) -> np.ndarray:
        """Standard deviations, shape (n, d) or (n, D)."""
        return np.sqrt(np.diagonal(self.cov, axis1=-2, axis2=-1))


class PathEstimate(abc.ABC):
    """An estimate of the path of a model, with a mean and a covariance at every node of a time grid.

    Attributes:
        model: the model.
        times: times of the nodes, shape (N,).
        mean: mean of the state at every node, shape (N, d).
        cov: covariance of the state at every node, shape (N, d, d).
    """

    model: Model
    times: np.ndarray
    mean: Any
    cov: Any

    @abc.abstractmethod
    def marginals(self, times: Any) -> Marginals:
        """Return mean and covariance of the state at any times inside the horizon.

        Args:
            times: times or dates from the first to the last node, shape (n,) or a scalar.

        Returns:
            Means of shape (n, d) and covariances of shape (n, d, d).
        """

    def _latent_marginals(self, times: Any) -> Marginals:
        """Return mean and covariance of w, whose noise is constant: of the state itself if its noise is."""
        return self.marginals(times)

    def band(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and the upper end of a band for the state at every node.

        Returns:
            The mean minus and plus two standard deviations, shape (N, d) each; if the noise depends on the state, the
            quantiles with the same probabilities.
        """
        return self.mean - 2.0 * self.std, self.mean + 2.0 * self.std

    @property
    def std(self) -> np.ndarray:
        """Standard deviations of the state at every node, shape (N, d)."""
        return np.sqrt(np.diagonal(self.cov, axis1=1, axis2=2))

    def predict(self, times: Any) -> Marginals:
        """Predict an observation at each of the given times, including the observation noise.

        Args:
            times: times or dates inside the horizon, shape (n,) or a scalar.

        Returns:
            Means of shape (n, D) and covariances of shape (n, D, D).
        """
        state = self._latent_marginals(times)
        return Marginals(*predicted(self.model, self._numbers(times), state.mean, state.cov))

    def nlpd(self, test: TimeSeries) -> float:
        """Return the negative log predictive density of held-out observations, averaged over times.

        Args:
            test: the held-out observations. Times at which every value is missing do not count.

        Returns:
            The mean of −log p(y_i | data), in nats.
        """
        seen = test.observed.any(1) if isinstance(test, TimeSeries) else True
        return float(np.mean(self.nlpd_values(test)[seen]))

    def nlpd_values(self, test: TimeSeries) -> np.ndarray:
        """Return the negative log predictive density of every held-out observation.

        Args:
            test: the held-out observations.

        Returns:
            −log p(y_i | data) in nats, shape (n,).
        """
        self._check_test(test)
        state = self._latent_marginals(test.times)
        return -_log_predictive(self.model, rows_of(test), state.mean, state.cov)

    def rmse(self, test: TimeSeries) -> float:
        """Return the root mean square error of the predicted mean.

        Args:
            test: the held-out observations. Missing values do not count.

        Returns:
            The root mean square error over all observed values.
        """
        self._check_test(test, scored=False)
        error = test.values - self.predict(test.times).mean
        return float(np.sqrt(np.mean(error[test.observed] ** 2)))

    def _check_test(self, test: TimeSeries, scored: bool = True) -> None:
        """Raise a ValueError unless the test data fit the model; with `scored`, also its likelihood."""
        if not isinstance(test, TimeSeries):
            raise ValueError(f"the test data must be a gv.TimeSeries, got {type(test).__name__}")
        if test.dim != self.model.data_dim:
            raise ValueError(
                f"the test series has {test.dim} values at each time, but the model observes {self.model.data_dim}"
            )
        series = getattr(self, "series", test)
        if (test.unit, test.origin) != (series.unit, series.origin):
            raise ValueError(
                f"the test series counts time in {test.unit} since {test.origin}, but the data in {series.unit} since "
                f"{series.origin}; make the test series with unit={series.unit!r} and origin=series.origin"
            )
        if scored:
            self.model.likelihood.check(test.values, test.observed)
            self.model.likelihood.check_errors(test.errors, test.observed)

    def _numbers(self, times: Any) -> np.ndarray:
        """Return the times as an array of numbers; dates are converted with the unit and origin of the data."""
        series = getattr(self, "series", None)
        return np.atleast_1d(as_floats("times", times) if series is None else series.numbers(times))

    def _inside(self, times: Any) -> np.ndarray:
        """Return the times as an array of numbers, or raise a ValueError if one lies outside the horizon."""
        t = self._numbers(times)
        if t.ndim != 1:
            raise ValueError(f"times must have shape (n,), got {t.shape}")
        first, last = float(self.times[0]), float(self.times[-1])
        bad = ~((t >= first) & (t <= last))
        bad[bad] = ~locate(self.times, t[bad])[1]  # a time that equals an end up to rounding lies inside
        if bad.any():
            i = int(np.argmax(bad))
            raise ValueError(
                f"times[{i}] = {shown(t[i])} lies outside the horizon [{shown(first)}, {shown(last)}]; "
                "infer with a longer span=, or use forecast for times after the end"
            )
        return np.clip(t, first, last)

    def __repr__(self) -> str:
        """Return the sizes N and d and all fields that are numbers or text; arrays are left out."""
        facts = {"N": len(self.times), "d": self.model.dim}
        facts |= {k: v for k, v in vars(self).items() if isinstance(v, int | float | str)}
        shown = (f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in facts.items())
        return f"{type(self).__name__}({', '.join(shown)})"

    def plot(self, **options: Any) -> Any:
        """Plot mean, a band of two standard deviations and the data, with one panel for each coordinate.

        Args:
            **options: `test`, a TimeSeries of held-out observations; `truth`, a pair (times, path) of a known path;
                `labels`, the labels of the vertical axes; `axes`, the matplotlib axes to draw on.

        Returns:
            The matplotlib figure.
        """
        from girsanov.plotting import plot_estimate

        return plot_estimate(self, **options)


@compiled
def _predictive(model: Model, t, mean, cov):
    return model.latent.observation.predictive(t, mean, cov)


@float64
def predicted(model: Model, t: np.ndarray, mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of observations at times t, from those of w at these times."""
    mean, cov = _predictive(model, t, mean, cov)
    return np.asarray(mean), np.asarray(cov)


@compiled
def _log_predictives(model: Model, rows: Rows, mean, cov):
    return model.latent.observation.log_predictives(rows, mean, cov)


@float64
def _log_predictive(model: Model, rows: Rows, mean, cov) -> np.ndarray:
    return np.asarray(_log_predictives(model, rows, mean, cov))
