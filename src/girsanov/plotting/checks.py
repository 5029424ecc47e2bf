"""Residuals over time, their probability integral transforms, and the coverage of predictive intervals."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from girsanov.plotting.labels import label_time, output_label
from girsanov.plotting.style import BLUE, FAINT, MUTED, VERMILLION, band, bare, legend, new_axes, points, size_of

_LEVELS = np.linspace(0.02, 0.98, 49)


def bins_for(n: int) -> int:
    """Return the number of bins of a histogram of n values of u."""
    return int(np.clip(n // 8, 4, 20))


def chance(n: int, p: Any) -> tuple[Any, Any]:
    """Return the ends of the interval that holds 95 % of a binomial share of n with probability p."""
    from scipy.stats import binom

    return tuple(binom.ppf(tail, n, p) / n for tail in (0.025, 0.975))  # pyright: ignore[reportReturnType]


def plot_residuals(residuals: Any, *, axes: Any = None) -> Any:
    """Plot residuals over time, a histogram of their transforms, and the coverage of intervals, a row for each output.

    Args:
        residuals: a `Residuals`.
        axes: matplotlib axes to draw on, three for each output; by default a new figure is made.

    Returns:
        The matplotlib figure.
    """
    outputs = residuals.values.shape[1]
    if axes is None:
        _, axes = plt.subplots(
            outputs,
            3,
            figsize=(9.6, 0.5 + 2.5 * outputs),
            squeeze=False,
            layout="constrained",
            width_ratios=(1.9, 1, 1),
        )
    axes = np.reshape(axes, (outputs, 3))
    coverage = residuals.coverage(_LEVELS)
    for i, (left, middle, right) in enumerate(axes):
        seen = np.isfinite(residuals.values[:, i])
        _over_time(left, residuals, i, seen)
        _histogram(middle, residuals.pit[seen, i])
        n = int(seen.sum())
        if n:
            right.fill_between(_LEVELS, *chance(n, _LEVELS), color=FAINT, lw=0)
        right.plot(_LEVELS, coverage[:, i], color=BLUE, lw=1.3)
        right.plot([0, 1], [0, 1], color=MUTED, lw=0.8)
        right.set(xlim=(0, 1), ylim=(0, 1), ylabel="share inside")
        bare(left, middle, right)
    label_time(axes[-1, 0], residuals.series)
    axes[-1, 1].set_xlabel(r"$u = P(Y \leq y)$")
    axes[-1, 2].set_xlabel("level of the interval")
    from_ = "the past" if residuals.kind == "ahead" else "all other observations"
    axes[0, 0].set_title(f"observations predicted from {from_}", fontsize=9, loc="left")
    return axes[0, 0].figure


def _over_time(ax: Any, residuals: Any, i: int, seen: np.ndarray) -> None:
    t = residuals.series.axis(residuals.times)
    ax.axhspan(-2.0, 2.0, color=FAINT, lw=0)
    ax.axhline(0.0, color=MUTED, lw=0.8)
    r = residuals.values[:, i]
    ax.plot(t, r, ".", color=BLUE, ms=size_of(int(seen.sum())) + 0.5, rasterized=len(t) > 1000)
    far = np.abs(np.nan_to_num(r)) > 3.0
    if far.any():
        ax.plot(t[far], r[far], "o", mfc="none", color=VERMILLION, ms=7)
    ax.set_ylabel(f"residual of {output_label(residuals.model, i)}")


def _histogram(ax: Any, u: np.ndarray) -> None:
    bins = bins_for(len(u))
    if len(u):
        low, high = chance(len(u), 1.0 / bins)
        ax.axhspan(low * bins, high * bins, color=FAINT, lw=0)
        ax.hist(u, bins=np.linspace(0.0, 1.0, bins + 1), density=True, color=BLUE, alpha=0.6, ec="white", lw=0.5)
    ax.axhline(1.0, color=MUTED, lw=0.8)
    ax.set(xlim=(0, 1), ylabel="density")


def plot_filtered(filtered: Any, *, axes: Any = None) -> Any:
    """Plot predictions one step ahead with bands of two standard deviations, the data, and the log scores below.

    Args:
        filtered: what `gv.filter` returned.
        axes: matplotlib axes to draw in, one for each output and one for the scores; by default a new figure is made.

    Returns:
        The matplotlib figure.
    """
    series, D = filtered.series, filtered.model.data_dim
    axes = new_axes(D + 1) if axes is None else np.ravel(axes)
    t = series.axis(series.times)
    for i, ax in enumerate(axes[:D]):
        y, sd = filtered.predicted.mean[:, i], filtered.predicted.std[:, i]
        band(ax, t, y, (y - 2.0 * sd, y + 2.0 * sd), "prediction, ±2 sd")
        points(ax, t, series.values[:, i], errors=None if series.errors is None else series.errors[:, i])
        ax.set_ylabel(output_label(filtered.model, i))
    legend(axes[0])
    axes[D].plot(t, filtered.log_scores, ".-", color=BLUE, ms=size_of(len(t)), lw=0.7)
    axes[D].set_ylabel("log score")
    label_time(axes[D], series)
    bare(*axes[: D + 1])
    return axes[0].figure
