"""The command line: every command reads its options, calls the library, and writes a run folder."""

from girsanov.cli import analysis, demo, simulation  # each registers its commands
from girsanov.cli.app import app, main
from girsanov.paper import command

__all__ = ["analysis", "app", "command", "demo", "main", "simulation"]
