"""`Residuals`: how the observations lie in the predictive laws of a model that has not seen them.

The transform u = P(Y ≤ y) of an observation by its predictive law is uniform where the model is right, and
r = Φ⁻¹(u) standard normal; for Gaussian laws r is the standardised residual. Where a value has a probability of its
own, as counts have, u is drawn from the interval between P(Y < y) and P(Y ≤ y) (Dunn and Smyth 1996). Given the past,
the u of successive observations are also independent (Dawid 1984). Residuals of the smoothed path would be neither: the
path bends towards each observation, so that they are too small, and depend on each other.
"""

import dataclasses
from typing import Any

import numpy as np

from girsanov._core.checks import check_whole
from girsanov._core.progress import reporter
from girsanov.data.series import TimeSeries
from girsanov.model.model import Model
from girsanov.model.predictive_law import pit_interval
from girsanov.result.leave_out import Laws, laws_ahead, laws_left_out

_SEED = 0  # of the draws within the probability of a count
KINDS = ("ahead", "left out")


@dataclasses.dataclass(frozen=True, repr=False)
class Residuals:
    """Predictive residuals of some observations, as `Posterior.residuals` returns them.

    Attributes:
        kind: "ahead", from the earlier observations alone, or "left out", from all others.
        index: the rows of the series, (n,).
        times: their times, (n,).
        pit: u = P(Y ≤ y), drawn between its ends for values with a probability of their own, (n, D); NaN where missing.
        values: the residuals Φ⁻¹(u), (n, D); none is larger than 7.9 in size, the largest that u can tell.
        good: whether the predictive law of the row was found, (n,); the others are NaN.
        series: the observations.
        model: the model.
    """

    kind: str
    index: np.ndarray
    times: np.ndarray
    pit: np.ndarray
    values: np.ndarray
    good: np.ndarray
    series: TimeSeries
    model: Model

    def coverage(self, levels: Any = (0.5, 0.8, 0.95)) -> np.ndarray:
        """Return the share of observations in central predictive intervals.

        Args:
            levels: probabilities of the intervals, (k,).

        Returns:
            The shares of every output, (k, D); they are near the levels where the model is right.
        """
        off = np.abs(2.0 * self.pit - 1.0)
        inside = off[None] <= np.reshape(np.asarray(levels, np.float64), (-1, 1, 1))
        known = np.isfinite(off)
        return (inside & known).sum(1) / known.sum(0)

    def plot(self, *, axes: Any = None) -> Any:
        """Plot the residuals over time, a histogram of u, and the coverage of predictive intervals, a row an output.

        Grey areas hold 95 % of what a right model gives, bin by bin and level by level.

        Args:
            axes: matplotlib axes to draw on, three for each output; by default a new figure is made.

        Returns:
            The matplotlib figure.
        """
        from girsanov.plotting import plot_residuals

        return plot_residuals(self, axes=axes)

    def __repr__(self) -> str:
        share = ", ".join(f"{100.0 * c:.0f} %" for c in self.coverage([0.95])[0])
        return f"Residuals({self.kind}, n={len(self.index)}, in 95 % intervals {share})"


def residuals(post: Any, kind: str, cuts: int, progress: bool) -> Residuals:
    """Return the residuals of a posterior; see `Posterior.residuals`."""
    if kind not in KINDS:
        raise ValueError(f"kind must be 'ahead' or 'left out', got {kind!r}")
    check_whole(cuts=cuts)
    if kind == "left out":
        return _of_laws(post, kind, laws_left_out(post))
    seen = np.flatnonzero(post.series.observed.any(1))[1:]  # the first has no past
    if len(seen) == 0:
        raise ValueError("the series has a single observation, which has no past to be predicted from")
    index = seen[np.unique(np.round(np.linspace(0, len(seen) - 1, min(cuts, len(seen)))).astype(int))]
    with reporter(progress) as say:
        return _of_laws(post, kind, laws_ahead(post, index, say))


def _of_laws(post: Any, kind: str, laws: Laws) -> Residuals:
    from scipy.special import ndtri

    below, upto = pit_interval(post.model, post.series, laws.index, laws.mean, laws.cov)
    share = np.random.default_rng(_SEED).uniform(size=below.shape)
    u = np.where(laws.good[:, None], below + share * (upto - below), np.nan)
    inside = np.clip(u, 1e-15, 1.0 - 1e-15)  # what lies beyond eight standard deviations is not told apart
    return Residuals(
        kind,
        laws.index,
        np.asarray(post.series.times)[laws.index],
        u,
        ndtri(inside),
        laws.good,
        post.series,
        post.model,
    )
