"""The command `girsanov`. Slow imports are inside the commands, so that the help appears quickly.

Errors that the user can mend are printed in one line, in the words of the command line, with exit code 2: a
`ValueError`, a file that cannot be read or written, an option that there is not, and an extra that is not installed; an
error in equations shows its place below. A warning is printed in one line as well. The results of a run that has not
converged are written like those of other runs, and the exit code is 3.
"""

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console

from girsanov import report
from girsanov._core import interrupt
from girsanov._core.extras import MissingExtra
from girsanov._core.interrupt import BAD_INPUT
from girsanov.cli.cache import keep_programs
from girsanov.cli.words import in_options

_USAGE: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
_SAID: set[str] = set()  # warnings that were printed; each is printed once

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Bayesian inference and learning in latent diffusion processes dx = f(x, t) dt + L dβ.",
    epilog="Begin with: girsanov init DATA.csv. Exit codes: 0 fine, 2 mistake in the input, 3 not converged, "
    "130 interrupted.",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command `girsanov`.

    Without `arguments` they are those of the process, which then ends with the exit code of the command.
    """
    if arguments is not None:
        sys.exit(_run(arguments))
    interrupt.install()
    keep_programs()
    interrupt.leave(_run(None))


def _run(arguments: Sequence[str] | None) -> int:
    """Run a command and return its exit code."""
    _SAID.clear()
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: _warn(message)
        warnings.filterwarnings("ignore", message="(infer|learn) has not converged")  # each command prints this itself
        try:
            code = app(args=arguments, standalone_mode=False, prog_name="girsanov")
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except _USAGE as error:
            return _bad_usage(error)
        except (ValueError, OSError, MissingExtra) as error:
            say_error(error)
            return BAD_INPUT
    return code if isinstance(code, int) else 0


def _bad_usage(error: Any) -> int:
    """Say what is wrong with the options, and where they are listed; without any arguments, show the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return BAD_INPUT
    context = getattr(error, "ctx", None)
    where = f"; see {context.command_path} --help" if context is not None else ""
    say_line("error", f"{error.format_message().rstrip('.')}{where}", "red")
    return BAD_INPUT


def _warn(message: object) -> None:
    text = in_options(str(message))
    if text not in _SAID:
        _SAID.add(text)
        say_line("warning", text, "yellow")


def say_error(error: Exception) -> None:
    """Print an error; that of an equation with the line and a caret under the place."""
    from girsanov.model.equations import EquationError

    if isinstance(error, FileNotFoundError) and error.filename:
        say_line("error", f"there is no file {os.fspath(error.filename)}", "red")
    elif isinstance(error, EquationError) and "\n" in str(error):
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
    else:
        say_line("error", in_options(str(error)), "red")


def say_line(kind: str, message: object, style: str) -> None:
    """Print a message on standard error in one line, without its line breaks."""
    text = f"{kind}: {' '.join(str(message).split())}"
    Console(stderr=True).print(text, style=style, markup=False, highlight=False, soft_wrap=True)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print(f"girsanov {report.versions()['girsanov']}")
        raise typer.Exit
