"""Read columns of a CSV file or a pandas table into arrays. An error names the column, and the line or row."""

import bz2
import csv
import gzip
import lzma
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from girsanov._core.checks import as_floats, shown
from girsanov.data.dates import are_dates

# Texts that common programs write for a missing value.
_MISSING = {"", "na", "n/a", "nan", "-nan", "null", "none", "<na>", "#n/a", "#na", "1.#qnan", "-1.#ind"}
_TRUTH = {"true": 1.0, "false": 0.0}
_OPEN = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_AS_DATES = "; if these are dates, say in which unit to count them: unit='D' for days, 'h', 'min', 's', …"
_OTHER_SEPARATOR = (
    "columns are separated by commas and decimals by points; read other files with "
    "pandas.read_csv(path, sep=';', decimal=',') and TimeSeries.from_dataframe"
)


class Columns(NamedTuple):
    """Times (n,), either numbers or dates that are not yet converted to numbers, values (n, D) and their errors.

    `ids` are the names of the series that the rows belong to, (n,), or None where no column of names was asked for.
    `inputs` are those columns, (n, m), NaN where a cell is empty, or None.
    """

    times: Any
    values: np.ndarray
    errors: np.ndarray | None
    ids: list[str] | None = None
    inputs: np.ndarray | None = None


Names = Sequence[str] | str | None


def read_csv(
    path: str | Path,
    time: str,
    values: Names,
    errors: Names,
    dated: bool,
    id: str | None = None,
    inputs: Sequence[str] = (),
) -> Columns:
    """Read the columns of a CSV file with a header. `dated` says that the times are dates, `id` names the series."""
    rows = _rows(Path(path))
    line, header = next(rows, (1, []))
    if not header:
        raise ValueError(f"{path} is empty: it needs a line with the names of the columns and a line for every time")
    header = [name.strip() for name in header]
    if len(header) == 1 and any(mark in header[0] for mark in ";\t|"):
        raise ValueError(f"{path} has a single column {header[0]!r}; {_OTHER_SEPARATOR}")
    names, sds = _names(header, time, values, errors, str(path), id, inputs)
    lines, cells = [], []
    for line, row in rows:
        if len(row) > len(header):
            raise ValueError(
                f"{path}, line {line}: {len(row)} fields, {','.join(row)!r}, where the header names {len(header)} "
                f"columns; {_OTHER_SEPARATOR}"
            )
        lines.append(line)
        cells.append(row + [""] * (len(header) - len(row)))
    if not cells:
        raise ValueError(f"{path} has a header and no rows: there is nothing to read")
    keys = [time] if id is None else [time, id]
    place = {name: header.index(name) for name in [*keys, *names, *sds, *inputs]}

    def numbers(name: str, hint: str = "", truth: bool = True) -> np.ndarray:
        column = [_number(row[place[name]], truth) for row in cells]
        if None in column:
            i = column.index(None)
            text = cells[i][place[name]]
            raise ValueError(f"{path}, line {lines[i]}, column {name!r}: {text!r} is not a number{hint}")
        return np.array(column, np.float64)

    def given(name: str, what: str) -> list[str]:
        texts = [row[place[name]].strip() for row in cells]
        gone = [line for line, text in zip(lines, texts, strict=True) if text.lower() in _MISSING]
        if gone:
            raise ValueError(f"{path}, line {gone[0]}, column {name!r}: {what} is missing; drop that row")
        return texts

    texts = given(time, "the time")
    ids = None if id is None else given(id, "the name of the series")
    counted = not dated or all(_number(text) is not None for text in texts)
    times = numbers(time, _AS_DATES, truth=False) if counted else np.array(texts)
    read = Columns(times, *_stacked(numbers, names, sds), ids, _together(numbers, inputs))
    _check_errors(read, names, sds, lambda i, name: f"{path}, line {lines[i]}, column {name!r}")
    return read


def _check_errors(read: Columns, names: list[str], sds: list[str], place: Callable[[int, str], str]) -> None:
    """Raise a ValueError for an error that is missing where there is a value, negative or infinite."""
    if read.errors is None:
        return
    sd = read.errors
    lacking = np.isnan(sd) & ~np.isnan(read.values)
    for bad, what in ((lacking, "missing"), (np.isinf(sd), "infinite"), (sd < 0.0, "negative")):
        if bad.any():
            i, j = (int(k) for k in np.argwhere(bad)[0])
            raise ValueError(
                f"{place(i, sds[j])}: the error of {names[j]!r} is {what} ({sd[i, j]:g}); errors are standard "
                "deviations: write a number that is not negative, or leave the value out"
            )


def _stacked(column: Callable[[str], np.ndarray], names: list[str], sds: list[str]) -> tuple[Any, Any]:
    """Return the columns of the values and those of the errors as matrices; None where there are no errors."""
    values = np.stack([column(name) for name in names], axis=1)
    return values, np.stack([column(name) for name in sds], axis=1) if sds else None


def _together(column: Callable[[str], np.ndarray], names: Sequence[str]) -> np.ndarray | None:
    """Return columns as a matrix, or None where there are none."""
    return np.stack([column(name) for name in names], axis=1) if names else None


