"""Run folders: tables as CSV, and `result.json` with what it takes to read a run by machine and to repeat it."""

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
    """Write `result.json`: the outcome's entries at the top, then settings, seeds, versions and the data's hash."""
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
    # In one step, and last: a folder with this file is that of a run that came to its end.
    temporary = folder / ".result.json.tmp"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    interrupt.note(f"the run was over: {folder} is complete")
    return path


def write_table(path: Path, columns: Mapping[str, np.ndarray]) -> Path:
    """Columns of numbers as CSV; every number is written so that it reads back exactly."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(np.asarray(c, np.float64).tolist() for c in columns.values()), strict=True))
    return path


def write_labelled(path: Path, labels: Mapping[str, Sequence[str]], columns: Mapping[str, np.ndarray]) -> Path:
    """The same with columns of text before the numbers; a number that is missing (NaN) is left empty."""
    numbers = [["" if math.isnan(v) else v for v in np.asarray(c, np.float64).tolist()] for c in columns.values()]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*labels, *columns])
        writer.writerows(zip(*labels.values(), *numbers, strict=True))
    return path


def names(stem: str, n: int) -> list[str]:
    """Column names of n coordinates: the stem alone for one, numbered from 1 for more."""
    return [stem] if n == 1 else [f"{stem}{i + 1}" for i in range(n)]


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(value: Any) -> Any:
    """The same content as JSON has it: lists for arrays, null for what is not a finite number."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
