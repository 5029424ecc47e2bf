"""Functions that the sweeps of the tests run, in processes of their own. A log shows what started and what ended."""

import os
import signal
import time


def log_line(log: str, text: str) -> None:
    """Append one line: a single write in append mode, so that lines of several processes do not mix."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{text}\n".encode())
    finally:
        os.close(file)


def work(log: str, label: str, seconds: float = 0.0) -> dict:
    log_line(log, f"start {label} {os.getpid()}")
    time.sleep(seconds)
    log_line(log, f"end {label} {os.getpid()}")
    return {"label": label, "pid": os.getpid()}


def wait_for(log: str, label: str, path: str) -> dict:
    """Ends when there is a file at `path`."""
    log_line(log, f"start {label} {os.getpid()}")
    while not os.path.exists(path):
        time.sleep(0.01)
    log_line(log, f"end {label} {os.getpid()}")
    return {"label": label, "pid": os.getpid()}


def fail_unless(log: str, label: str, path: str) -> dict:
    """Fails as long as there is no file at `path`."""
    log_line(log, f"start {label} {os.getpid()}")
    if not os.path.exists(path):
        raise RuntimeError(f"no file for {label}")
    return {"label": label}


def kill_worker(log: str) -> None:
    log_line(log, f"start kill {os.getpid()}")
    os.kill(os.getpid(), signal.SIGKILL)


def kill_beside(log: str, label: str) -> None:
    """Kills its process while the task `label` is running in another one; the second time, at once."""
    log_line(log, f"start kill {os.getpid()}")
    lines: list[str] = []
    while sum(line.startswith("start kill") for line in lines) < 2 and not any(f"start {label}" in x for x in lines):
        with open(log) as file:
            lines = file.readlines()
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def environment() -> dict:
    return {name: os.environ.get(name) for name in ("XLA_FLAGS", "OMP_NUM_THREADS")}


def give(value: object) -> object:
    return value


def not_finite() -> dict:
    return {"good": 1.0, "bad": float("nan")}


def returns_a_set() -> dict:
    return {"odd": {1, 2}}
