"""The command `girsanov report`, which writes the page of a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from girsanov.cli.app import app
from girsanov.cli.modelling import load_result
from girsanov.cli.options import ModelOptions, Seed, run_option
from girsanov.cli.output import console

# What writes the pages of folders with these files in them, and returns the path; `girsanov.paper` adds its own.
WRITERS: dict[str, Callable[[Path], Path]] = {}


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of infer, learn or reproduce.")],
    diagnose: Annotated[bool, run_option("Diagnose the posterior for the page", "--diagnose")] = False,
    diagnosis: Annotated[Path | None, run_option("Or show what girsanov diagnose found", metavar="FOLDER")] = None,
    predictions: Annotated[
        int, run_option("Most observations predicted from their past; 40. 0: from all others", min=0, metavar="NUMBER")
    ] = 40,
    drift: Annotated[str | None, run_option("Your own drift again, my.py:f", metavar="NAME")] = None,
    seed: Seed = 0,
    out: Annotated[Path | None, run_option("File to write; report.html in the folder", metavar="FILE")] = None,
) -> None:
    """Write one page, an HTML file that opens offline, on the results in a folder."""
    from girsanov.page.run import write_run_page

    for marker, write in WRITERS.items():
        if (run / marker).is_file():
            console.print(f"open {write(run)}", markup=False, soft_wrap=True)
            return

    def read(path: Path) -> Any:
        return load_result(path, ModelOptions(drift=drift))

    page = write_run_page(
        run, diagnose=diagnose, diagnosis=diagnosis, seed=seed, predictions=predictions, out=out, read=read
    )
    console.print(f"open {page}", markup=False, soft_wrap=True)
