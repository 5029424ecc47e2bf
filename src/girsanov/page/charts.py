"""Charts of posteriors, fits, residuals and diagnoses, as plotly.js takes them.

A colour is the name of one in `page.css`, as "--blue", with its strength after a slash. Names from the user's files are
escaped, since plotly.js reads some HTML in texts.
"""

import html
from typing import Any

import numpy as np

from girsanov.page.parts import Chart
from girsanov.plotting.labels import counts, limits_of, shows_data_with_state
from girsanov.plotting.paths import TAIL
from girsanov.plotting.style import nodes_to_draw

_NODES, _PREDICTED = 1500, 400  # of a path that are drawn, and of predictions whose quantiles have no closed form
_LINE = {"gridcolor": "--line", "zerolinecolor": "--line", "linecolor": "--line", "automargin": True}
COLOURS = ("--blue", "--vermillion", "--green", "--orange", "--purple", "--sky")


def layout(height: int, **more: Any) -> dict[str, Any]:
    """Return the layout that all charts share."""
    return {
        "height": height,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "--ink", "size": 12, "family": "system-ui, sans-serif"},
        "margin": {"l": 56, "r": 12, "t": 36, "b": 44},
        "legend": {"orientation": "h", "x": 0.0, "y": 1.0, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"},
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": "--panel", "bordercolor": "--line", "font": {"color": "--ink"}},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "--soft", "activecolor": "--ink"},
        "xaxis": axis(),
        "yaxis": axis(),
        **more,
    }


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """Return an axis; the title may have tags that plotly.js knows."""
    return {**_LINE, "title": {"text": title}, **more}


def label(names: Any, letter: str, i: int, count: int, units: Any = None) -> str:
    """Return the name of a coordinate or an output as HTML, with its unit."""
    name = html.escape(names[i]) if names is not None else f"{letter}<sub>{i + 1}</sub>" if count > 1 else letter
    unit = None if units is None else units[i].unit
    return name if unit is None else f"{name} ({html.escape(unit)})"


def state_label(model: Any, i: int) -> str:
    """Return the name of a coordinate of the state, with its unit."""
    units = None if model.equations is None else model.equations.statement.states
    return label(model.state_names, "x", i, model.dim, units)


def output_label(model: Any, i: int) -> str:
    """Return the name of an output, with its unit."""
    units = None if model.equations is None else model.equations.statement.outputs or None
    return label(model.output_names, "y", i, model.data_dim, units)


def time_title(series: Any) -> str:
    """Return the title of a time axis."""
    return "date" if series.origin is not None else f"time ({html.escape(series.unit)})" if series.unit else "time"


def band(t: Any, mean: Any, low: Any, high: Any, name: str, colour: str = "--blue", **where: Any) -> list[dict]:
    """Return the traces of a line with the area around it."""
    edge = {"type": "scatter", "mode": "lines", "x": t, "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    return [
        {**edge, "y": low, **where},
        {**edge, "y": high, "fill": "tonexty", "fillcolor": f"{colour}/0.2", **where},
        {"type": "scatter", "mode": "lines", "x": t, "y": mean, "name": name, "line": {"color": colour, "width": 1.8},
         "hovertemplate": "%{x}: %{y:.4g}<extra></extra>", **where},
    ]  # fmt: skip


def observations(post: Any, i: int, **where: Any) -> list[dict]:
    """Return the traces of one output of the data, with its known errors and its detection limits."""
    series = post.series
    t, y = series.axis(series.times), series.values[:, i]
    size = float(np.clip(60.0 / np.sqrt(max(len(t), 1)), 2.5, 6.0))
    trace = {
        "type": "scatter", "mode": "markers", "x": t, "y": y, "name": "observations",
        "marker": {"color": "--ink", "size": size}, "hovertemplate": "%{x}: %{y:.6g}<extra>observed</extra>", **where,
    }  # fmt: skip
    if series.errors is not None:
        trace["error_y"] = {
            "type": "data",
            "array": 2.0 * series.errors[:, i],
            "color": "--soft",
            "thickness": 1,
            "width": 0,
        }
    out = [trace]
    for limit in limits_of(post.model.likelihood, i):
        if np.isfinite(limit):
            ends = series.axis(np.asarray(post.times)[[0, -1]])
            line = {"color": "--soft", "width": 1, "dash": "dash"}
            out.append({"type": "scatter", "mode": "lines", "x": ends, "y": [limit, limit], "line": line,
                        "name": "detection limit", "hoverinfo": "skip", **where})  # fmt: skip
    return out


