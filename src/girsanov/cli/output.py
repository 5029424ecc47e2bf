"""Output that several commands write: tables, figures and the outcome of a run."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from girsanov import report
from girsanov._core import interrupt
from girsanov._core.interrupt import NOT_CONVERGED
from girsanov.cli.app import say_line

if TYPE_CHECKING:
    import girsanov as gv

console = Console(highlight=False)


def check_out(out: Path) -> None:
    """Raise a ValueError unless the folder can be made and written to; called before the work begins."""
    there = out
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".girsanov-", dir=there))
    except OSError as error:
        raise ValueError(f"--out {out} cannot be written: {error.strerror}; choose another folder") from None


def begin(out: Path) -> None:
    """Make the folder and remove an earlier `result.json`, which a command writes last to mark a finished run."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.json").unlink(missing_ok=True)
    interrupt.note(f"{out} is not complete: without result.json it is not a finished run")


def not_converged(messages: dict[str, str]) -> None:
    """Print one line for each run that has not converged, and exit with the exit code for that if there is one."""
    for name, message in messages.items():
        say_line(name, message, "yellow")
    if messages:
        raise typer.Exit(NOT_CONVERGED)


def outcome_of(post: "gv.Posterior") -> dict[str, Any]:
    """Return the facts of a posterior's run, as result.json stores them."""
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


def save_figure(post: "gv.Posterior", path: Path, *, test: Any = None, truth: Any = None, fan: Any = None) -> None:
    """Save a figure of the posterior, with held-out data (`test`), the true path (`truth`) and a forecast (`fan`).

    `fan` is the pair of the times and the 5, 50 and 95 % quantiles of the forecast.
    """
    os.environ.setdefault("MPLBACKEND", "Agg")  # draw without a window
    figure = post.plot(test=test, truth=truth)
    figure.set_size_inches(8.0, 1.2 + 2.0 * post.model.dim)
    for i, ax in enumerate(figure.axes):
        for line in ax.lines:
            if line.get_label() == "true path":
                line.set(zorder=1.5, color="0.65", linewidth=0.6)
        if fan is not None:
            times, (low, middle, high) = post.series.axis(fan[0]), fan[1]
            ax.fill_between(times, low[:, i], high[:, i], color="#b5651d", alpha=0.2, lw=0)
            ax.plot(times, middle[:, i], color="#b5651d", lw=1.2, label="forecast median, 90 %")
    figure.axes[0].legend(loc="upper right", frameon=False, fontsize=8, ncols=4)
    figure.savefig(path, dpi=150)


def print_table(title: str, rows: dict[str, str], out: Path) -> None:
    """Print a table of two columns, and the folder of the results."""
    table = Table(title=title, title_justify="left", show_header=False, title_style="bold")
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    console.print(f"written to {out}", markup=False, soft_wrap=True)
