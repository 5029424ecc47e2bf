"""How the command `girsanov` ends: on Ctrl-C at once, with one line and exit code 130.

Python's own way, an exception in the main thread, waits until the compiler returns, may be raised in the middle of an
import or of a callback, and then takes the interpreter down under modules that the compiler has left half built, which
can end in a segmentation fault. Here a thread is woken by the signal and ends the process without any of that.

Importing this module installs it where the process is the command `girsanov`, and nowhere else: a program that uses the
library keeps its own Ctrl-C.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable

INTERRUPTED = 130
_state = {"installed": False, "note": "nothing was written"}
_stop: list[Callable[[], None]] = []


def install_if_command() -> None:
    """Install this if the process is the command `girsanov`; processes that it starts are not."""
    script = os.path.basename(sys.argv[0]) if sys.argv else ""
    as_module = script == "-m" and ("-m", "girsanov.cli") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    if as_module or (script in ("girsanov", "girsanov.exe") and sys.argv[0] in sys.orig_argv):
        install()


def install() -> None:
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as in a shell's background
    if _state["installed"] or ignored or threading.current_thread() is not threading.main_thread():
        return
    _state["installed"] = True
    # Processes that tidy up after others, semaphores of pools, would say so on standard error after the one line.
    quiet = "ignore:resource_tracker:UserWarning"
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), quiet]))
    if os.name == "nt":
        signal.signal(signal.SIGINT, lambda *_: _end())
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, lambda *_: None)
    threading.Thread(target=_watch, args=(read,), daemon=True).start()  # what came before it waits in the pipe


def note(text: str) -> None:
    """What the line says after "interrupted"."""
    _state["note"] = text


@contextlib.contextmanager
def stopping(stop: Callable[[], None]):
    """Within the block an interruption calls `stop`, to end processes that would outlive this one."""
    _stop.append(stop)
    try:
        yield
    finally:
        _stop.remove(stop)


def leave(code: int) -> None:
    """End the command: at once, so that an interruption finds no interpreter that is being taken down."""
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
    clear = "\r\x1b[2K" if os.isatty(2) else ""  # of a line of progress
    with contextlib.suppress(OSError):
        os.write(2, f"{clear}interrupted; {_state['note']}\n".encode())
    os._exit(INTERRUPTED)


install_if_command()
