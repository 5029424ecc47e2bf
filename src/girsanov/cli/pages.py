"""The command `girsanov report`, which writes the page of a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from girsanov.cli.app import app
from girsanov.cli.output import console

# What writes the pages of folders with these files in them, and returns the path; `girsanov.paper` adds its own.
WRITERS: dict[str, Callable[[Path], Path]] = {}


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run of infer, learn or reproduce.", file_okay=False)],
    diagnose: Annotated[bool, typer.Option("--diagnose", help="Diagnose the posterior for the page.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the diagnosis.")] = 0,
    predictions: Annotated[
        int, typer.Option(help="Most observations to predict from their past; 0: from all others.", min=0)
    ] = 40,
    out: Annotated[Path | None, typer.Option(help="File to write; default: report.html in the folder.")] = None,
) -> None:
    """Write one page, an HTML file that opens offline, on the results in a folder."""
    from girsanov.page.run import write_run_page

    for marker, write in WRITERS.items():
        if (run / marker).is_file():
            console.print(f"open {write(run)}", markup=False, soft_wrap=True)
            return
    page = write_run_page(run, diagnose=diagnose, seed=seed, predictions=predictions, out=out)
    console.print(f"open {page}", markup=False, soft_wrap=True)
