"""The folder of a run: tried before the work, written by one run only, and brought up to date at the end in one go.

A run writes into a folder of its own inside, whose files take their places when all are there, `result.json` last. Till
then an earlier run stays as it was; files that it has and the new one has not are removed.
"""

import contextlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from girsanov._core import interrupt

UNFINISHED = "unfinished.gv"
_STAGE, _LOCK = ".girsanov-", ".lock"
# What runs wrote before result.json had a list of its files.
_KNOWN = ("posterior.csv", "posterior.gv", "fit.gv", "history.csv", "figure.png", "learning.png", "comparison.csv")


def check_out(out: Path) -> None:
    """Raise a ValueError unless the folder can be made and written to; called before the work begins."""
    there = out
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    try:
        os.rmdir(tempfile.mkdtemp(prefix=_STAGE, dir=there))
    except OSError as error:
        raise ValueError(f"--out {out} cannot be written: {error.strerror}; choose another folder") from None


@contextlib.contextmanager
def run_folder(out: Path, command: str) -> Iterator[Path]:
    """Yield the folder into which a run writes its files; after the `with` block they are in `out`.

    Raises:
        ValueError: if the folder cannot be written, has the results of another command, or another run writes to it.
    """
    check_out(out)
    other = _read(out / "result.json").get("command", command)
    if other != command:
        raise ValueError(
            f"--out {out} holds the results of girsanov {other}; give girsanov {command} a folder of its own"
        )
    made = _missing(out)
    out.mkdir(parents=True, exist_ok=True)
    with _alone(out), _stage(out) as stage:
        publishing = threading.Lock()

        def end() -> None:  # on Ctrl-C, in another thread: a run that is finished is put in its place
            with publishing:
                if not _publish(stage, out) and (out / UNFINISHED).exists():
                    kept = f"the best parameters so far are in {out / UNFINISHED}"
                    interrupt.note(f"{kept}: the same command with --resume goes on")
                _clear(stage, made)

        interrupt.note(f"nothing was written to {out}")
        with interrupt.stopping(end):
            try:
                yield stage
            except BaseException:
                _clear(stage, made)
                raise
            with publishing:
                _publish(stage, out)
    interrupt.note(f"the run was finished: {out} is complete")


@contextlib.contextmanager
def _stage(out: Path) -> Iterator[Path]:
    """Yield a new folder inside `out`, after removing those that killed runs have left."""
    for old in out.glob(f"{_STAGE}*"):
        shutil.rmtree(old, ignore_errors=True)
    stage = Path(tempfile.mkdtemp(prefix=_STAGE, dir=out))
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold a lock on the folder, which ends with the process; raise a ValueError if another process holds it."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with (out / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"--out {out}: another run is writing there; choose another folder") from None
        try:
            yield
        finally:
            (out / _LOCK).unlink(missing_ok=True)


def _missing(out: Path) -> list[Path]:
    """Return the folders that have to be made for `out`, the innermost first."""
    made = []
    while not out.exists():
        made.append(out)
        out = out.parent
    return made


def _clear(stage: Path, made: list[Path]) -> None:
    """Remove the stage, and the folders that this run made, where nothing else is in them."""
    shutil.rmtree(stage, ignore_errors=True)
    for folder in made:
        (folder / _LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()


def _publish(stage: Path, out: Path) -> bool:
    """Put the files of a finished run in their places, `result.json` last; return whether there was one."""
    result = stage / "result.json"
    if not result.exists():
        return False
    names = sorted(p.name for p in stage.iterdir() if p != result)
    content = _read(result) | {"files": names}
    before = _read(out / "result.json")
    old = before.get("files", list(_KNOWN) if before else [])
    result.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (out / "result.json").unlink(missing_ok=True)
    for name in {*old, UNFINISHED} - set(names):
        (out / Path(name).name).unlink(missing_ok=True)
    for name in names:
        os.replace(stage / name, out / name)
    os.replace(result, out / "result.json")
    interrupt.note(f"the run was finished: {out} is complete")
    return True


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def copy_input(file: Path | None, stage: Path, out: Path, name: str | None = None) -> None:
    """Copy a file that was read into the folder of the run, unless a file of that name is there that no run wrote."""
    if file is None or not file.is_file():
        return
    name = name or file.name
    there = out / name
    written = _read(out / "result.json").get("files", [])
    if not there.exists() or name in written:
        shutil.copyfile(file, stage / name)