def rows(count: int, gap: float = 0.06) -> list[list[float]]:
    """Return the domains of some vertical axes above each other, the first at the top."""
    height = (1.0 - gap * (count - 1)) / count
    return [[1.0 - (k + 1) * height - k * gap, 1.0 - k * (height + gap)] for k in range(count)]


def stacked(panels: list[tuple[str, list[dict], dict]], x: dict[str, Any], caption: str, height: int = 190) -> Chart:
    """Return a chart of panels above each other with one horizontal axis.

    Args:
        panels: title of the vertical axis, traces, and settings of the axis, for each panel.
        x: the horizontal axis.
        caption: what is shown.
        height: height of a panel in pixels.
    """
    data, vertical, named = [], {}, set()
    for k, ((title, traces, own), domain) in enumerate(zip(panels, rows(len(panels)), strict=True)):
        place = "y" if k == 0 else f"y{k + 1}"
        for trace in traces:
            again = trace.get("name") in named
            named.add(trace.get("name"))
            hidden = {"showlegend": False} if again else {}
            data.append({**trace, "yaxis": place, "legendgroup": trace.get("name", ""), **hidden})
        vertical["yaxis" + place[1:]] = axis(title, domain=domain, **own)
    last = "y" if len(panels) == 1 else f"y{len(panels)}"
    return Chart(data, layout(90 + height * len(panels), xaxis={**x, "anchor": last}, **vertical), caption)


def path_chart(post: Any) -> Chart:
    """Return the chart of the states, and of the outputs that are on a scale of their own, with the data."""
    model, series = post.model, post.series
    kept = nodes_to_draw(post.times, _NODES)
    t, (low, high), together = series.axis(post.times[kept]), post.band(), shows_data_with_state(model)
    panels = []
    for i in range(model.dim):
        traces = band(t, post.mean[kept, i], low[kept, i], high[kept, i], "posterior mean, 95 %")
        panels.append((state_label(model, i), traces + (observations(post, i) if together else []), {}))
    if not together:
        closed = model.observation.is_linear and type(model.likelihood).__name__ in ("Gaussian", "LogNormal")
        times = post.times[nodes_to_draw(post.times, _NODES if closed else _PREDICTED)]
        mean, ends = post.predict(times).mean, post.predict_quantiles(times, [TAIL, 1.0 - TAIL])
        for i in range(model.data_dim):
            own = {"tickformat": ",d"} if counts(model.likelihood, i) and np.nanmax(series.values[:, i]) > 4 else {}
            traces = band(series.axis(times), mean[:, i], ends[0, :, i], ends[1, :, i], "predicted observation, 95 %")
            panels.append((output_label(model, i), traces + observations(post, i), own))
    x = axis(time_title(series), **({"type": "date"} if series.origin is not None else {}))
    return stacked(panels, x, "The path, with bands of 95 % of the posterior, and the data.")


