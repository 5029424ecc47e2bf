"""Folders with the results of a run: tables as CSV, and `result.json` with the outcome and all that repeats the run."""

import csv
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from girsanov._core import interrupt
from girsanov._core.versions import versions

SCHEMA = 1


def write_result(
    folder: Path,
    command: str,
    outcome: Mapping[str, Any],
    *,
    settings: Mapping[str, Any],
    seeds: Mapping[str, int],
    data: Path | None,
) -> Path:
    """Write `result.json` to a folder.

    Args:
        folder: the folder, which must exist.
        command: name of the command.
        outcome: what came out; its entries come first in the file.
        settings: the settings of the run.
        seeds: the seeds of the random numbers, by name.
        data: the data file, whose name and hash are stored, or None.

    Returns:
        The path of the file.
    """
    content = {
        "schema": SCHEMA,
        "command": command,
        **outcome,
        "settings": settings,
        "seeds": seeds,
        "versions": versions(),
        "data": None if data is None else {"file": data.name, "sha256": sha256(data)},
    }
    path = folder / "result.json"
    text = json.dumps(_plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # The file is written last and in one step, so that a folder with this file is that of a finished run.
    temporary = folder / ".result.json.tmp"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    interrupt.note(f"the run was finished: {folder} is complete")
    return path


def write_table(path: Path, columns: Mapping[str, np.ndarray]) -> Path:
    """Write columns of numbers as CSV, with all digits, and return the path."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(np.asarray(c, np.float64).tolist() for c in columns.values()), strict=True))
    return path


def write_labelled(path: Path, labels: Mapping[str, Sequence[str]], columns: Mapping[str, np.ndarray]) -> Path:
    """Write columns of text and then columns of numbers as CSV; a missing number (NaN) is left empty."""
    numbers = [["" if math.isnan(v) else v for v in np.asarray(c, np.float64).tolist()] for c in columns.values()]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*labels, *columns])
        writer.writerows(zip(*labels.values(), *numbers, strict=True))
    return path


def names(stem: str, n: int) -> list[str]:
    """Return the column names of n coordinates: the stem for a single one, or the stem and a number from 1 on."""
    return [stem] if n == 1 else [f"{stem}{i + 1}" for i in range(n)]


def sha256(path: Path) -> str:
    """Return the SHA-256 hash of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(value: Any) -> Any:
    """Convert a value to types that JSON can store: arrays become lists, and numbers that are not finite None."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
