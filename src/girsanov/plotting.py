"""Figures of estimates: quiet, labelled, fit for a paper."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np

_COLOUR = "#1f5fa8"


def plot_estimate(estimate: Any, *, test: Any = None, truth: Any = None, labels: Any = None, axes: Any = None) -> Any:
    """Mean and two-standard-deviation band of every coordinate, with the data where the state is observed directly.

    - test: a TimeSeries of held-out observations; truth: (times, path) of a known path; labels: names of the axes.
    """
    d = estimate.model.dim
    if axes is None:
        _, axes = plt.subplots(d, 1, figsize=(7.0, 1.4 + 1.5 * d), sharex=True, squeeze=False, layout="constrained")
    axes = np.ravel(axes)
    series = getattr(estimate, "series", None)
    on_axis = np.asarray if series is None else series.axis
    t, mean, std = on_axis(estimate.times), estimate.mean, estimate.std
    direct = np.array_equal(estimate.model.emission, np.eye(d))
    for i, ax in enumerate(axes):
        ax.fill_between(t, mean[:, i] - 2 * std[:, i], mean[:, i] + 2 * std[:, i], color=_COLOUR, alpha=0.2, lw=0)
        ax.plot(t, mean[:, i], color=_COLOUR, lw=1.2, label="posterior mean, ±2 sd")
        if truth is not None:
            path = np.reshape(truth[1], (len(truth[0]), d))
            ax.plot(on_axis(truth[0]), path[:, i], color="0.4", lw=0.7, label="true path")
        if direct and series is not None:
            ax.plot(on_axis(series.times), series.values[:, i], "k.", ms=4, label="observations")
        if direct and test is not None:
            ax.plot(on_axis(test.times), test.values[:, i], "x", color="#c03a2b", ms=5, label="held out")
        ax.set_ylabel(labels[i] if labels is not None else f"$x_{{{i + 1}}}$" if d > 1 else "$x$")
        ax.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("time $t$" if series is None or series.origin is None else "date")
    axes[0].legend(loc="upper right", frameon=False, fontsize=8, ncols=4)
    axes[0].margins(y=0.2)
    return axes[0].figure


def plot_fit(fit: Any) -> Any:
    """Every trainable parameter and the evidence bound against the outer iterations."""
    paths = list(fit.history.parameters)
    figure, axes = plt.subplots(len(paths) + 1, 1, figsize=(6.0, 1.2 + 1.3 * (len(paths) + 1)), layout="constrained")
    steps = np.arange(len(fit.history))
    for ax, path in zip(axes, paths, strict=False):
        values = fit.history.parameters[path].reshape(len(steps), -1)
        ax.plot(steps, values, "o-", ms=3, lw=1)
        ax.set_ylabel(path)
    axes[-1].plot(steps, fit.history.elbo, "o-", ms=3, lw=1, color=_COLOUR)
    axes[-1].set_ylabel("evidence bound (nats)")
    axes[-1].set_xlabel("iteration")
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure
