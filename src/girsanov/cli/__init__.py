"""The command line. Every command reads its options, calls the library, and writes a folder with the results.

The commands of `girsanov.paper`, and of other packages, are found by the entry points `girsanov.commands`. Each entry
point is a function that adds commands to the app.
"""

import sys
from importlib.metadata import entry_points

from girsanov._core import interrupt
from girsanov._core.extras import MissingExtra, check_extra

try:
    for _package in ("typer", "rich"):
        check_extra(_package, "the command `girsanov`")
except MissingExtra as _missing:
    if not interrupt.is_command():  # a program that imports this module gets the exception instead of an exit code
        raise
    print(f"error: {_missing}", file=sys.stderr)
    interrupt.leave(interrupt.BAD_INPUT)

# isort: split
# Importing each of them registers its commands.
from girsanov.cli import analysis, comparing, demo, pages, simulation, starting
from girsanov.cli.app import app, main

for _entry in entry_points(group="girsanov.commands"):
    _entry.load()(app)

__all__ = ["analysis", "app", "comparing", "demo", "main", "pages", "simulation", "starting"]
