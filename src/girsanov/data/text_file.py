"""From the bytes of a file of text to rows of cells: encoding, comment lines and separator are found, and said."""

import bz2
import csv
import gzip
import io
import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_OPEN = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_COMMENT = ("#", "%")
_SAMPLE = 50  # rows that decide on the separator
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "the sign |", ",": "commas", " ": "blanks"}
_KINDS = {
    b"PK\x03\x04": "an Excel file or a zip archive; give its name an ending such as .xlsx if it is from Excel",
    b"PAR1": "a parquet file: give its name the ending .parquet, or read it with pandas.read_parquet",
    b"\x1f\x8b": "compressed: give its name the ending .gz",
    b"\xd0\xcf\x11\xe0": "an Excel file of the old format: save it as .xlsx or .csv",
}


class Table(NamedTuple):
    """Rows of cells as texts, below a header.

    Attributes:
        source: the file, for messages.
        place: what a row is called there, "line" or "row".
        header: the names of the columns.
        lines: the number of each row in the file, counted from 1.
        cells: the rows, each as long as the header.
        found: what was found out about the file, in words.
    """

    source: str
    place: str
    header: list[str]
    lines: list[int]
    cells: list[list[str]]
    found: list[str]

    def at(self, i: int) -> str:
        """Return the place of row i, as an editor or a spreadsheet shows it."""
        return f"{self.source}, {self.place} {self.lines[i]}"


def read_text(path: Path) -> Table:
    """Read a file of text with a header, whatever separates its columns.

    Args:
        path: the file; one that ends in .gz, .bz2 or .xz is decompressed.

    Raises:
        ValueError: if it is no text, is empty, or has rows that do not fit the header; with the line.
    """
    text, encoding = _decoded(_bytes(path), path)
    found = [] if encoding is None else [f"text in {encoding}"]
    given, text = _stated_separator(text)
    sample = _sample(text)
    if not sample:
        raise ValueError(f"{path} is empty: it needs a line with the names of the columns and a line for every time")
    separator = given or _separator(sample)
    if separator != ",":
        found.append(f"columns separated by {SEPARATORS.get(separator, repr(separator))}")
    comments: list[tuple[int, str]] = []
    rows = list(_rows(text, separator, path, comments))
    if given is not None:  # its line counts in an editor
        rows = [(line + 1, row) for line, row in rows]
    header = _header_in_comment(comments, rows, separator)
    if header is not None:
        found.append("the header in a comment line")
        rows.insert(0, header)
    if comments:
        found.append(f"{len(comments)} comment line{'s' if len(comments) > 1 else ''}")
    return fitted(str(path), "line", rows, found, separator)


def fitted(source: str, place: str, rows: list[tuple[int, list[str]]], found: list[str], separator: str = ",") -> Table:
    """Return rows with their numbers as a table, after checking that they fit the header, which is the first."""
    header = [name.strip() for name in rows[0][1]]
    lines, cells = [], []
    for line, row in rows[1:]:
        if len(row) > len(header):
            shown = separator.join(row)
            hint = "a row must not have more fields than the header names"
            if separator == ",":
                hint = (
                    "columns are separated by commas here and decimals by points; if commas are both, read the file "
                    "with pandas.read_csv(path, sep=';', decimal=',') after writing it with another separator, or put "
                    "the numbers in quotes"
                )
            if len(header) == 1:
                hint = "if lines stand above the names of the columns, delete them or begin them with #"
            raise ValueError(
                f"{source}, {place} {line}: {len(row)} fields, {shown!r}, where the header names {len(header)} "
                f"column{'s' if len(header) > 1 else ''}, {', '.join(header)}; {hint}"
            )
        lines.append(line)
        cells.append(row + [""] * (len(header) - len(row)))
    if not cells:
        raise ValueError(f"{source} has a header and no rows: there is nothing to read")
    most = max(len(row) for _, row in rows[1:])
    if most < len(header):
        raise ValueError(
            f"{source}, {place} {lines[0]}: no row has more than {most} field{'s' if most > 1 else ''}, but the header "
            f"names {len(header)} columns, {', '.join(header)}; make the header fit the rows"
        )
    return Table(source, place, header, lines, cells, found)


