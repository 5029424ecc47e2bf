"""Output that several commands write: tables, figures and the outcome of a run."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from girsanov import report
from girsanov._core.interrupt import NOT_CONVERGED
from girsanov.cli.app import say_line
from girsanov.cli.options import SayOptions
from girsanov.cli.run_folder import check_out, run_folder

if TYPE_CHECKING:
    import girsanov as gv

__all__ = ["check_out", "console", "run_folder"]  # the rest is below

console = Console(highlight=False)


def not_converged(messages: dict[str, str]) -> None:
    """Print one line for each run that has not converged, and exit with the exit code for that if there is one."""
    for name, message in messages.items():
        say_line(name, message, "yellow")
    if messages:
        raise typer.Exit(NOT_CONVERGED)


def outcome_of(post: Any) -> dict[str, Any]:
    """Return the facts of a posterior's run, or of all runs of a panel, as result.json stores them."""
    if hasattr(post, "elbos"):
        stuck = [name for name, status in post.statuses.items() if status != "converged"]
        return {
            "elbo": post.elbo,
            "status": "converged" if not stuck else post.statuses[stuck[0]],
            "message": "" if not stuck else f"series {stuck[0]!r}: {post.messages[stuck[0]]}",
            "converged": post.converged,
            "seconds": post.seconds,
            "series": {k: {"elbo": post.elbos[k], "status": v} for k, v in post.statuses.items()},
            "observations": sum(map(len, post.panel.values())),
        }
    return {
        "elbo": post.elbo,
        "status": post.status,
        "message": post.message,
        "converged": post.converged,
        "quadrature_error": post.quadrature_error,
        "iterations": len(post.history) - 1,
        "seconds": post.seconds,
        "nodes": len(post.times),
        "observations": len(post.series),
    }


def write_series(path: Path, series: "gv.TimeSeries", names: Sequence[str] | None = None) -> Path:
    """Write a series as CSV, with the times in the column `t` and its outputs by name, and return the path."""
    columns = dict(zip(names or report.names("y", series.dim), series.values.T, strict=True))
    return report.write_table(path, {"t": series.times} | columns)


def write_over_time(path: Path, post: "gv.Posterior", times: Any, columns: dict[str, Any]) -> Path:
    """Write columns of numbers over time as CSV; if the series has dates, they are the first column."""
    dates = {} if post.series.origin is None else {"date": [str(date) for date in post.series.dates(times)]}
    return report.write_labelled(path, dates, {"time": times, **columns})


def write_posterior(post: Any, folder: Path) -> None:
    """Write means and standard deviations at the nodes, of a posterior or of all series of a panel, and a figure."""
    import numpy as np

    members = list(post.items()) if hasattr(post, "elbos") else [("", post)]
    parts: list[dict[str, Any]] = []
    for _, one in members:
        columns: dict[str, Any] = {"time": one.times}
        for stem, a in (("mean", one.mean), ("sd", one.std)):
            columns |= dict(zip(report.names(stem, one.model.dim), a.T, strict=True))
        parts.append(columns)
    labels: dict[str, list[str]] = {}
    if members[0][0] or hasattr(post, "elbos"):
        labels["series"] = [name for name, one in members for _ in one.times]
    if members[0][1].series.origin is not None:
        labels["date"] = [str(date) for _, one in members for date in one.series.dates(one.times)]
    joined = {k: np.concatenate([np.asarray(part[k]) for part in parts]) for k in parts[0]}
    report.write_labelled(folder / "posterior.csv", labels, joined)
    if hasattr(post, "elbos"):
        os.environ.setdefault("MPLBACKEND", "Agg")  # draw without a window
        post.plot().savefig(folder / "figure.png", dpi=150)
    else:
        save_figure(post, folder / "figure.png")


def save_figure(post: "gv.Posterior", path: Path, *, test: Any = None, truth: Any = None, fan: Any = None) -> None:
    """Save a figure of the posterior, with held-out data (`test`), the true path (`truth`) and a forecast (`fan`).

    `fan` is the pair of the times and the 5, 50 and 95 % quantiles of the forecast.
    """
    os.environ.setdefault("MPLBACKEND", "Agg")  # draw without a window
    from girsanov.plotting.style import legend

    figure = post.plot(test=test, truth=truth)
    figure.set_size_inches(8.0, 1.2 + 2.0 * len(figure.axes))
    for i, ax in enumerate(figure.axes[: post.model.dim]):  # below them are those of outputs
        for line in ax.lines:
            if line.get_label() == "true path":
                line.set(zorder=1.5, color="0.65", linewidth=0.6)
        if fan is not None:
            times, (low, middle, high) = post.series.axis(fan[0]), fan[1]
            ax.fill_between(times, low[:, i], high[:, i], color="#b5651d", alpha=0.2, lw=0)
            ax.plot(times, middle[:, i], color="#b5651d", lw=1.2, label="forecast median, 90 %")
    legend(figure.axes[0])
    figure.savefig(path, dpi=150)


def table_of(title: str, rows: Mapping[str, str]) -> Table:
    """Return a table of two columns."""
    table = Table(title=title, title_justify="left", show_header=False, title_style="bold")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def say(options: SayOptions, out: Path | None, *what: Any) -> None:
    """Print texts and tables, and the folder of the results; or its result.json; or nothing."""
    if options.quiet:
        return
    if options.json and out is not None:
        content = json.loads((out / "result.json").read_text(encoding="utf-8"))
        print(json.dumps(content | {"folder": str(out)}, indent=2, ensure_ascii=False))
        return
    for part in what:
        if isinstance(part, str):
            console.print(part, markup=False, soft_wrap=True)
        elif part is not None:
            console.print(part)
    if out is not None:
        console.print(f"written to {out}", markup=False, soft_wrap=True)
