"""Charts of the drift: a curve over one coordinate, or the field in the plane of the first two."""

from collections.abc import Callable
from typing import Any

import numpy as np

from girsanov.model.fields import drift_at
from girsanov.page.charts import axis, band, layout, state_label
from girsanov.page.parts import Chart
from girsanov.plotting.fields import range_of, time_at, typical_state
from girsanov.plotting.labels import shows_data_with_state
from girsanov.plotting.style import nodes_to_draw

_CURVE, _GRID, _ARROWS = 200, 60, 18


def drift_chart(post: Any, spread: Callable | None) -> Chart:
    """Return the chart of the drift of a posterior; `spread` gives standard deviations of it at states, or is None."""
    t = float(0.5 * (post.times[0] + post.times[-1]))
    return _curve(post, t, spread) if post.model.dim == 1 else _field(post, t)


def _curve(post: Any, t: float, spread: Callable | None) -> Chart:
    x = np.linspace(*range_of(post, 0, 0.08), _CURVE)
    f = drift_at(post.model, x[:, None], t)[:, 0]
    sd = np.zeros(_CURVE) if spread is None else spread(x[:, None])[:, 0]
    named = "drift" if spread is None else "drift, ±2 standard errors"
    traces = band(x, f, f - 2.0 * sd, f + 2.0 * sd, named, "--vermillion")
    share = time_at(post, 0, x)
    visited = {
        "type": "scatter", "mode": "lines", "x": x, "y": share / share.max(), "fill": "tozeroy", "yaxis": "y2",
        "fillcolor": "--blue/0.25", "line": {"width": 0}, "name": "visited states", "hoverinfo": "skip",
    }  # fmt: skip
    name = state_label(post.model, 0)
    top, low = (
        axis(f"drift of {name}", domain=[0.24, 1.0]),
        axis("", domain=[0.0, 0.2], showticklabels=False, showgrid=False),
    )
    described = layout(360, xaxis=axis(name, anchor="y2"), yaxis=top, yaxis2=low)
    return Chart([*traces, visited], described, "The drift, and below it where the path spends its time.")


def _field(post: Any, t: float) -> Chart:
    ranges = [range_of(post, k, 0.12) for k in (0, 1)]
    x, y = (np.linspace(*r, _GRID) for r in ranges)
    at = np.tile(typical_state(post), (_GRID * _GRID, 1))
    at[:, 0], at[:, 1] = (a.ravel() for a in np.meshgrid(x, y))
    f = drift_at(post.model, at, t)[:, :2].reshape(_GRID, _GRID, 2)
    traces: list[dict[str, Any]] = [_arrows(x, y, f)]
    for k, colour in ((0, "--green"), (1, "--orange")):
        if f[..., k].min() < 0.0 < f[..., k].max():
            only = {"start": 0, "end": 0, "size": 1, "coloring": "none"}
            line = {"color": colour, "dash": "dash", "width": 1.5}
            name = f"{state_label(post.model, k)}: drift is zero"
            traces.append({"type": "contour", "x": x, "y": y, "z": f[..., k], "contours": only, "line": line,
                           "name": name, "showscale": False, "showlegend": True, "hoverinfo": "skip"})  # fmt: skip
    kept = nodes_to_draw(post.times, 1500)
    when = [str(v) for v in post.series.axis(post.times[kept])] if post.series.origin is not None else post.times[kept]
    traces.append({"type": "scatter", "mode": "lines", "x": post.mean[kept, 0], "y": post.mean[kept, 1], "text": when,
                   "line": {"color": "--blue", "width": 2}, "name": "posterior mean",
                   "hovertemplate": "(%{x:.4g}, %{y:.4g}) at %{text}<extra></extra>"})  # fmt: skip
    if shows_data_with_state(post.model):
        values = post.series.values
        traces.append({"type": "scatter", "mode": "markers", "x": values[:, 0], "y": values[:, 1],
                       "name": "observations", "hoverinfo": "x+y",
                       "marker": {"color": "--ink", "size": 5}})  # fmt: skip
    names = [axis(state_label(post.model, k), range=list(ranges[k])) for k in (0, 1)]
    held = "" if post.model.dim == 2 else " The other coordinates are held at their mean over time."
    caption = f"The first two coordinates, over the direction of the drift.{held}"
    return Chart(traces, layout(520, xaxis=names[0], yaxis=names[1]), caption)


def _arrows(x: np.ndarray, y: np.ndarray, f: np.ndarray) -> dict[str, Any]:
    """Return short strokes along the drift, each from a dot, of equal length on the screen."""
    pick = np.linspace(0, _GRID - 1, _ARROWS).round().astype(int)
    a, b = (v.ravel() for v in np.meshgrid(x[pick], y[pick]))
    scale = np.array([x[-1] - x[0], y[-1] - y[0]])
    d = f[np.ix_(pick, pick)].reshape(-1, 2) / scale
    size = np.sqrt((d**2).sum(1, keepdims=True))
    d = 0.7 / _ARROWS * scale * d / np.where(size > 0.0, size, 1.0)
    gap = np.full(len(a), np.nan)
    lines = [np.stack([start, start + move, gap], 1).ravel() for start, move in ((a, d[:, 0]), (b, d[:, 1]))]
    sizes = np.tile([3.0, 0.0, 0.0], len(a))
    marker = {"color": "--soft/0.8", "size": sizes, "line": {"width": 0}}
    return {"type": "scatter", "mode": "lines+markers", "x": lines[0], "y": lines[1], "name": "drift", "marker": marker,
            "line": {"color": "--soft/0.6", "width": 1.2}, "hoverinfo": "skip"}  # fmt: skip
