"""The tasks of a sweep and their results: how they are checked, run, written and read."""

import contextlib
import functools
import hashlib
import importlib
import json
import math
import os
import platform
import re
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from girsanov._core.versions import versions as versions_now

SCHEMA = 1

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class Task:
    """One task of a sweep: the call `function(**settings)`.

    Args:
        name: name of the task, which is part of the name of its file: up to 100 letters, digits, '.', '_' and '-'.
        function: "package.module:function", so that any process can import it. The function returns None or a
            dictionary of numbers, text, lists and dictionaries.
        settings: arguments of the function, by name: numbers, text, lists and dictionaries. Arrays become lists.
    """

    name: str
    function: str
    settings: dict

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and _NAME.fullmatch(self.name)):
            raise ValueError(
                f"the name of a task is {self.name!r}, which cannot be part of a file's name: use up to 100 letters, "
                "digits, '.', '_' and '-', with a letter or digit first"
            )
        if not (isinstance(self.function, str) and _FUNCTION.fullmatch(self.function)):
            raise ValueError(f"task {self.name}: function is {self.function!r}; write 'package.module:function'")
        if not isinstance(self.settings, Mapping):
            raise ValueError(f"task {self.name}: settings must be a dictionary, got {type(self.settings).__name__}")
        # This is a copy, so that later changes of the caller's dictionary cannot change the digest.
        object.__setattr__(self, "settings", _plain(self.settings, f"task {self.name}: settings", finite=True))

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the function and the settings; the task's name and the order of the settings do not matter."""
        content = {"function": self.function, "settings": self.settings}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def stem(self) -> str:
        """The name of the task's files, without their ending."""
        return f"{self.name}-{self.digest[:12]}"


@dataclass(frozen=True)
class Result:
    """The result of a task.

    Attributes:
        task: the task.
        status: "done" or "failed".
        value: what the function returned, if it is done. A number that is not finite is None.
        error: the traceback, or the reason, if it failed.
        seconds: duration of the call.
        versions: versions of Python and of the packages that were used.
        started: time at which the call began, in UTC, ISO 8601.
    """

    task: Task
    status: Literal["done", "failed"]
    value: dict | None
    error: str | None
    seconds: float
    versions: dict
    started: str


def find_function(task: Task) -> Callable[..., Any]:
    """Return the function that the task names; raise a ValueError if there is none."""
    module, name = task.function.split(":")
    if module == "__main__":
        raise ValueError(
            f"task {task.name}: other processes cannot import {task.function} from a script; move it to a module"
        )
    try:
        function = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise ValueError(f"task {task.name}: {module!r} of {task.function!r} cannot be imported: {error}") from error
    if not callable(function):
        raise ValueError(f"task {task.name}: the module {module!r} has no function {name!r}")
    return function


def run_task(task: Task, out: str) -> Result:
    """Run the task in this process and write its result; if it is done already, return the earlier result."""
    with _alone(task, out):
        _clear(task, out)
        earlier = read_result(task, out)
        if earlier is not None and earlier.status == "done":
            return earlier
        result = _attempt(task)
        write_result(result, out)
    return result


def record_lost(task: Task, out: str, reason: str) -> Result:
    """Record that a task failed because its process died; if it is done already, return the earlier result."""
    with _alone(task, out):
        _clear(task, out)
        earlier = read_result(task, out)
        if earlier is not None and earlier.status == "done":
            return earlier
        result = Result(task, "failed", None, reason, 0.0, versions_now(), _now())
        write_result(result, out)
    return result


def result_path(task: Task, out: str) -> Path:
    """Return the path of the task's result file."""
    return Path(out) / "tasks" / f"{task.stem}.json"


def read_result(task: Task, out: str) -> Result | None:
    """Read the result of a task; None if there is no file, if it cannot be read, or if it is of another task."""
    result = parse_result(result_path(task, out))
    return result if result is not None and result.task.digest == task.digest else None


def parse_result(path: Path) -> Result | None:
    """Read a result file; None if there is none or if it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        task = Task(**content.pop("task"))
        if content.pop("schema") != SCHEMA or content["status"] not in ("done", "failed"):
            return None
        return Result(task=task, **content)
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_result(result: Result, out: str) -> None:
    """Write the result file atomically: even if the process is killed, a reader finds all of the file or none."""
    path = result_path(result.task, out)
    path.parent.mkdir(parents=True, exist_ok=True)
    task = {"name": result.task.name, "function": result.task.function, "settings": result.task.settings}
    content = {"schema": SCHEMA, **vars(result), "task": task}
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    temporary = path.with_name(f".{path.stem}.{_host()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def clear_abandoned(out: str) -> None:
    """Remove unfinished files of processes of this machine that were killed; files that are being written stay."""
    for path in (Path(out) / "tasks").glob(".*.tmp"):
        *_, host, writer, _ = path.stem.split(".")
        if host == _host() and writer.isdigit() and not _runs(int(writer)):
            path.unlink(missing_ok=True)


def _clear(task: Task, out: str) -> None:
    """Remove unfinished files of one task, whose lock is held, so that no process on any machine is writing them."""
    for path in (Path(out) / "tasks").glob(f".{task.stem}.*.tmp"):
        path.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # a process of another user, or a system that does not tell
        pass
    return True


def _host() -> str:
    """Return the name of this machine, in a form that can be part of a file's name."""
    return re.sub(r"[^A-Za-z0-9-]", "-", platform.node()) or "unknown"


def _attempt(task: Task) -> Result:
    started, begun = _now(), time.perf_counter()
    value, error = None, None
    try:
        value = find_function(task)(**task.settings)
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(
                f"{task.function} returned a {type(value).__name__}; the function of a task must return a dictionary "
                "or None"
            )
        value = None if value is None else _plain(value, "value", finite=False)
    except (Exception, SystemExit):  # a task that calls sys.exit must not end its worker
        value, error = None, traceback.format_exc()
    seconds = time.perf_counter() - begun
    return Result(task, "failed" if error else "done", value, error, seconds, versions_now(), started)


@contextlib.contextmanager
def _alone(task: Task, out: str) -> Iterator[None]:
    """Hold the lock of a task, which the operating system releases when the process dies.

    A worker can outlive the sweep that started it, or be given up by a scheduler that has lost contact with it. A
    process that takes over the task waits here for that worker, and then finds its result.
    """
    try:
        import fcntl
    except ImportError:  # Windows has no such locks: a task may run twice there, but its file is still written whole
        yield
        return
    folder = Path(out) / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{task.stem}.lock").open("w") as file:
        with contextlib.suppress(OSError):  # a network file system without locks is treated like Windows
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _plain(value: Any, place: str, *, finite: bool) -> Any:
    """Convert a value to types that JSON can store; a ValueError names the place of one that it cannot.

    A number that is not finite is an error if `finite` is true, and becomes None otherwise.
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{place} has the key {key!r}; every key must be text, str({key!r}) for instance")
        return {k: _plain(v, f"{place}[{k!r}]", finite=finite) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, f"{place}[{i}]", finite=finite) for i, v in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        if finite:
            raise ValueError(f"{place} is {value}; JSON can store finite numbers only: use None or text")
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"{place} is a {type(value).__name__}, which JSON cannot store; use numbers, text, lists and dictionaries"
    )
