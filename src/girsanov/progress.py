"""Progress on runs that take longer than two seconds, on standard error."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_AFTER = 2.0  # seconds


@contextmanager
def reporter(on: bool) -> Iterator[Callable[[str], None] | None]:
    """A function that shows its text on one line, from the second second on; nothing if progress is off."""
    if not on:
        yield None
        return
    begun, shown = time.perf_counter(), False

    def say(text: str) -> None:
        nonlocal shown
        elapsed = time.perf_counter() - begun
        if elapsed > _AFTER:
            end = "" if sys.stderr.isatty() else "\n"
            start = "\r\x1b[2K" if sys.stderr.isatty() else ""
            print(f"{start}girsanov: {elapsed:.0f} s, {text}", end=end, file=sys.stderr, flush=True)
            shown = True

    try:
        yield say
    finally:
        if shown and sys.stderr.isatty():
            print(file=sys.stderr)
