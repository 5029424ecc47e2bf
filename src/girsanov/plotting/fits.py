"""What learning did: traces of the parameters with their intervals, and profiles of the bound."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

from girsanov.plotting.labels import parameter_label, plain
from girsanov.plotting.style import BLUE, COLOURS, MUTED, bare, bottom, legend, new_axes

_FEW = 6  # entries of a parameter up to which each has its colour, its interval and its name


def plot_fit(fit: Any) -> Any:
    """Plot every trainable parameter with its interval, and the evidence bound, against the outer iterations.

    Args:
        fit: a `Fit`.

    Returns:
        The matplotlib figure.
    """
    paths = list(fit.history.parameters)
    axes = new_axes(len(paths) + 1, 1.3)
    steps = np.arange(len(fit.history))
    for ax, path in zip(axes, paths, strict=False):
        _trace(ax, fit, path, steps)
        ax.set_ylabel(plain(parameter_label(fit.model, path)))
    axes[-1].plot(steps, fit.history.elbo, ".-", ms=4, lw=1, color=BLUE)
    axes[-1].set_ylabel("bound (nats)")
    for ax in axes:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    for ax in bottom(axes):
        ax.set_xlabel("iteration")
    legend(axes[0])
    bare(*axes)
    return axes[0].figure


def _trace(ax: Any, fit: Any, path: str, steps: np.ndarray) -> None:
    values = fit.history.parameters[path]
    entries = list(np.ndindex(values.shape[1:]))
    for number, index in enumerate(entries):
        entry, last = values[(slice(None), *index)], float(values[(-1, *index)])
        if len(entries) > _FEW:
            ax.plot(steps, entry, lw=0.7, color=BLUE, alpha=0.5)
            continue
        colour = COLOURS[number]
        name = str(list(index)) if index else None
        ax.plot(steps, entry, ".-", ms=4, lw=1, color=colour, label=name)
        errors = fit.standard_errors or {}
        sd = errors.get(path + (name or ""), errors.get(path) if len(set(index)) < 2 else None)
        if sd is not None and np.isfinite(sd):
            words = "±2 standard errors" if number == 0 else None
            ax.axhspan(last - 2.0 * sd, last + 2.0 * sd, color=colour, alpha=0.12, lw=0, label=words)


def plot_profile(profile: Any, *, ax: Any = None) -> Any:
    """Plot how far the bound falls along one parameter, its interval, and the parabola of the standard error.

    Args:
        profile: a `Profile`.
        ax: matplotlib axes to draw in; by default a new figure is made.

    Returns:
        The matplotlib axes.
    """
    if ax is None:
        _, ax = plt.subplots(figsize=(5.0, 3.2), layout="constrained")
    fall = profile.objective - profile.objective.max()
    ax.plot(profile.values, fall, ".-", ms=5, lw=1.2, color=BLUE, label="profile")
    if np.isfinite(profile.standard_error):
        x = np.linspace(profile.values[0], profile.values[-1], 200)
        parabola = -0.5 * ((x - profile.estimate) / profile.standard_error) ** 2
        inside = parabola > 1.2 * min(fall.min(), -profile.drop)
        ax.plot(x[inside], parabola[inside], "--", lw=1, color=MUTED, label="by the standard error")
    ax.axhline(-profile.drop, lw=0.8, color=MUTED)
    for end in profile.interval:
        if profile.values[0] <= end <= profile.values[-1]:
            ax.axvline(end, lw=0.8, ls=":", color=MUTED)
    ax.set_xlabel(plain(profile.name))
    ax.set_ylabel("bound below its maximum (nats)")
    ax.set_title(f"{100.0 * profile.level:g} % interval", fontsize=9)
    ax.legend(frameon=False, fontsize=8)
    bare(ax)
    return ax
