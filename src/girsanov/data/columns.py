"""Read columns of a CSV file or a pandas table into arrays. An error names the column, and the line or row."""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from girsanov._core.checks import as_floats, shown
from girsanov.data.date_texts import in_iso, looks_compact
from girsanov.data.dates import are_dates
from girsanov.data.spreadsheet import read_table
from girsanov.data.text_file import Table, is_number_text

# Texts that common programs write for a missing value.
_MISSING = {"", "na", "n/a", "nan", "-nan", "null", "none", "<na>", "#n/a", "#na", "1.#qnan", "-1.#ind"}
_TRUTH = {"true": 1.0, "false": 0.0}
_AS_DATES = "; if these are dates, say in which unit to count them: unit='D' for days, 'h', 'min', 's', …"
_HUGE = 1e150  # the square of a larger number is no float64
# Numbers that stand for a missing value in many files.
_FILLS = (-9.0, -99.0, -999.0, -9999.0, -99999.0, 999.0, 9999.0, 99999.0, 1e20, 9.969209968386869e36)


class Source(NamedTuple):
    """Where the rows of a series come from.

    Attributes:
        file: the file.
        place: what a row is called there, "line" or "row".
        lines: the number of each row in the file.
        names: the columns of the values.
        found: what was found out about the file, in words, such as its separator.
    """

    file: str
    place: str
    lines: list[int]
    names: list[str]
    found: list[str]

    def told(self, message: str) -> str:
        """Return a message about entries of arrays, such as values[3, 0], as one about lines and columns."""

        def entry(m: re.Match) -> str:
            at = f"{self.place} {self.lines[int(m[2])]}"
            if m[1] == "times":
                return f"the time in {at}"
            what = "" if m[1] == "values" else "the error of "
            return f"{what}column {self.names[int(m[3])]!r} in {at}"

        text = re.sub(r"\b(times|values|errors)\[(\d+)(?:, (\d+))?\]", entry, message)
        text = re.sub(r" \(row \d+, output \d+\)", "", text)
        text = text.replace("sort both arrays with order = np.argsort(times)", "sort the rows by time")
        return text if text == message else f"{self.file}: {text}"


class Columns(NamedTuple):
    """Times (n,), either numbers or dates that are not yet converted to numbers, values (n, D) and their errors.

    `ids` are the names of the series that the rows belong to, (n,), or None where no column of names was asked for;
    `covariates` are the columns that should be constant within a series, and `inputs` those that act on the state,
    (n, m), NaN where a cell is empty. `source` is where the rows come from, for files of text.
    """

    times: Any
    values: np.ndarray
    errors: np.ndarray | None
    ids: list[str] | None = None
    covariates: dict[str, np.ndarray] | None = None
    source: Source | None = None
    inputs: np.ndarray | None = None


Names = Sequence[str] | str | None


def read_csv(
    path: str | Path | Table,
    time: str,
    values: Names,
    errors: Names,
    dated: bool,
    id: str | None = None,
    covariates: Names = None,
    decimal: str | None = None,
    date_order: str | None = None,
    inputs: Sequence[str] = (),
) -> Columns:
    """Read the columns of a file with a header. `dated` says that the times are dates, `id` names the series."""
    constant = _as_list(covariates)
    table = path if isinstance(path, Table) else read_table(Path(path))
    source, header = table.source, table.header
    if time not in header and all(is_number_text(name) for name in header):
        raise ValueError(
            f"{source}, {table.place} 1: the first row is of numbers, {', '.join(header)}, and the columns have no "
            f"names; put a row with names above it, such as {time},y"
        )
    names, sds = _names(header, time, values, errors, source, id, constant, inputs)
    if decimal not in (None, ".", ","):
        raise ValueError(f"decimal must be '.' or ',', got {decimal!r}")
    keys = [time, *constant] if id is None else [time, id, *constant]
    place = {name: header.index(name) for name in [*keys, *names, *sds, *inputs]}
    texts = {name: [row[j].strip() for row in table.cells] for name, j in place.items()}
    comma = _decimal_comma(table, {n: t for n, t in texts.items() if n != id}) if decimal is None else decimal == ","
    if comma:
        texts = {n: t if n == id else [_with_point(text) for text in t] for n, t in texts.items()}
    found = [*table.found, *(["decimal commas"] if comma else [])]

    def numbers(name: str, hint: str = "", truth: bool = True) -> np.ndarray:
        column = [_number(text, truth) for text in texts[name]]
        if None in column:
            i = column.index(None)
            said = f"{table.cells[i][place[name]]!r} is not a number{hint}"
            raise ValueError(f"{table.at(i)}, column {name!r}: {said}")
        read = np.array(column, np.float64)
        huge = (np.abs(read) > _HUGE) & ~(np.isinf(read) & (name in sds))  # the check of errors names infinite ones
        if huge.any():
            i = int(np.argmax(huge))
            raise ValueError(
                f"{table.at(i)}, column {name!r}: {table.cells[i][place[name]]} is too large, its square is no "
                "floating-point number; leave the cell empty if the value is missing, or take another unit"
            )
        return read

    for name, what in [(time, "the time"), *([(id, "the name of the series")] if id else [])]:
        gone = next((i for i, text in enumerate(texts[name]) if text.lower() in _MISSING), None)
        if gone is not None:
            raise ValueError(f"{table.at(gone)}, column {name!r}: {what} is missing; drop that row")
    times, form = _times(table, time, texts[time], dated, date_order, lambda: numbers(time, _AS_DATES, truth=False))
    found += [] if form is None else [form]
    ids = texts[id] if id is not None else None
    stacked = _stacked(numbers, names, sds)
    found += _fills(names, stacked[0])
    fixed = {name: numbers(name) for name in constant}
    whence = Source(source, table.place, table.lines, names, found)
    read = Columns(times, *stacked, ids, fixed, whence, _together(numbers, inputs))
    _check_errors(read, names, sds, lambda i, name: f"{table.at(i)}, column {name!r}")
    return read


