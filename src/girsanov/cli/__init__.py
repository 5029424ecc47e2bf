"""The command line: every command reads its options, calls the library, and writes a run folder."""

from girsanov.cli import analysis, demo, reproduce, simulation  # each registers its commands
from girsanov.cli.app import app, main

__all__ = ["analysis", "app", "demo", "main", "reproduce", "simulation"]
