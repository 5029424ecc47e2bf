"""The drift: as a field in the plane of two coordinates, and as a curve over one."""

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Ellipse

from girsanov.plotting.labels import shows_data_with_state, state_label
from girsanov.plotting.style import (
    BLUE,
    DATA,
    GREEN,
    MUTED,
    ORANGE,
    SKY,
    VERMILLION,
    bare,
    legend,
    nodes_to_draw,
    size_of,
)

_GRID = 40  # points of the field in each direction
_ELLIPSES = 24
_CHI2 = 5.991464547107979  # 95 % quantile of χ² with two degrees of freedom
_CURVE = 300  # points of a curve
_STRIP = 0.22  # share of the height of the axes that the visited states take


def range_of(estimate: Any, i: int, margin: float) -> tuple[float, float]:
    """Return the ends of the band of a coordinate, with a margin as a share of the width."""
    low, high = estimate.band()
    a, b = float(np.nanmin(low[:, i])), float(np.nanmax(high[:, i]))
    extra = margin * ((b - a) or 1.0)
    return a - extra, b + extra


def typical_state(estimate: Any) -> np.ndarray:
    """Return the mean of the path over time, (d,)."""
    if len(estimate.times) == 1:
        return estimate.mean[0]
    return np.trapezoid(estimate.mean, estimate.times, axis=0) / (estimate.times[-1] - estimate.times[0])


def plot_phase(estimate: Any, pair: tuple[int, int], drift: Callable, *, ax: Any = None) -> Any:
    """Plot two coordinates against each other, over the drift field and the lines where one of its components is zero.

    Args:
        estimate: a posterior, or another estimate of a path.
        pair: numbers of the coordinates.
        drift: a function that returns the drift at states (k, d), of the same shape.
        ax: matplotlib axes to draw on; by default a new figure is made.

    Returns:
        The matplotlib axes.
    """
    if ax is None:
        _, ax = plt.subplots(figsize=(5.2, 4.6), layout="constrained")
    i, j = pair
    x, y = (np.linspace(*range_of(estimate, k, 0.12), _GRID) for k in pair)
    at = np.tile(typical_state(estimate), (_GRID * _GRID, 1))
    at[:, i], at[:, j] = (a.ravel() for a in np.meshgrid(x, y))
    u, v = (drift(at)[:, k].reshape(_GRID, _GRID) for k in pair)
    ax.streamplot(x, y, u, v, color="0.75", linewidth=0.6, arrowsize=0.7, density=1.1, zorder=0.5)
    for component, k, colour in ((u, i, GREEN), (v, j, ORANGE)):
        if component.min() < 0.0 < component.max():
            ax.contour(x, y, component, levels=[0.0], colors=colour, linewidths=1.1, linestyles="--", zorder=1.0)
            ax.plot([], [], "--", color=colour, lw=1.1, label=f"{state_label(estimate.model, k)}: drift is zero")
    for m in np.unique(np.linspace(0, len(estimate.times) - 1, _ELLIPSES).round().astype(int)):
        ax.add_patch(_ellipse(estimate.mean[m, [i, j]], estimate.cov[m][np.ix_(pair, pair)]))
    kept = nodes_to_draw(estimate.times)
    ax.plot(estimate.mean[kept, i], estimate.mean[kept, j], color=BLUE, lw=1.3, label="posterior mean, 95 %")
    series = getattr(estimate, "series", None)
    if series is not None and shows_data_with_state(estimate.model):
        n, style = len(series), {"color": DATA, "label": "observations"}
        ax.plot(series.values[:, i], series.values[:, j], ".", ms=size_of(n), rasterized=n > 1000, **style)
    ax.plot(*estimate.mean[0, [i, j]], "o", color=BLUE, ms=5, mfc="white", label="begin")
    ax.plot(*estimate.mean[-1, [i, j]], "s", color=BLUE, ms=5, label="end")
    ax.set_xlim(x[0], x[-1])
    ax.set_ylim(y[0], y[-1])
    ax.set_xlabel(state_label(estimate.model, i))
    ax.set_ylabel(state_label(estimate.model, j))
    legend(ax, ncols=3)
    bare(ax)
    return ax


def _ellipse(centre: np.ndarray, cov: np.ndarray) -> Ellipse:
    """Return the ellipse that holds 95 % of a normal law in two coordinates."""
    size, axes = np.linalg.eigh(cov)
    width, height = 2.0 * np.sqrt(_CHI2 * np.maximum(size, 0.0))
    angle = float(np.degrees(np.arctan2(axes[1, 0], axes[0, 0])))
    return Ellipse((centre[0], centre[1]), width, height, angle=angle, color=SKY, alpha=0.25, lw=0, zorder=0.8)


def plot_drift(estimate: Any, i: int, drift: Callable, *, spread: Callable | None = None, ax: Any = None) -> Any:
    """Plot one component of the drift against its coordinate, and where the path spends its time.

    Args:
        estimate: a posterior, or another estimate of a path.
        i: number of the coordinate.
        drift: a function that returns the drift at states (k, d), of the same shape.
        spread: a function that returns the standard deviations of the drift at states, of the same shape; or None.
        ax: matplotlib axes to draw on; by default a new figure is made.

    Returns:
        The matplotlib axes.
    """
    if ax is None:
        _, ax = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
    x = np.linspace(*range_of(estimate, i, 0.08), _CURVE)
    at = np.tile(typical_state(estimate), (_CURVE, 1))
    at[:, i] = x
    f = drift(at)[:, i]
    if spread is not None:
        sd = spread(at)[:, i]
        ax.fill_between(x, f - 2.0 * sd, f + 2.0 * sd, color=VERMILLION, alpha=0.2, lw=0, label="±2 standard errors")
    ax.plot(x, f, color=VERMILLION, lw=1.5, label="drift")
    ax.axhline(0.0, color=MUTED, lw=0.7)
    ax.margins(y=0.08)
    low, high = ax.get_ylim()
    ax.set_ylim(low - _STRIP * (high - low), high)
    share = time_at(estimate, i, x)
    ax.fill_between(
        x, 0.0, 0.85 * _STRIP / (1.0 + _STRIP) * share / share.max(), transform=ax.get_xaxis_transform(), color=BLUE,
        alpha=0.35, lw=0, label="visited states",
    )  # fmt: skip
    ax.set_xlim(x[0], x[-1])
    name = state_label(estimate.model, i)
    ax.set_xlabel(name)
    ax.set_ylabel(f"drift of {name}")
    legend(ax)
    bare(ax)
    return ax


def time_at(estimate: Any, i: int, x: np.ndarray) -> np.ndarray:
    """Return the density of the values that a coordinate takes, averaged over time, of Gaussian marginals."""
    kept = nodes_to_draw(estimate.times, 1000)
    t, m, s = estimate.times[kept], estimate.mean[kept, i], np.sqrt(estimate.cov[kept, i, i])
    weight = np.gradient(t) if len(t) > 1 else np.ones(1)
    s = np.maximum(s, 0.5 * (x[1] - x[0]))  # a value that is known exactly has the width of a point of the curve
    each = np.exp(-0.5 * ((x[:, None] - m) / s) ** 2) / (s * np.sqrt(2.0 * np.pi))
    return each @ (weight / weight.sum())
