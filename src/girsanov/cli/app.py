"""The command `girsanov`. Slow imports are inside the commands, so that the help appears quickly.

Errors that the user can mend are printed in one line, with exit code 2: a `ValueError`, a file that cannot be read or
written, and an extra that is not installed. A warning is printed in one line as well. The results of a run that has not
converged are written like those of other runs, and the exit code is 3.
"""

import sys
import warnings
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from girsanov import report
from girsanov._core import interrupt
from girsanov._core.extras import MissingExtra
from girsanov._core.interrupt import BAD_INPUT

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Bayesian inference and learning in latent diffusion processes dx = f(x, t) dt + L dβ.",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command `girsanov`.

    Without `arguments` they are those of the process, which then ends with the exit code of the command.
    """
    if arguments is not None:
        sys.exit(_run(arguments))
    interrupt.install()
    interrupt.leave(_run(None))


def _run(arguments: Sequence[str] | None) -> int:
    """Run a command and return its exit code."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: say_line("warning", message, "yellow")
        warnings.filterwarnings("ignore", message="(infer|learn) has not converged")  # each command prints this itself
        try:
            app(args=arguments)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except (ValueError, OSError, MissingExtra) as error:
            say_line("error", error, "red")
            return BAD_INPUT
    return 0


def say_line(kind: str, message: object, style: str) -> None:
    """Print a message on standard error in one line, without its line breaks."""
    text = f"{kind}: {' '.join(str(message).split())}"
    Console(stderr=True).print(text, style=style, markup=False, highlight=False, soft_wrap=True)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print(f"girsanov {report.versions()['girsanov']}")
        raise typer.Exit
