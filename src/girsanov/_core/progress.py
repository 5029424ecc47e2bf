"""Progress messages on standard error for runs that take longer than two seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_AFTER = 2.0  # seconds
_WIDTH = 20  # characters of a bar
_BETWEEN = 5.0  # seconds between two lines if standard error is a file or a pipe, where every line stays


class Countdown:
    """A bar, a count and the time left, of a number of equal pieces of work."""

    def __init__(self, total: int, pieces: str):
        self.total, self.pieces = total, pieces
        self._first: tuple[float, int] | None = None  # when some were done for the first time, and how many

    def __call__(self, done: int) -> str:
        """Return a text; the pace is that since the first of them were done, as compilation comes before."""
        now, full = time.perf_counter(), _WIDTH * done // max(self.total, 1)
        self._first = (now, done) if self._first is None and done > 0 else self._first
        begun, at = self._first or (now, done)
        left = duration((now - begun) / (done - at) * (self.total - done)) if done > at else ""
        bar = "=" * full + ("" if full == _WIDTH else ">").ljust(_WIDTH - full)
        return f"[{bar}] {done} of {self.total} {self.pieces}" + (f", about {left} left" if left else "")


def duration(seconds: float) -> str:
    """Return a time span as a text: seconds up to two minutes, then minutes, then hours."""
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"


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
