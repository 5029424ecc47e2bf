"""Paths over time: the state, its observations, and forecasts of them."""

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from girsanov.plotting.labels import (
    axis_of,
    counts,
    label_time,
    limits_of,
    output_label,
    shows_data_with_state,
    state_label,
)
from girsanov.plotting.style import (
    GREEN,
    MUTED,
    VERMILLION,
    band,
    bare,
    bottom,
    held_out,
    legend,
    new_axes,
    nodes_to_draw,
    points,
)

TAIL = 0.022750131948179195  # below a normal mean minus two standard deviations; the band holds 95.4 %
_PREDICTED = 600  # nodes at which a prediction is drawn whose quantiles have no closed form
_FAN = ((0.025, 0.975, 0.18), (0.1, 0.9, 0.22), (0.25, 0.75, 0.28))  # ends of the intervals, and how dark they are


def panels_of(estimate: Any) -> int:
    """Return the number of panels of `plot_estimate`."""
    d, D = estimate.model.dim, estimate.model.data_dim
    return d if getattr(estimate, "series", None) is None or shows_data_with_state(estimate.model) else d + D


def plot_estimate(estimate: Any, *, test: Any = None, truth: Any = None, labels: Any = None, axes: Any = None) -> Any:
    """Plot mean and band of every coordinate of the state, a panel for each, and the data.

    The data are shown in these panels where they lie about the states themselves. Where they do not, as for another
    emission or for counts, every output has a panel of its own below, with the prediction of an observation.

    Args:
        estimate: a posterior, or another estimate of a path.
        test: a TimeSeries of held-out observations.
        truth: times (n,) and states (n, d) of the true path, where it is known.
        labels: labels of the coordinates; by default the names of the states, with their units.
        axes: matplotlib axes to draw in: one for each coordinate, and for each output that has a panel, or none of
            those; by default a new figure is made.

    Returns:
        The matplotlib figure.
    """
    model, series = estimate.model, getattr(estimate, "series", None)
    d, on_axis = model.dim, axis_of(series)
    axes = new_axes(panels_of(estimate)) if axes is None else np.ravel(axes)
    kept = nodes_to_draw(estimate.times)
    t, mean, (low, high) = on_axis(estimate.times[kept]), estimate.mean[kept], estimate.band()
    name = "posterior mean, " + ("±2 sd" if model.latent is model else "95 %")
    together = shows_data_with_state(model)
    for i, ax in enumerate(axes[:d]):
        band(ax, t, mean[:, i], (low[kept, i], high[kept, i]), name)
        if truth is not None:
            path = np.reshape(truth[1], (len(truth[0]), d))
            ax.plot(on_axis(truth[0]), path[:, i], color=GREEN, lw=0.8, label="true path")
        if together:
            draw_data(ax, estimate, i, test)
        ax.set_ylabel(state_label(model, i) if labels is None else labels[i])
    if len(axes) > d:
        draw_predictions(dict(enumerate(axes[d:])), estimate)
        for i, ax in enumerate(axes[d:]):
            draw_data(ax, estimate, i, test)
            ax.set_ylabel(output_label(model, i))
        legend(axes[d])
    legend(axes[0])
    bare(*axes)
    for ax in bottom(axes):
        label_time(ax, series)
    return axes[0].figure


def draw_data(ax: Any, estimate: Any, i: int, test: Any) -> None:
    """Draw one output of the data and of held-out data."""
    series = getattr(estimate, "series", None)
    if series is not None:
        errors = None if series.errors is None else series.errors[:, i]
        limits = limits_of(estimate.model.likelihood, i)
        if counts(estimate.model.likelihood, i):
            ax.yaxis.set_major_locator(MaxNLocator(integer=True))
        points(ax, axis_of(series)(series.times), series.values[:, i], errors=errors, limits=limits)
    if test is not None:
        held_out(ax, axis_of(series)(test.times), test.values[:, i])


def draw_predictions(axes: dict[int, Any], estimate: Any) -> None:
    """Draw the predicted mean and a band of quantiles of some outputs, given with their axes."""
    fast = estimate.model.observation.is_linear and type(estimate.model.likelihood).__name__ in (
        "Gaussian",
        "LogNormal",
    )
    times = estimate.times[nodes_to_draw(estimate.times, *(() if fast else (_PREDICTED,)))]
    t = axis_of(getattr(estimate, "series", None))(times)
    mean = estimate.predict(times).mean
    low, high = estimate.predict_quantiles(times, [TAIL, 1.0 - TAIL])
    for i, ax in axes.items():
        band(ax, t, mean[:, i], (low[:, i], high[:, i]), "predicted observation, 95 %")


def plot_forecast(estimate: Any, times: np.ndarray, draws: np.ndarray, *, test: Any = None, axes: Any = None) -> Any:
    """Plot the data with the prediction of every output, and a fan of simulated later observations.

    Args:
        estimate: a posterior.
        times: the later times, (k,), as numbers.
        draws: simulated observations, (n, k, D).
        test: a TimeSeries of observations that came later.
        axes: matplotlib axes to draw on, one for each output; by default a new figure is made.

    Returns:
        The matplotlib figure.
    """
    axes = new_axes(estimate.model.data_dim, 2.4) if axes is None else np.ravel(axes)
    t = axis_of(estimate.series)(times)
    draw_predictions(dict(enumerate(axes)), estimate)
    for i, ax in enumerate(axes):
        for low, high, alpha in _FAN:
            ends = np.quantile(draws[:, :, i], [low, high], axis=0, method="inverted_cdf")
            name = f"forecast, {100 * (high - low):.0f} %"
            ax.fill_between(t, *ends, color=VERMILLION, alpha=alpha, lw=0, label=name)
        ax.plot(t, np.median(draws[:, :, i], axis=0), color=VERMILLION, lw=1.2, label="forecast median")
        ax.axvline(axis_of(estimate.series)(estimate.times[-1:])[0], color=MUTED, lw=0.8, ls=":")
        draw_data(ax, estimate, i, test)
        ax.set_ylabel(output_label(estimate.model, i))
    legend(axes[0], ncols=4)
    bare(*axes)
    label_time(axes[-1], estimate.series)
    return axes[0].figure
