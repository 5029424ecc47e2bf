"""The command `girsanov`: heavy imports are inside the commands, so that the help is quick.

A `ValueError` is the user's to mend, and so is a file that cannot be read or written: one line, exit code 2. A warning
is one line as well. A run that has not converged is written as others are, and its exit code is 3.
"""

import sys
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from girsanov import report
from girsanov._core import interrupt

BAD_INPUT, NOT_CONVERGED = 2, 3
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Bayesian inference and learning in latent diffusion processes dx = f(x, t) dt + L dβ.",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the command `girsanov`; without arguments, the process is the command's own."""
    if arguments is not None:
        sys.exit(_run(arguments))
    interrupt.install()
    interrupt.leave(_run(None))


def _run(arguments: Sequence[str] | None) -> int:
    """The exit code of a command."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: say_line("warning", message, "yellow")
        warnings.filterwarnings("ignore", message="(infer|learn) has not converged")  # each command says so itself
        try:
            app(args=arguments)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except (ValueError, OSError) as error:
            say_line("error", error, "red")
            return BAD_INPUT
    return 0


def say_line(kind: str, message: object, style: str) -> None:
    """On standard error, whatever line breaks the message has."""
    text = f"{kind}: {' '.join(str(message).split())}"
    Console(stderr=True).print(text, style=style, markup=False, highlight=False, soft_wrap=True)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        print(f"girsanov {report.versions()['girsanov']}")
        raise typer.Exit
