"""The command `girsanov`: heavy imports are inside the commands, so that the help is quick.

A `ValueError` is the user's to mend: one line, exit code 2. A warning is one line as well.
"""

import sys
import warnings
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
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: _line("warning", message, "yellow")
        try:
            app(args=arguments)
        except ValueError as error:
            _line("error", error, "red")
            sys.exit(2)


def _line(kind: str, message: object, style: str) -> None:
    """On standard error, whatever line breaks the message has."""
    text = f"{kind}: {' '.join(str(message).split())}"
    Console(stderr=True).print(text, style=style, markup=False, highlight=False, soft_wrap=True)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        print(f"girsanov {report.versions()['girsanov']}")
        raise typer.Exit
