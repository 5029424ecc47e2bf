"""Small multiples of the series of a panel."""

from typing import Any

import matplotlib.pyplot as plt

from girsanov.plotting.labels import output_label, plain, shows_data_with_state
from girsanov.plotting.paths import draw_data, draw_predictions
from girsanov.plotting.style import band, bare, legend, nodes_to_draw


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
        _draw(ax, post, output, test.get(name))
        ax.set_title(plain(name if post.converged else f"{name} ({post.status})"), fontsize=9)
    for ax in axes.ravel()[len(posts) :]:
        ax.set_visible(False)
    first = next(iter(posts.values()))
    figure.supxlabel("date" if first.series.origin is not None else "time $t$", fontsize=10)
    figure.supylabel(output_label(first.model, output), fontsize=10)
    if len(posts) < total:
        figure.suptitle(f"{len(posts)} of {total} series", fontsize=10)
    legend(axes[0, 0], fontsize=7, ncols=1)
    return figure


def _draw(ax: Any, post: Any, output: int, test: Any) -> None:
    if shows_data_with_state(post.model):
        kept = nodes_to_draw(post.times)
        low, high = (end[kept, output] for end in post.band())
        mean = post.mean[kept, output]
        band(ax, post.series.axis(post.times[kept]), mean, (low, high), "posterior mean, ±2 sd")
    else:
        draw_predictions({output: ax}, post)
    draw_data(ax, post, output, test)
    bare(ax)
