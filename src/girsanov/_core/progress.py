"""Progress messages on standard error for runs that take longer than two seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_AFTER = 2.0  # seconds
_BETWEEN = 5.0  # seconds between two lines if standard error is a file or a pipe, where every line stays


@contextmanager
def reporter(on: bool) -> Iterator[Callable[[str], None] | None]:
    """Yield a function that prints a line of progress, once two seconds have passed; yield None if `on` is False."""
    if not on:
        yield None
        return
    begun, last = time.perf_counter(), None

    def say(text: str) -> None:
        nonlocal last
        elapsed, live = time.perf_counter() - begun, sys.stderr.isatty()
        if elapsed > _AFTER and (live or last is None or elapsed - last > _BETWEEN):
            start, end = ("\r\x1b[2K", "") if live else ("", "\n")
            print(f"{start}girsanov: {elapsed:.0f} s, {text}", end=end, file=sys.stderr, flush=True)
            last = elapsed

    try:
        yield say
    finally:
        if last is not None and sys.stderr.isatty():
            print(file=sys.stderr)
