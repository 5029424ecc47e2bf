"""`Pictures`: forecasts and checks in the space of the data, which posteriors and their refinements share."""

from typing import Any

import jax
import numpy as np

from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov.model.model import Model
from girsanov.result.residuals import Residuals, residuals


class Pictures:
    """What an estimate with `forecast` offers besides."""

    def plot_forecast(
        self: Any, times: Any, *, key: Any, n: int = 2000, dt: float | None = None, test: Any = None, axes: Any = None
    ) -> Any:
        """Plot observations that are still to come: the data, what the posterior predicts of them, and a fan beyond.

        The fan has the middle 50, 80 and 95 % of simulated observations, with their noise, and their median.

        Args:
            times: increasing times or dates at or after the end of the horizon, (k,).
            key: a JAX random key.
            n: number of simulated paths; default 2000.
            dt: longest step of the simulation; by default the median step of the grid.
            test: a TimeSeries of observations that came later.
            axes: matplotlib axes to draw on, one for each output; by default a new figure is made.

        Returns:
            The matplotlib figure.
        """
        from girsanov.plotting import plot_forecast

        path_key, noise_key = jax.random.split(key) if isinstance(key, jax.Array) else (key, key)
        paths = self.forecast(times, key=path_key, n=n, dt=dt)
        t = self._numbers(times)
        return plot_forecast(self, t, observations(self.model, noise_key, t, paths), test=test, axes=axes)


class Checks:
    """Residuals of a posterior that `infer` made."""

    def residuals(self: Any, kind: str = "ahead", *, cuts: int = 200, progress: bool = True) -> Residuals:
        """Return residuals of the observations in predictive laws that have not seen them.

        With `kind="ahead"` each observation is predicted from the earlier ones alone, by an inference for each. Where
        the model is right these residuals are independent and standard normal: the statistically proper check. With
        "left out" it is predicted from all others, by taking its site out of q, which costs next to nothing; each such
        residual is standard normal, but neighbours depend on each other, and the picture is smoother than chance. The
        laws of the state are Gaussian, and the parameters of a fit have seen all observations. Several outputs at one
        time are treated one by one, and depend on each other as their noise does.

        Args:
            kind: "ahead" (the default) or "left out".
            cuts: the largest number of observations that are predicted ahead, at about equal distances; default 200.
            progress: whether to show the progress if it takes longer than two seconds; default True.

        Returns:
            The `Residuals`, with `values`, `pit`, `coverage()` and `plot()`.

        Raises:
            ValueError: if the kind is unknown, or the series has a single observation.
        """
        return residuals(self, kind, cuts, progress)

    def plot_checks(self, kind: str = "ahead", *, cuts: int = 200, progress: bool = True, axes: Any = None) -> Any:
        """Plot residuals, their probability integral transforms and the coverage of intervals; see `residuals`.

        Args:
            kind: "ahead" (the default): independent where the model is right; or "left out": they depend on each other.
            cuts: the largest number of observations that are predicted ahead; default 200.
            progress: whether to show the progress if it takes longer than two seconds; default True.
            axes: matplotlib axes to draw on, three for each output; by default a new figure is made.

        Returns:
            The matplotlib figure.
        """
        return self.residuals(kind, cuts=cuts, progress=progress).plot(axes=axes)


@compiled
def _observed(model: Model, keys, t, paths):
    return jax.vmap(model.observation.sample, in_axes=(0, None, 0))(keys, t, paths)


@float64
def observations(model: Model, key: Any, t: np.ndarray, paths: np.ndarray) -> np.ndarray:
    """Return one observation of every state of n paths, (n, k, d), in shape (n, k, D)."""
    n, k, _ = paths.shape
    keys = jax.random.split(key, n * k).reshape(n, k)
    return np.asarray(_observed(model, keys, t, paths))
