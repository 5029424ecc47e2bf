"""Ctrl-C in the command `girsanov`: it ends the process at once, with one line of text and exit code 130.

By default Python raises an exception in the main thread. The exception has to wait until the compiler returns, can come
in the middle of an import or a callback, and then shuts the interpreter down while modules are half initialised, which
can end in a segmentation fault. Here the signal wakes a thread that ends the process directly.

Importing this module installs the handler only if the process is the command `girsanov`. A program that uses the
library keeps its own handling of Ctrl-C.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable

BAD_INPUT, NOT_CONVERGED, INTERRUPTED = 2, 3, 130  # exit codes of the command
_state = {"installed": False, "note": "nothing was written"}
_stop: list[Callable[[], None]] = []


def is_command() -> bool:
    """Return whether this process is the command `girsanov` itself, not a process that the command started."""
    script = os.path.basename(sys.argv[0]) if sys.argv else ""
    as_module = script == "-m" and ("-m", "girsanov.cli") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return as_module or (script in ("girsanov", "girsanov.exe") and sys.argv[0] in sys.orig_argv)


def install() -> None:
    """Install the handler of Ctrl-C, unless Ctrl-C is ignored or this is not the main thread."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # a shell does this for jobs in the background
    if _state["installed"] or ignored or threading.current_thread() is not threading.main_thread():
        return
    _state["installed"] = True
    # Python's resource tracker, which removes leftover semaphores of process pools, would print warnings afterwards.
    quiet = "ignore:resource_tracker:UserWarning"
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), quiet]))
    if os.name == "nt":
        signal.signal(signal.SIGINT, lambda *_: _end())
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, lambda *_: None)
    # A signal that comes before the thread runs waits in the pipe.
    threading.Thread(target=_watch, args=(read,), daemon=True).start()


def note(text: str) -> None:
    """Set the text that follows "interrupted" in the line printed on Ctrl-C."""
    _state["note"] = text


@contextlib.contextmanager
def stopping(stop: Callable[[], None]):
    """Call `stop` if Ctrl-C comes within the `with` block; use it to end processes that would outlive this one."""
    _stop.append(stop)
    try:
        yield
    finally:
        _stop.remove(stop)


def leave(code: int) -> None:
    """End the command at once with this exit code, so that Ctrl-C cannot come while the interpreter shuts down."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _watch(read: int) -> None:
    while os.read(read, 1) != bytes([signal.SIGINT]):
        pass
    _end()


def _end() -> None:
    for stop in reversed(_stop):
        with contextlib.suppress(Exception):
            stop()
    clear = "\r\x1b[2K" if os.isatty(2) else ""  # erases a line of progress
    with contextlib.suppress(OSError):
        os.write(2, f"{clear}interrupted; {_state['note']}\n".encode())
    os._exit(INTERRUPTED)


if is_command():
    install()
