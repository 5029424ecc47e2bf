"""Figures of posteriors and of fits."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np

_COLOUR = "#1f5fa8"


def plot_estimate(estimate: Any, *, test: Any = None, truth: Any = None, labels: Any = None, axes: Any = None) -> Any:
    """Plot the mean and a band of two standard deviations of every coordinate of the state, a panel for each.

    The data are shown in these panels where the state is observed directly. Where it is not, every output has a panel
    of its own below them, with the prediction of an observation and the data.

    Args:
        estimate: a posterior, or another estimate of a path.
        test: a TimeSeries of held-out observations.
        truth: times (n,) and states (n, d) of the true path, where it is known.
        labels: labels of the vertical axes, one for each coordinate; by default the names of the states.
        axes: matplotlib axes to draw in: one for each coordinate, and where the state is not observed directly one for
            each output, or none of those; by default a new figure is made.

    Returns:
        The matplotlib figure.
    """
    d, D, direct = estimate.model.dim, estimate.model.data_dim, estimate.model.observation.is_direct
    constant = estimate.model.latent is estimate.model
    series = getattr(estimate, "series", None)
    panels = d if direct or series is None else d + D
    if axes is None:
        size = (7.0, 1.4 + 1.5 * panels)
        _, axes = plt.subplots(panels, 1, figsize=size, sharex=True, squeeze=False, layout="constrained")
    axes = np.ravel(axes)
    on_axis = np.asarray if series is None else series.axis
    t, mean, (low, high) = on_axis(estimate.times), estimate.mean, estimate.band()
    for i, ax in enumerate(axes[:d]):
        _band(
            ax, t, mean[:, i], (low[:, i], high[:, i]), "posterior mean, ±2 sd" if constant else "posterior mean, 95 %"
        )
        if truth is not None:
            path = np.reshape(truth[1], (len(truth[0]), d))
            ax.plot(on_axis(truth[0]), path[:, i], color="0.4", lw=0.7, label="true path")
        if direct:
            _data(ax, on_axis, series, test, i)
        ax.set_ylabel(_label(labels or estimate.model.state_names, "x", i, d))
    if len(axes) > d:
        predicted = estimate.predict(estimate.times)
        for i, ax in enumerate(axes[d:]):
            y, sd = predicted.mean[:, i], predicted.std[:, i]
            _band(ax, t, y, (y - 2 * sd, y + 2 * sd), "predicted observation, ±2 sd")
            _data(ax, on_axis, series, test, i)
            ax.set_ylabel(_label(estimate.model.output_names, "y", i, D))
        axes[d].legend(loc="upper right", frameon=False, fontsize=8, ncols=4)
        axes[d].margins(y=0.2)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("time $t$" if series is None or series.origin is None else "date")
    axes[0].legend(loc="upper right", frameon=False, fontsize=8, ncols=4)
    axes[0].margins(y=0.2)
    return axes[0].figure


def plot_where(estimate: Any, where: Any, *, axes: Any = None) -> Any:
    """Plot an estimate with its data, and below it the share of its paths that the weights of each stretch leave.

    Args:
        estimate: a posterior, or another estimate of a path.
        where: what a diagnosis has as `where`: edges of the stretches, effective numbers, and the number of paths.
        axes: matplotlib axes to draw in: those of `plot_estimate`, and one more; by default a new figure is made.

    Returns:
        The matplotlib figure.
    """
    series = estimate.series
    above = estimate.model.dim + (0 if estimate.model.observation.is_direct else estimate.model.data_dim)
    if axes is None:
        size = (7.0, 2.6 + 1.5 * above)
        _, axes = plt.subplots(above + 1, 1, figsize=size, sharex=True, squeeze=False, layout="constrained")
    axes = np.ravel(axes)
    plot_estimate(estimate, axes=axes[:above])
    edges = series.axis(where.edges)
    if where.window is not None:
        for ax in axes:
            ax.axvspan(*series.axis(np.array(where.window)), color="#c03a2b", alpha=0.12, lw=0)
    axes[above].stairs(where.ess / where.n, edges, color=_COLOUR, lw=1.2)
    axes[above].set_ylim(0.0, 1.05)
    axes[above].set_ylabel("effective share")
    axes[above].set_xlabel(axes[above - 1].get_xlabel())
    axes[above - 1].set_xlabel("")
    axes[above].spines[["top", "right"]].set_visible(False)
    return axes[0].figure


def _label(names: Any, letter: str, i: int, count: int) -> str:
    return names[i] if names is not None else f"${letter}_{{{i + 1}}}$" if count > 1 else f"${letter}$"


def _band(ax: Any, t: np.ndarray, mean: np.ndarray, ends: tuple[np.ndarray, np.ndarray], label: str) -> None:
    ax.fill_between(t, *ends, color=_COLOUR, alpha=0.2, lw=0)
    ax.plot(t, mean, color=_COLOUR, lw=1.2, label=label)


def _data(ax: Any, on_axis: Any, series: Any, test: Any, i: int) -> None:
    """Plot one output of the data, with its errors where they are known, and of the held-out data."""
    if series is not None and series.errors is None:
        ax.plot(on_axis(series.times), series.values[:, i], "k.", ms=4, label="observations")
    elif series is not None:
        errors = 2 * series.errors[:, i]
        ax.errorbar(
            on_axis(series.times), series.values[:, i], errors, fmt="k.", ms=4, lw=0.7, label="observations, ±2 errors"
        )
    if test is not None:
        ax.plot(on_axis(test.times), test.values[:, i], "x", color="#c03a2b", ms=5, label="held out")


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
    ax.plot(profile.values, fall, "o-", ms=3, lw=1.2, color=_COLOUR, label="profile")
    if np.isfinite(profile.standard_error):
        x = np.linspace(profile.values[0], profile.values[-1], 200)
        parabola = -0.5 * ((x - profile.estimate) / profile.standard_error) ** 2
        inside = parabola > 1.2 * min(fall.min(), -profile.drop)
        ax.plot(x[inside], parabola[inside], "--", lw=1, color="0.5", label="by the standard error")
    ax.axhline(-profile.drop, lw=0.8, color="0.3")
    for end in profile.interval:
        if profile.values[0] <= end <= profile.values[-1]:
            ax.axvline(end, lw=0.8, ls=":", color="0.3")
    ax.set_xlabel(profile.name)
    ax.set_ylabel("bound below its maximum (nats)")
    ax.set_title(f"{100.0 * profile.level:g} % interval", fontsize=9)
    ax.legend(frameon=False, fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def plot_panel(posts: Any, output: int, test: Any, total: int) -> Any:
    """Plot one output of every series of a panel with its data, in small multiples with common axes.

    Args:
        posts: posteriors by name.
        output: number of the output.
        test: held-out series by name.
        total: number of series in the panel; the title says so where it is larger than that of `posts`.

    Returns:
        The matplotlib figure.
    """
    columns = min(4, len(posts))
    rows = -(-len(posts) // columns)
    size = (2.4 * columns + 0.6, 1.7 * rows + 0.8)
    figure, axes = plt.subplots(
        rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for ax, (name, post) in zip(axes.ravel(), posts.items(), strict=False):
        series, t = post.series, post.series.axis(post.times)
        if post.model.observation.is_direct:
            low, high = post.band()
            _band(ax, t, post.mean[:, output], (low[:, output], high[:, output]), "posterior mean, ±2 sd")
        else:
            predicted = post.predict(post.times)
            y, sd = predicted.mean[:, output], predicted.std[:, output]
            _band(ax, t, y, (y - 2 * sd, y + 2 * sd), "predicted observation, ±2 sd")
        _data(ax, series.axis, series, test.get(name), output)
        ax.set_title(name if post.converged else f"{name} ({post.status})", fontsize=9)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes.ravel()[len(posts) :]:
        ax.set_visible(False)
    dated = next(iter(posts.values())).series.origin is not None
    figure.supxlabel("date" if dated else "time $t$")
    if len(posts) < total:
        figure.suptitle(f"{len(posts)} of {total} series", fontsize=10)
    axes[0, 0].legend(loc="best", frameon=False, fontsize=7)
    return figure


def plot_fit(fit: Any) -> Any:
    """Plot every trainable parameter and the evidence bound of a fit against the outer iterations.

    Args:
        fit: a `Fit`.

    Returns:
        The matplotlib figure.
    """
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


def plot_filtered(filtered: Any, *, axes: Any = None) -> Any:
    """Plot predictions one step ahead with bands of two standard deviations, the data, and the log scores below.

    Args:
        filtered: what `gv.filter` returned.
        axes: matplotlib axes to draw in, one for each output and one for the scores; by default a new figure is made.

    Returns:
        The matplotlib figure.
    """
    series, D = filtered.series, filtered.model.data_dim
    if axes is None:
        size = (7.0, 2.6 + 1.5 * D)
        _, axes = plt.subplots(D + 1, 1, figsize=size, sharex=True, squeeze=False, layout="constrained")
    axes, t = np.ravel(axes), series.axis(series.times)
    for i, ax in enumerate(axes[:D]):
        y, sd = filtered.predicted.mean[:, i], filtered.predicted.std[:, i]
        _band(ax, t, y, (y - 2 * sd, y + 2 * sd), "prediction, ±2 sd")
        _data(ax, series.axis, series, None, i)
        ax.set_ylabel(_label(filtered.model.output_names, "y", i, D))
    axes[0].legend(loc="upper right", frameon=False, fontsize=8, ncols=4)
    axes[0].margins(y=0.2)
    axes[D].plot(t, filtered.log_scores, ".-", color=_COLOUR, ms=4, lw=0.7)
    axes[D].set_ylabel("log score")
    axes[D].set_xlabel("time $t$" if series.origin is None else "date")
    for ax in axes[: D + 1]:
        ax.spines[["top", "right"]].set_visible(False)
    return axes[0].figure
