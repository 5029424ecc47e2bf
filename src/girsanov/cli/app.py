"""The command `girsanov`: heavy imports are inside the commands, so that the help is quick.

A `ValueError` is the user's to mend: one line, exit code 2.
"""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from girsanov import report

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Bayesian inference and learning in latent diffusion processes dx = f(x, t) dt + L dβ.",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the command `girsanov`."""
    try:
        app(args=arguments)
    except ValueError as error:
        message = " ".join(str(error).split())
        Console(stderr=True).print(f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        print(f"girsanov {report.versions()['girsanov']}")
        raise typer.Exit