def history_chart(values: dict[str, np.ndarray], errors: dict[str, float], caption: str) -> Chart:
    """Return the chart of numbers against iterations, with the intervals of those that have standard errors.

    Args:
        values: by name, one number for each iteration, (K,), or several, (K, k).
        errors: standard errors of the last values, by name.
        caption: what is shown.
    """
    panels = []
    for name, trace in values.items():
        flat = np.reshape(trace, (len(trace), -1))[:, :24]
        steps = np.arange(len(flat))
        traces = []
        if name in errors and flat.shape[1] == 1:
            ends = [flat[-1, 0] + sign * 2.0 * errors[name] for sign in (-1.0, 1.0)]
            both = np.full((2, len(steps)), np.reshape(ends, (2, 1)))
            traces += band(steps, both[0], both[0], both[1], "±2 standard errors")[:2]
            traces[1] |= {"showlegend": True, "name": "±2 standard errors"}
        for k in range(flat.shape[1]):
            line = {"color": COLOURS[k % len(COLOURS)], "width": 1.5}
            traces.append({"type": "scatter", "mode": "lines+markers", "x": steps, "y": flat[:, k], "line": line,
                           "marker": {"size": 4}, "showlegend": False,
                           "hovertemplate": "iteration %{x}: %{y:.6g}<extra></extra>"})  # fmt: skip
        panels.append((html.escape(name), traces, {}))
    count = max(len(np.atleast_1d(v)) for v in values.values())
    x = axis("iteration", tick0=0, dtick=max(1, -(-count // 12)), tickformat="d")
    return stacked(panels, x, caption, 130)


def residual_charts(residuals: Any) -> list[Chart]:
    """Return charts of residuals over time, and for every output of their transforms and of coverage."""
    series, model = residuals.series, residuals.model
    from girsanov.plotting.checks import bins_for, chance

    t = series.axis(residuals.times)
    panels, pairs, levels = [], [], np.linspace(0.02, 0.98, 49)
    coverage = residuals.coverage(levels)
    for i in range(model.data_dim):
        r, name = residuals.values[:, i], output_label(model, i)
        wide = band(t[[0, -1]], [0.0, 0.0], [-2.0, -2.0], [2.0, 2.0], "")[:2]
        points = {"type": "scatter", "mode": "markers", "x": t, "y": r, "marker": {"color": "--blue", "size": 6},
                  "showlegend": False, "hovertemplate": "%{x}: %{y:.3g}<extra></extra>"}  # fmt: skip
        panels.append((f"residual of {name}", [*wide, points], {}))
        u = residuals.pit[np.isfinite(residuals.pit[:, i]), i]
        bins = bins_for(len(u))
        heights, edges = np.histogram(u, bins, (0.0, 1.0))
        low, high = (float(a) * bins for a in chance(max(len(u), 1), 1.0 / bins))
        middle, density = 0.5 * (edges[1:] + edges[:-1]), heights * bins / max(len(u), 1)
        bars = {"type": "bar", "x": middle, "y": density, "width": 0.94 / bins, "marker": {"color": "--blue/0.7"},
                "showlegend": False, "hovertemplate": "u near %{x:.2f}: %{y:.2f}<extra></extra>"}  # fmt: skip
        area = band([0.0, 1.0], [1.0, 1.0], [low, low], [high, high], "")[:2]
        pairs.append(
            Chart(
                [*area, bars],
                layout(260, xaxis=axis("u = P(Y ≤ y)", range=[0, 1]), yaxis=axis("density")),
                "Transforms of the observations: level where the model is right; 95 % of chance is shaded.",
            )
        )
        ends = chance(max(len(u), 1), levels)
        line = band(levels, coverage[:, i], ends[0], ends[1], "share inside")
        line[2]["showlegend"] = False
        x, y = axis("level of the interval", range=[0, 1]), axis("share inside", range=[0, 1])
        pairs.append(
            Chart(line, layout(260, xaxis=x, yaxis=y), "Share of the observations inside predictive intervals.")
        )
    how = "the past alone" if residuals.kind == "ahead" else "all other observations"
    x = axis(time_title(series), **({"type": "date"} if series.origin is not None else {}))
    caption = f"Residuals of observations predicted from {how}: 19 in 20 within ±2 where the model is right."
    return [stacked(panels, x, caption), *pairs]


def where_chart(post: Any, where: Any) -> Chart:
    """Return the chart of the share of effective paths along the time axis."""
    edges, share = post.series.axis(where.edges), np.append(where.ess, where.ess[-1]) / where.n
    trace = {"type": "scatter", "mode": "lines", "x": edges, "y": share, "showlegend": False,
             "line": {"color": "--blue", "width": 1.8, "shape": "hv"},
             "hovertemplate": "%{x}: %{y:.2f}<extra></extra>"}  # fmt: skip
    dated = {"type": "date"} if post.series.origin is not None else {}
    y = axis("effective share", range=[0, 1.05])
    return Chart(
        [trace], layout(240, xaxis=axis(time_title(post.series), **dated), yaxis=y),
        "Share of the paths of q that the weights of each stretch of time leave: small where q and the model part.",
    )  # fmt: skip
