"""Where along the time axis a posterior and the model part."""

from typing import Any

import numpy as np

from girsanov.plotting.labels import label_time
from girsanov.plotting.paths import panels_of, plot_estimate
from girsanov.plotting.style import BLUE, VERMILLION, bare, new_axes


def plot_where(estimate: Any, where: Any, *, axes: Any = None) -> Any:
    """Plot an estimate with its data, and below it the share of its paths that the weights of each stretch leave.

    Args:
        estimate: a posterior, or another estimate of a path.
        where: what a diagnosis has as `where`: edges of the stretches, effective numbers, and the number of paths.
        axes: matplotlib axes to draw in: those of `plot_estimate`, and one more; by default a new figure is made.

    Returns:
        The matplotlib figure.
    """
    series, above = estimate.series, panels_of(estimate)
    axes = new_axes(above + 1) if axes is None else np.ravel(axes)
    plot_estimate(estimate, axes=axes[:above])
    axes[above - 1].set_xlabel("")
    if where.window is not None:
        for ax in axes:
            ax.axvspan(*series.axis(np.array(where.window)), color=VERMILLION, alpha=0.12, lw=0)
    last = axes[above]
    last.stairs(where.ess / where.n, series.axis(where.edges), color=BLUE, lw=1.2)
    last.set_ylim(0.0, 1.05)
    last.set_ylabel("effective share")
    label_time(last, series)
    bare(last)
    return last.figure
