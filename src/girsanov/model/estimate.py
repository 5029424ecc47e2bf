"""What every estimate of a path offers, whatever method made it: marginals, predictions and their scores."""

import abc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from girsanov._core.checks import as_floats, shown
from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov.data.grid import locate
from girsanov.data.series import TimeSeries
from girsanov.model.model import Model


class Marginals(NamedTuple):
    """Mean (n, d) and covariance (n, d, d) at n times; of the state, or of an observation."""

    mean: np.ndarray
    cov: np.ndarray

    @property
    def std(self) -> np.ndarray:
        return np.sqrt(np.diagonal(self.cov, axis1=-2, axis2=-1))


class PathEstimate(abc.ABC):
    """An estimate of the path of `model` on the nodes `times`, with Gaussian marginals."""

    model: Model
    times: np.ndarray
    mean: Any  # of the state at every node, (N, d)
    cov: Any  # of the state at every node, (N, d, d)

    @abc.abstractmethod
    def marginals(self, times: Any) -> Marginals:
        """Mean and covariance of the state at any times inside the horizon."""

    @property
    def std(self) -> np.ndarray:
        """Standard deviations of the state at every node, (N, d)."""
        return np.sqrt(np.diagonal(self.cov, axis1=1, axis2=2))

    def predict(self, times: Any) -> Marginals:
        """Mean (n, D) and covariance (n, D, D) of an observation at each time, noise included."""
        state = self.marginals(times)
        return Marginals(*_predict(self.model, state.mean, state.cov))

    def nlpd(self, test: TimeSeries) -> float:
        """Negative log predictive density of held-out observations, the mean over times with a value, in nats."""
        seen = test.observed.any(1) if isinstance(test, TimeSeries) else True
        return float(np.mean(self.nlpd_values(test)[seen]))

    def nlpd_values(self, test: TimeSeries) -> np.ndarray:
        """−log p(y_i | data) of every held-out observation, (n,)."""
        self._check_test(test)
        state = self.marginals(test.times)
        y = np.where(test.observed, test.values, 0.0)
        return -_log_predictive(self.model, y, np.array(test.observed), state.mean, state.cov)

    def rmse(self, test: TimeSeries) -> float:
        """Root mean square error of the predicted mean, over all entries that are observed."""
        self._check_test(test)
        error = test.values - self.predict(test.times).mean
        return float(np.sqrt(np.mean(error[test.observed] ** 2)))

    def _check_test(self, test: TimeSeries) -> None:
        if not isinstance(test, TimeSeries):
            raise ValueError(f"the test data must be a gv.TimeSeries, got {type(test).__name__}")
        if test.dim != self.model.data_dim:
            raise ValueError(f"the test series has {test.dim} values a time, the model observes {self.model.data_dim}")
        series = getattr(self, "series", test)
        if (test.unit, test.origin) != (series.unit, series.origin):
            raise ValueError(
                f"the test series counts time in {test.unit} since {test.origin}, the data in {series.unit} since "
                f"{series.origin}; make it with unit={series.unit!r} and origin=series.origin"
            )

    def _numbers(self, times: Any) -> np.ndarray:
        """Times as an array of numbers; dates are counted as those of the data are."""
        series = getattr(self, "series", None)
        return np.atleast_1d(as_floats("times", times) if series is None else series.numbers(times))

    def _inside(self, times: Any) -> np.ndarray:
        """`times` as an array, each inside the horizon up to rounding."""
        t = self._numbers(times)
        if t.ndim != 1:
            raise ValueError(f"times must have shape (n,), got {t.shape}")
        first, last = float(self.times[0]), float(self.times[-1])
        bad = ~((t >= first) & (t <= last))
        bad[bad] = ~locate(self.times, t[bad])[1]  # a time that is an end but for rounding lies inside
        if bad.any():
            i = int(np.argmax(bad))
            raise ValueError(
                f"times[{i}] = {shown(t[i])} lies outside the horizon [{shown(first)}, {shown(last)}]; "
                "infer with a longer span=, or use forecast for times after its end"
            )
        return np.clip(t, first, last)

    def __repr__(self) -> str:
        """The size, and every fact that is a number or a word: no arrays."""
        facts = {"N": len(self.times), "d": self.model.dim}
        facts |= {k: v for k, v in vars(self).items() if isinstance(v, int | float | str)}
        shown = (f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in facts.items())
        return f"{type(self).__name__}({', '.join(shown)})"

    def plot(self, **options: Any) -> Any:
        """Mean, two-standard-deviation band and data, a panel a coordinate; returns the matplotlib figure."""
        from girsanov.plotting import plot_estimate

        return plot_estimate(self, **options)


@compiled
def _predictive(model: Model, mean, cov):
    H = jnp.asarray(model.emission)
    return jax.vmap(model.likelihood.predictive)(mean @ H.T, H @ cov @ H.T)


@float64
def _predict(model: Model, mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, cov = _predictive(model, mean, cov)
    return np.asarray(mean), np.asarray(cov)


@compiled
def _log_predictives(model: Model, y, observed, mean, cov):
    H = jnp.asarray(model.emission)
    return model.likelihood.log_predictives(y, observed, mean @ H.T, H @ cov @ H.T)


@float64
def _log_predictive(model: Model, y, observed, mean, cov) -> np.ndarray:
    return np.asarray(_log_predictives(model, y, observed, mean, cov))