def _times(table: Table, name: str, texts: list[str], dated: bool, order: str | None, numbers: Callable) -> tuple:
    """Return the times, as numbers or as dates in ISO 8601, and the form of the dates if it is another one."""

    def place(i: int) -> str:
        return f"{table.at(i)}, column {name!r}"

    if looks_compact(texts):
        if not dated:
            text = texts[0]
            raise ValueError(
                f"{place(0)}: {text!r} looks like the date {text[:4]}-{text[4:6]}-{text[6:8]}: say in which unit to "
                f"count dates, unit='D' for days; if it is a number, write it with a point, {text}.0"
            )
    elif not dated or all(_number(text) is not None for text in texts):
        return numbers(), None
    read = in_iso(texts, order, place)
    if read is None:
        return np.array(texts), None
    iso, form = read
    return np.array(iso), None if form == "year-month-day" else f"dates as {form}"


def _decimal_comma(table: Table, columns: dict[str, list[str]]) -> bool:
    """Return whether numbers have a decimal comma; raise a ValueError if that is not clear."""
    commas, points = [], []
    for name, texts in columns.items():
        for i, text in enumerate(texts):
            if "," in text and is_number_text(text):
                commas.append((i, name, text))
            elif "." in text and is_number_text(text):
                points.append((i, name, text))
    if not commas:
        return False
    i, name, text = commas[0]
    where = f"{table.at(i)}, column {name!r}"
    if points:
        k, other, point = points[0]
        raise ValueError(
            f"{where}: {text!r} has a comma, but {point!r} in {table.place} {table.lines[k]}, column {other!r}, has a "
            "point; write all numbers in one way, without signs for thousands"
        )
    if all(re.fullmatch(r"[-+]?[1-9]\d{0,2},\d{3}", t) for _, _, t in commas):
        raise ValueError(
            f"{where}: {text!r} may be a decimal number or have a comma for thousands: give decimal=',' if the comma "
            "is the decimal sign, or take the commas out of the file"
        )
    return True


def _with_point(text: str) -> str:
    return text.replace(",", ".") if is_number_text(text) else text


def _fills(names: list[str], values: np.ndarray) -> list[str]:
    """Return a warning for each column with a number far from the others that often stands for a missing value."""
    said = []
    for name, column in zip(names, values.T, strict=True):
        for fill in _FILLS:
            here = column == fill
            others = column[~here & ~np.isnan(column)]
            if here.any() and len(others) and abs(fill) > 5.0 * np.abs(others).max():
                n = int(here.sum())
                said.append(
                    f"{n} value{'s' if n > 1 else ''} of {name!r} {'are' if n > 1 else 'is'} {fill:g}, taken as "
                    "measured; leave the cells empty if they are missing"
                )
    return said


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
    covariates: Names = None,
    inputs: Sequence[str] = (),
) -> Columns:
    """Read the columns of a pandas table; `time` and `id` name columns or levels of the index.

    Errors call the table `source`.
    """
    constant = _as_list(covariates)
    levels = [name for name in (id, time, *constant) if name is not None and name not in frame.columns]
    levels = [name for name in levels if name in frame.index.names]
    if levels:
        frame = frame.reset_index(levels)
    names, sds = _names([str(c) for c in frame.columns], time, values, errors, source, id, constant, inputs)
    frame = frame.set_axis([str(c) for c in frame.columns], axis=1)
    times = frame[time].array if dated or are_dates(frame[time]) else _column(frame, time, source, _AS_DATES)
    ids = None if id is None else _ids(frame[id], f"{source}, column {id!r}")
    column = lambda name: _column(frame, name, source)  # noqa: E731
    fixed = {name: column(name) for name in constant}
    read = Columns(times, *_stacked(column, names, sds), ids, fixed, None, _together(column, inputs))
    _check_errors(read, names, sds, lambda i, name: f"{source}, column {name!r}, row {i}")
    return read


def _ids(column: Any, what: str) -> list[str]:
    """Return the names of the series in a column of a table, as texts; whole numbers lose their ".0"."""
    gone = np.flatnonzero(np.asarray(column.isna()))
    if len(gone):
        raise ValueError(f"{what}, row {gone[0]}: the name of the series is missing; drop that row")
    return [shown(v) if isinstance(v, float) else str(v) for v in column.tolist()]


def _as_list(names: Names) -> list[str]:
    return [] if names is None else [names] if isinstance(names, str) else list(names)


def _names(
    columns: list[str],
    time: str,
    values: Names,
    errors: Names,
    source: str,
    id: str | None = None,
    constant: Sequence[str] = (),
    inputs: Sequence[str] = (),
) -> tuple[list[str], list[str]]:
    """Return the names of the columns of the values and of the errors; each name must occur exactly once.

    By default the values are all columns but the time, errors, covariates, inputs, and the names of the series.
    """
    keys = {time: "times"} if id is None else {time: "times", id: "names of the series"}
    if id == time:
        raise ValueError(f"{time!r} cannot be the column of the times and that of the names of the series too")
    for kind, several in (("covariates", constant), ("inputs", inputs)):
        for name in several:
            if name in keys:
                raise ValueError(f"{name!r} is the column of the {keys[name]} and cannot be one of {kind}= too")
            keys[name] = kind
    sds = _as_list(errors)
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
