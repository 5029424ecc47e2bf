"""Rows of cells from Excel and parquet files, as texts, so that they are checked like those of a CSV file."""

import datetime
from pathlib import Path
from typing import Any

from girsanov._core.extras import check_extra
from girsanov.data.text_file import Table, fitted, read_text


def read_table(path: Path) -> Table:
    """Read a file of text, of Excel (.xlsx) or parquet (.parquet), by the ending of its name."""
    suffix = path.suffix.lower()
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the file in it")
    if suffix in (".xlsx", ".xlsm"):
        return _excel(path)
    return _parquet(path) if suffix in (".parquet", ".pq") else read_text(path)


def _excel(path: Path) -> Table:
    """Read the first sheet; rows have their numbers in it."""
    check_extra("openpyxl", f"reading {path.name}")
    import openpyxl

    with path.open("rb") as file:
        try:
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            rows = [[_text(v) for v in row] for row in book.worksheets[0].iter_rows(values_only=True)]
            names = book.sheetnames
        except Exception as error:  # openpyxl raises errors of zip, of XML and of its own
            raise ValueError(f"{path} is not an Excel file that can be read: {error}") from None
    numbered = [(i, _ended(row)) for i, row in enumerate(rows, 1) if any(row)]
    if not numbered:
        raise ValueError(f"{path} is empty: it needs a row with the names of the columns and a row for every time")
    found = [f"sheet {names[0]!r}, the first of {len(names)}"] if len(names) > 1 else []
    return fitted(str(path), "row", numbered, found)


def _parquet(path: Path) -> Table:
    check_extra("pyarrow", f"reading {path.name}")
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        table = parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} is not a parquet file that can be read: {error}") from None
    columns = [[_text(v) for v in column.to_pylist()] for column in table.columns]
    if not columns:
        raise ValueError(f"{path} is empty: it has no columns")
    rows = [[*map(str, table.column_names)], *map(list, zip(*columns, strict=True))]
    return fitted(str(path), "row", list(enumerate(rows)), [])


def _text(value: Any) -> str:
    """Return a cell as text, from which the value can be read back exactly."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.date | datetime.datetime):
        return value.isoformat().removesuffix("T00:00:00")
    return repr(value) if isinstance(value, float) else str(value).strip()


def _ended(row: list[str]) -> list[str]:
    """Return a row without the empty cells at its end."""
    return row[: max((i + 1 for i, cell in enumerate(row) if cell), default=0)]
