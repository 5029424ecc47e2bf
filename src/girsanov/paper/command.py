"""The command `girsanov reproduce`, which repeats the paper's experiments, and its part of `girsanov report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from girsanov._core import interrupt
from girsanov.cli.output import check_out, console
from girsanov.cli.pages import WRITERS

if TYPE_CHECKING:
    from girsanov.paper.reproduce import Reproduction

_WIDTH = 190  # width of a table, in characters, where the output is not a terminal


def reproduce(
    what: Annotated[str, typer.Argument(help="table1, table2, figures, finance, gps or all.")],
    data: Annotated[
        Path | None, typer.Option(help="Folder with the authors' data; without it, series are simulated.")
    ] = None,
    dt: Annotated[
        list[float] | None, typer.Option(help="Step of the time grid; may be repeated. Default: 0.01 0.005 0.001")
    ] = None,
    process: Annotated[list[str] | None, typer.Option(help="Only this process, such as ou; may be repeated.")] = None,
    row: Annotated[list[str] | None, typer.Option(help="Only this row, such as cvi_dp; may be repeated.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting, as in double_well.inference.rho=0.2")
    ] = None,
    particles: Annotated[int | None, typer.Option(help="Number of particles of the particle smoother.")] = None,
    samples: Annotated[int | None, typer.Option(help="Number of paths that the particle smoother draws.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Number of processes; default: one for each core.")] = None,
    workers: Annotated[int | None, typer.Option(help="Workers of a local Dask cluster, instead of --jobs.")] = None,
    scheduler: Annotated[str | None, typer.Option(help="Address of a Dask scheduler, tcp://host:port.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results; existing ones are kept.")] = Path("out/paper"),
) -> None:
    """Reproduce a table or the figures of the paper, beside the printed values. Run it again after an interruption."""
    from girsanov.paper import reproduce as experiments
    from girsanov.paper.settings import PROCESSES, REAL, parse_changes

    check_out(out)
    interrupt.note("finished tasks are kept: run the command again to continue")
    changes = parse_changes(setting or [], (*PROCESSES, *REAL))
    counts = {k: v for k, v in (("particles", particles), ("samples", samples)) if v is not None}
    result = experiments.reproduce(
        what, out, data, steps=dt, processes=process, rows=row, particles=counts, changes=changes, jobs=jobs,
        workers=workers, scheduler=scheduler,
    )  # fmt: skip
    _show(result)
    console.print(f"{result.seconds:.0f} s; open {out / 'index.html'}", markup=False, soft_wrap=True)
    if result.failed:
        raise typer.Exit(1)


def rewrite(out: Path) -> Path:
    """Write the tables and the page of a reproduction again, from its results; no task is run."""
    from girsanov.paper.reproduce import rebuild

    _show(rebuild(out))
    return out / "index.html"


def register(app: typer.Typer) -> None:
    """Add the command to the command line, and its folders to `girsanov report`; this is the package's entry point."""
    app.command()(reproduce)
    WRITERS["plan.json"] = rewrite


def _show(result: "Reproduction") -> None:
    wide = console if console.is_terminal else Console(width=_WIDTH, highlight=False)
    for comparison in result.comparisons:
        table = Table(title=comparison.title, title_justify="left", title_style="bold")
        table.add_column("")
        for column in comparison.columns:
            table.add_column(column, justify="right")
        for label, row in comparison.rows.items():
            texts = []
            for column in comparison.columns:
                cell = row.get(column)
                apart = "" if cell is None or cell.apart is None else f"\n{cell.printed} ({cell.apart:+.2f})"
                texts.append("" if cell is None else f"{cell}{apart}")
            table.add_row(label, *texts)
        wide.print(table)
        for note in comparison.notes:
            console.print(f"- {note}", markup=False, soft_wrap=True)
    for failed in result.failed:
        reason = (failed.error or "").strip().splitlines()[-1]
        console.print(f"failed: {failed.task.name}: {reason}", style="red", markup=False, soft_wrap=True)
