"""The tasks of a sweep and their results: what is checked, what is written, and how one task is run."""

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
    """One call `function(**settings)` of a sweep, under a name that is part of a file's name.

    `function` is "package.module:function", so that any process can find it; it returns a dictionary of what JSON
    can hold, or None. Arrays in the settings become lists.
    """

    name: str
    function: str
    settings: dict

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and _NAME.fullmatch(self.name)):
            raise ValueError(
                f"the name of a task is {self.name!r}; it is part of a file's name: use up to 100 letters, digits, "
                "'.', '_' and '-', a letter or digit first"
            )
        if not (isinstance(self.function, str) and _FUNCTION.fullmatch(self.function)):
            raise ValueError(f"task {self.name}: function is {self.function!r}; write 'package.module:function'")
        if not isinstance(self.settings, Mapping):
            raise ValueError(f"task {self.name}: settings must be a dictionary, got {type(self.settings).__name__}")
        # A copy, so that what the caller does to the dictionary later cannot change the digest.
        object.__setattr__(self, "settings", _plain(self.settings, f"task {self.name}: settings", finite=True))

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of function and settings as canonical JSON. The name and the order of the settings do not matter."""
        content = {"function": self.function, "settings": self.settings}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def stem(self) -> str:
        """The name of the task's files, without their ending."""
        return f"{self.name}-{self.digest[:12]}"


@dataclass(frozen=True)
class Result:
    """What became of a task: its value if it is done, the traceback if it failed.

    In `value`, as in the file, a number that is not finite is None.
    """

    task: Task
    status: Literal["done", "failed"]
    value: dict | None
    error: str | None
    seconds: float
    versions: dict
    started: str


def find_function(task: Task) -> Callable[..., Any]:
    """The function that the task names; a ValueError if there is none."""
    module, name = task.function.split(":")
    if module == "__main__":
        raise ValueError(f"task {task.name}: {task.function} is known to this process only; move it to a module")
    try:
        function = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise ValueError(f"task {task.name}: {module!r} of {task.function!r} cannot be imported: {error}") from error
    if not callable(function):
        raise ValueError(f"task {task.name}: the module {module!r} has no function {name!r}")
    return function


def run_task(task: Task, out: str) -> Result:
    """Run the task and write its result, unless it is done already; runs in whatever process does the work."""
    with _alone(task, out):
        _clear(task, out)
        earlier = read_result(task, out)
        if earlier is not None and earlier.status == "done":
            return earlier
        result = _attempt(task)
        write_result(result, out)
    return result


def record_lost(task: Task, out: str, reason: str) -> Result:
    """Record as failed a task whose process was lost, unless it was done before that."""
    with _alone(task, out):
        _clear(task, out)
        earlier = read_result(task, out)
        if earlier is not None and earlier.status == "done":
            return earlier
        result = Result(task, "failed", None, reason, 0.0, versions_now(), _now())
        write_result(result, out)
    return result


def result_path(task: Task, out: str) -> Path:
    return Path(out) / "tasks" / f"{task.stem}.json"


def read_result(task: Task, out: str) -> Result | None:
    """The result on file; None where there is none, or where the file is broken or of another task."""
    result = parse_result(result_path(task, out))
    return result if result is not None and result.task.digest == task.digest else None


def parse_result(path: Path) -> Result | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        task = Task(**content.pop("task"))
        if content.pop("schema") != SCHEMA or content["status"] not in ("done", "failed"):
            return None
        return Result(task=task, **content)
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_result(result: Result, out: str) -> None:
    """Write the file in one step: whoever looks sees all of it or nothing, whenever the process is killed."""
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
    """Remove what writers of this machine left behind when they were killed; what others are writing stays."""
    for path in (Path(out) / "tasks").glob(".*.tmp"):
        *_, host, writer, _ = path.stem.split(".")
        if host == _host() and writer.isdigit() and not _runs(int(writer)):
            path.unlink(missing_ok=True)


def _clear(task: Task, out: str) -> None:
    """The same for one task, whose lock is held: whoever began its file, on any machine, is gone."""
    for path in (Path(out) / "tasks").glob(f".{task.stem}.*.tmp"):
        path.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user, or a system that does not say
        pass
    return True


def _host() -> str:
    """The name of this machine, as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9-]", "-", platform.node()) or "unknown"


def _attempt(task: Task) -> Result:
    started, begun = _now(), time.perf_counter()
    value, error = None, None
    try:
        value = find_function(task)(**task.settings)
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f"{task.function} returned a {type(value).__name__}; a task returns a dictionary or None")
        value = None if value is None else _plain(value, "value", finite=False)
    except (Exception, SystemExit):  # a task that leaves by sys.exit must not take its worker along
        value, error = None, traceback.format_exc()
    seconds = time.perf_counter() - begun
    return Result(task, "failed" if error else "done", value, error, seconds, versions_now(), started)


@contextlib.contextmanager
def _alone(task: Task, out: str) -> Iterator[None]:
    """Hold the task's lock, which the system releases when a process dies.

    A worker can outlive the sweep that started it, or be given up by a scheduler that lost sight of it. Whoever takes
    the task over waits here for that worker, and then finds its result.
    """
    try:
        import fcntl
    except ImportError:  # no such locks on Windows: there a task may run twice, its file still is whole
        yield
        return
    folder = Path(out) / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{task.stem}.lock").open("w") as file:
        with contextlib.suppress(OSError):  # a network file system without locks: as on Windows
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _plain(value: Any, place: str, *, finite: bool) -> Any:
    """The same content as JSON has it; a ValueError names the place of what JSON cannot hold.

    A number that is not finite is an error if they have to be `finite`, else None.
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
            raise ValueError(f"{place} is {value}; JSON has finite numbers only: use None or text")
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"{place} is a {type(value).__name__}, which JSON cannot hold; use numbers, text, lists and dictionaries"
    )
