"""The command line: every command reads its options, calls the library, and writes a run folder.

Commands of other packages, and those of `girsanov.paper`, come in by the entry points `girsanov.commands`: each is a
function that adds its commands to the app.
"""

from importlib.metadata import entry_points

from girsanov.cli import analysis, demo, simulation  # each registers its commands
from girsanov.cli.app import app, main

for _entry in entry_points(group="girsanov.commands"):
    _entry.load()(app)

__all__ = ["analysis", "app", "demo", "main", "simulation"]
