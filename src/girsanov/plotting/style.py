"""Colours that are told apart by everybody (Okabe and Ito), and the marks that figures share."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np

BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9"
COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY)
DATA, MUTED, FAINT = "0.1", "0.45", "0.85"
_FULL = 100  # number of points up to which they are drawn in full size
_MANY = 1000  # number of points above which they are drawn as an image, also in PDF and SVG
_NODES = 3000  # of a path that are drawn; no figure has more pixels


def new_axes(panels: int, height: float = 1.6, *, share: bool = True) -> np.ndarray:
    """Return the axes of a new figure, in one column, or in several where there are many."""
    columns = 1 if panels <= 6 else 2 if panels <= 16 else 3
    rows = -(-panels // columns)
    size = (7.0 if columns == 1 else 3.6 * columns, 1.1 + height * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, sharex=share, squeeze=False, layout="constrained")
    axes = axes.ravel()
    for ax in axes[panels:]:
        figure.delaxes(ax)
    for ax in bottom(axes[:panels]):
        ax.tick_params(labelbottom=True)
    return axes[:panels]


def bottom(axes: np.ndarray) -> np.ndarray:
    """Return the lowest axes of every column, which have the labels of what all axes share."""
    place = axes[-1].get_subplotspec()
    return axes[-1:] if place is None else axes[-place.get_gridspec().ncols :]


def bare(*axes: Any) -> None:
    """Remove the upper and the right frame."""
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)


def legend(ax: Any, **options: Any) -> None:
    """Put the legend above the axes, where it hides nothing; inside, where a title is there."""
    handles, labels = ax.get_legend_handles_labels()
    if not handles:
        return
    place = {"loc": "best"} if ax.get_title() else {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0)}
    given = {"frameon": False, "fontsize": 8, "ncols": 5, "borderaxespad": 0.1, "handlelength": 1.6, **place, **options}
    ax.legend(handles, labels, **given)


def nodes_to_draw(times: np.ndarray, most: int = _NODES) -> np.ndarray:
    """Return indices of the nodes that are drawn: all, or some at equal distances with both ends."""
    if len(times) <= most:
        return np.arange(len(times))
    return np.unique(np.round(np.linspace(0, len(times) - 1, most)).astype(int))


def band(ax: Any, t: Any, mean: Any, ends: tuple[Any, Any], label: str, colour: str = BLUE) -> None:
    """Draw a line and the area around it."""
    ax.fill_between(t, *ends, color=colour, alpha=0.22, lw=0)
    ax.plot(t, mean, color=colour, lw=1.2, label=label)


def size_of(n: int) -> float:
    """Return the size of n points: smaller where there are many."""
    return float(np.clip(4.5 * np.sqrt(_FULL / max(n, 1)), 1.2, 4.5))


def points(
    ax: Any, x: np.ndarray, y: np.ndarray, *, errors: Any = None, limits: tuple[float, float] = (-np.inf, np.inf)
) -> None:
    """Draw the observations of one output, with their known errors; those at a detection limit are triangles."""
    n = int(np.isfinite(y).sum())
    style = {"color": DATA, "ms": size_of(n), "rasterized": n > _MANY, "zorder": 2.5}
    low, high = limits
    inside = y if not ((y <= low) | (y >= high)).any() else np.where((y <= low) | (y >= high), np.nan, y)
    if errors is None:
        ax.plot(x, inside, ".", label="observations", **style)
    else:
        thin = {"elinewidth": 0.8 if n <= _FULL else 0.4, "ecolor": MUTED}
        ax.errorbar(x, inside, 2.0 * errors, fmt=".", label="observations, ±2 errors", **thin, **style)
    for at, mark, there in ((low, "v", y <= low), (high, "^", y >= high)):
        if np.isfinite(at):
            ax.axhline(at, color=MUTED, lw=0.8, ls="--", label="detection limit")
        if there.any():
            open_style = {"mfc": "none", "ms": max(style["ms"], 3.0) + 1.0, "color": DATA, "mew": 0.8}
            ax.plot(x[there], y[there], mark, label="at the limit", **open_style)


def held_out(ax: Any, x: np.ndarray, y: np.ndarray) -> None:
    """Draw held-out observations."""
    n = int(np.isfinite(y).sum())
    ax.plot(x, y, "x", color=VERMILLION, ms=max(size_of(n), 2.0) + 0.5, mew=1.0, rasterized=n > _MANY, label="held out")
