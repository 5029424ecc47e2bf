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
from girsanov.model.fields import drift_at
from girsanov.model.model import Model
from girsanov.model.predictive_law import predictive_quantiles


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

    def predict_quantiles(self, times: Any, q: Any) -> np.ndarray:
        """Return quantiles of an observation at each of the given times, including the observation noise.

        They are those of the predictive law of y, which is skewed for counts and positive values, under a Gaussian law
        of the latent state; of an estimate from draws, under the mixture of its draws. Known errors of the observations
        are not part of them.

        Args:
            times: times or dates inside the horizon, (n,) or a scalar.
            q: probabilities between 0 and 1, (k,) or a scalar.

        Returns:
            The quantiles, (k, n, D); for discrete values the least value whose probability reaches q.

        Raises:
            ValueError: if a time lies outside the horizon, or a probability is not between 0 and 1.
        """
        p = np.atleast_1d(as_floats("q", q))
        if p.ndim != 1 or not ((p > 0.0) & (p < 1.0)).all():
            raise ValueError(f"q must be probabilities between 0 and 1, a number or shape (k,), got {q!r}")
        return predictive_quantiles(self.model, self._numbers(times), *self._latent_laws(times), p)

    def _latent_laws(self, times: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return means (n, d) and covariances (n, d, d) of w; of drawn paths means (K, n, d), one law for each draw."""
        return self._latent_marginals(times)

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
        """Plot the state and the data: a panel for each coordinate, and for each output that is on a scale of its own.

        Where the state itself is observed, its panels show the data. Elsewhere every output has a panel below them with
        the data, the predicted mean of an observation and a band of 95 % of its predictive law, as `predict_quantiles`
        gives it. Known errors of the data are bars of two standard deviations; triangles are values at a limit.

        Args:
            **options: `test`, a TimeSeries of held-out observations; `truth`, a pair (times, path) of a known path;
                `labels`, the labels of the coordinates; `axes`, the matplotlib axes to draw on.

        Returns:
            The matplotlib figure.
        """
        from girsanov.plotting import plot_estimate

        return plot_estimate(self, **options)

    def plot_phase(self, x: Any = 0, y: Any = 1, *, time: Any = None, ax: Any = None) -> Any:
        """Plot two coordinates against each other: the path, its uncertainty, and the drift field with its nullclines.

        The ellipses are 95 % of the posterior at some nodes. Other coordinates of the state are held at the mean of the
        path over time in the field, and a drift that depends on time is that of `time`.

        Args:
            x: number or name of the horizontal coordinate; default 0.
            y: number or name of the vertical coordinate; default 1.
            time: the time of the field, a number or date; default the middle of the horizon.
            ax: matplotlib axes to draw on; by default a new figure is made.

        Returns:
            The matplotlib axes.

        Raises:
            ValueError: if the state has no such coordinates.
        """
        from girsanov.plotting import plot_phase

        i, j = self._coordinate("x", x), self._coordinate("y", y)
        if i == j:
            raise ValueError(f"a phase plane needs two coordinates, got {x!r} twice; plot_drift() shows a single one")
        return plot_phase(self, (i, j), lambda at: drift_at(self.model, at, self._moment(time)), ax=ax)

    def plot_drift(self, coordinate: Any = 0, *, time: Any = None, ax: Any = None, band: Any = None) -> Any:
        """Plot one component of the drift against its own coordinate, above where the path was.

        The area at the bottom is the share of time that the posterior path spends at each value. Other coordinates are
        held at the mean of the path over time, and a drift that depends on time is that of `time`.

        Args:
            coordinate: number or name of the coordinate; default 0.
            time: the time of the drift, a number or date; default the middle of the horizon.
            ax: matplotlib axes to draw on; by default a new figure is made.
            band: a function that returns standard deviations of the drift, (k, d), at states (k, d); by default none.

        Returns:
            The matplotlib axes.

        Raises:
            ValueError: if the state has no such coordinate.
        """
        from girsanov.plotting import plot_drift

        t, i = self._moment(time), self._coordinate("coordinate", coordinate)
        return plot_drift(self, i, lambda at: drift_at(self.model, at, t), spread=band, ax=ax)

    def _coordinate(self, argument: str, wanted: Any) -> int:
        """Return the number of a coordinate of the state that is given by its number or its name."""
        names, d = self.model.state_names or (), self.model.dim
        if isinstance(wanted, str) and wanted in names:
            return names.index(wanted)
        if isinstance(wanted, int | np.integer) and 0 <= wanted < d:
            return int(wanted)
        known = f"{', '.join(names)} or " if names else ""
        raise ValueError(f"{argument} must be {known}a number from 0 to {d - 1}, got {wanted!r}")

    def _moment(self, time: Any) -> float:
        return float(0.5 * (self.times[0] + self.times[-1]) if time is None else self._numbers(time)[0])


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