def _bytes(path: Path) -> bytes:
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the file in it")
    opened = _OPEN.get(path.suffix.lower(), open)(path, "rb")
    with opened as file:
        try:
            raw = file.read()
        except (gzip.BadGzipFile, lzma.LZMAError, EOFError, OSError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from None
    for mark, kind in _KINDS.items():
        if raw.startswith(mark):
            raise ValueError(f"{path} is not text: it is {kind}")
    return raw


def _decoded(raw: bytes, path: Path) -> tuple[str, str | None]:
    """Return the text of the bytes, and the encoding if it is another one than UTF-8."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        try:
            return raw.decode("utf-16"), "UTF-16"
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} begins as text in UTF-16 and goes on otherwise: {error.reason}") from None
    zeros = [raw[0:2000:2].count(0), raw[1:2000:2].count(0)]
    if any(zeros):  # the letters of UTF-16 have a zero byte before or behind each
        try:
            text = raw.decode("utf-16-le" if zeros[1] > zeros[0] else "utf-16-be") if min(zeros) == 0 else "\0"
        except UnicodeDecodeError:
            text = "\0"
        if not _is_text(text):
            raise ValueError(f"{path} is not text; save it as CSV")
        return text, "UTF-16"
    try:
        text, encoding = raw.decode("utf-8-sig"), None
    except UnicodeDecodeError:
        try:
            text, encoding = raw.decode("cp1252"), "Latin-1"
        except UnicodeDecodeError:
            text, encoding = raw.decode("latin-1"), "Latin-1"
    if not _is_text(text):
        raise ValueError(f"{path} is not text; save it as CSV")
    return text, encoding


def _is_text(text: str) -> bool:
    return not re.search(r"[\x00-\x08\x0e-\x1b]", text)


def _stated_separator(text: str) -> tuple[str | None, str]:
    """Return the separator of a first line such as sep=; which Excel writes, and the text after it."""
    stated = re.match(r'"?sep=(.)"?\r?\n', text, re.IGNORECASE)
    return (None, text) if stated is None else (stated[1], text[stated.end() :])


def _sample(text: str) -> list[str]:
    """Return the first lines that are neither blank nor comments."""
    lines = (line for line in io.StringIO(text, newline="") if line.strip())
    plain = (line for line in lines if not line.lstrip().startswith(_COMMENT))
    return [line for line, _ in zip(plain, range(_SAMPLE), strict=False)]


def _separator(sample: list[str]) -> str:
    """Return what separates the columns: by what all lines have as many fields as the first, of these the most."""
    best, choice = (False, 1), ","
    for separator in (";", "\t", "|", ","):
        counts = [len(row) for row in _parsed(sample, separator)]
        if counts and counts[0] > 1:
            found = (all(n == counts[0] for n in counts), counts[0])
            if found > best:
                best, choice = found, separator
    if best[1] == 1 and len(sample[0].split()) > 1 and len(sample) > 1 and len(sample[1].split()) > 1:
        return " "
    if best[1] == 1 and len(sample) > 1:  # perhaps a title above the header: what separates the next line
        return next((mark for mark in SEPARATORS if mark != " " and mark in sample[1]), ",")
    return choice


def _parsed(lines: list[str], separator: str) -> list[list[str]]:
    try:
        return list(csv.reader(lines, delimiter=separator, skipinitialspace=True))
    except csv.Error:
        return []


class _RowLines:
    """The lines of a text, without comment lines between rows, which are kept in a list."""

    def __init__(self, text: str, comments: list[tuple[int, str]]):
        self.lines, self.comments = io.StringIO(text, newline=""), comments
        self.number, self.first, self.between = 0, 0, True

    def __iter__(self) -> Iterator[str]:
        for line in self.lines:
            self.number += 1
            if self.between and line.lstrip().startswith(_COMMENT):
                self.comments.append((self.number, line.strip()))
                continue
            if self.between:
                self.first, self.between = self.number, False
            yield line


def _rows(text: str, separator: str, path: Path, comments: list) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not blank, each with the number of its first line in the file, counted from 1."""
    lines = _RowLines(text, comments)
    if separator == " ":
        for line in lines:
            lines.between = True
            if line.split():
                yield lines.number, line.split()
        return
    reader = csv.reader(iter(lines), delimiter=separator, skipinitialspace=True, strict=True)
    try:
        for row in reader:
            if len(row) > 1 or any(cell.strip() for cell in row):
                yield lines.first, row
            lines.between = True
    except csv.Error as error:
        raise ValueError(f"{path}, line {lines.first}: this is not CSV: {error}") from None


def _header_in_comment(comments: list[tuple[int, str]], rows: list, separator: str) -> tuple[int, list[str]] | None:
    """Take the last comment above the first row as the header, if that row is of numbers and it names as many."""
    above = [comment for comment in comments if rows and comment[0] < rows[0][0]]
    if not above or not all(is_number_text(cell) for cell in rows[0][1]):
        return None
    text = above[-1][1].lstrip("#% ")
    names = text.split() if separator == " " else next(iter(_parsed([text], separator)), [])
    if len(names) != len(rows[0][1]) or any(is_number_text(name) for name in names):
        return None
    comments.remove(above[-1])
    return above[-1][0], names


def is_number_text(text: str) -> bool:
    """Return whether a text is a number, with a decimal point or a decimal comma."""
    return re.fullmatch(r"\s*[-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d+)?\s*", text) is not None