def read_frame(
    frame: Any,
    time: str,
    values: Names,
    errors: Names,
    dated: bool,
    source: str,
    id: str | None = None,
    inputs: Sequence[str] = (),
) -> Columns:
    """Read the columns of a pandas table; `time` and `id` name columns or levels of the index.

    Errors call the table `source`.
    """
    levels = [name for name in (id, time) if name is not None and name not in frame.columns]
    levels = [name for name in levels if name in frame.index.names]
    if levels:
        frame = frame.reset_index(levels)
    names, sds = _names([str(c) for c in frame.columns], time, values, errors, source, id, inputs)
    frame = frame.set_axis([str(c) for c in frame.columns], axis=1)
    times = frame[time].array if dated or are_dates(frame[time]) else _column(frame, time, source, _AS_DATES)
    ids = None if id is None else _ids(frame[id], f"{source}, column {id!r}")
    column = lambda name: _column(frame, name, source)  # noqa: E731
    read = Columns(times, *_stacked(column, names, sds), ids, _together(column, inputs))
    _check_errors(read, names, sds, lambda i, name: f"{source}, column {name!r}, row {i}")
    return read


def _ids(column: Any, what: str) -> list[str]:
    """Return the names of the series in a column of a table, as texts; whole numbers lose their ".0"."""
    gone = np.flatnonzero(np.asarray(column.isna()))
    if len(gone):
        raise ValueError(f"{what}, row {gone[0]}: the name of the series is missing; drop that row")
    return [shown(v) if isinstance(v, float) else str(v) for v in column.tolist()]


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not blank, each with the number of its first line in the file, counted from 1."""
    opened = _OPEN.get(path.suffix, open)(path, "rt", newline="", encoding="utf-8-sig")
    with opened as file:
        reader = csv.reader(file, skipinitialspace=True, strict=True)
        line = 1
        try:
            for row in reader:
                if len(row) > 1 or any(cell.strip() for cell in row):
                    yield line, row
                line = reader.line_num + 1
        except csv.Error as error:
            raise ValueError(f"{path}, line {line}: this is not CSV: {error}") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}, after line {line - 1}: the file is not text in UTF-8: {error.reason}") from None


def _names(
    columns: list[str],
    time: str,
    values: Names,
    errors: Names,
    source: str,
    id: str | None = None,
    inputs: Sequence[str] = (),
) -> tuple[list[str], list[str]]:
    """Return the names of the columns of the values and of the errors; each name must occur exactly once.

    By default the values are all columns but the time, the errors, the inputs, and the names of the series.
    """
    keys = {time: "times"} if id is None else {time: "times", id: "names of the series"}
    keys |= dict.fromkeys(inputs, "inputs")
    if len(keys) < len(inputs) + 1 + (id is not None):
        raise ValueError(f"inputs={list(inputs)} must be different columns, and not that of the times or names")
    if id == time:
        raise ValueError(f"{time!r} cannot be the column of the times and that of the names of the series too")
    sds = [] if errors is None else [errors] if isinstance(errors, str) else list(errors)
    if values is None:
        names = [c for c in columns if c not in keys and c not in sds]
        if "" in columns:
            raise ValueError(
                f"{source}: column {columns.index('') + 1} has no name (pandas writes an index like that); "
                f"say which columns are values, or write the file with index=False. The columns are {columns}"
            )
    else:
        names = [values] if isinstance(values, str) else list(values)
    if not names:
        raise ValueError(f"{source} has no column of values: its columns are {columns}")
    for name in [*keys, *names, *sds]:
        if name not in columns:
            raise ValueError(f"{source} has no column {name!r}; its columns are {columns}")
        if columns.count(name) > 1:
            raise ValueError(f"{source} has {columns.count(name)} columns {name!r}: rename one of them")
    for key, what in keys.items():
        if key in sds:
            raise ValueError(f"{key!r} is the column of the {what} and cannot be one of the errors={sds} too")
        if key in names:
            raise ValueError(f"{key!r} is the column of the {what} and cannot be one of the values too")
    twice = next((name for name, n in Counter(names).items() if n > 1), None)
    if twice is not None:
        raise ValueError(f"the column {twice!r} is named twice in values={names}")
    both = next((name for name in sds if name in names), None)
    if both is not None:
        raise ValueError(f"the column {both!r} is named in both values={names} and errors={sds}")
    if errors is not None and len(sds) != len(names):
        raise ValueError(
            f"errors={sds} names {len(sds)} columns for the {len(names)} columns of values {names}; give one for each, "
            "in the same order"
        )
    return names, sds


def _number(cell: str, truth: bool = True) -> float | None:
    """Return the number in a cell, NaN if the value is missing, or None if the text is not a number.

    With truth=True, "true" and "false" count as 1 and 0.
    """
    text = cell.strip()
    try:
        return None if "_" in text else float(text)  # Python would read 1_000 as a thousand
    except ValueError:
        low = text.lower()
        return math.nan if low in _MISSING else _TRUTH.get(low) if truth else None


def _column(frame: Any, name: str, source: str, hint: str = "") -> np.ndarray:
    import pandas as pd

    column = frame[name]
    if are_dates(column):
        raise ValueError(f"{source}, column {name!r} holds dates, not numbers")
    if column.dtype.kind in "iuc":
        return as_floats(f"{source}, column {name!r}: values", column.array, missing=not hint)
    numbers: Any = pd.to_numeric(column, errors="coerce")
    found = numbers.to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.flatnonzero(np.isnan(found) & np.asarray(column.notna()))
    if len(bad):
        raise ValueError(f"{source}, column {name!r}, row {bad[0]}: {column.iloc[bad[0]]!r} is not a number{hint}")
    return found
