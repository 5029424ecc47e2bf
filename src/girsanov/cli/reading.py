"""The data that a command works with, and the line that says what was read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from girsanov.cli.options import DataOptions
from girsanov.data.spreadsheet import read_table

if TYPE_CHECKING:
    import girsanov as gv

TIMES = ("t", "time", "times", "date", "datetime", "timestamp", "day", "month", "year", "hour")


class Read(NamedTuple):
    """Data that were read: a series or a panel, what result.json stores of it, and a line for the user."""

    data: Any
    settings: dict[str, Any]
    line: str
    file: Path


def read_data(file: Path, o: DataOptions, model: Any = None) -> Read:
    """Read a series, or with --id a panel.

    The values are by default the columns with the names of the outputs of a model, and all of them must be there:
    another column is never taken for an output. The inputs are by default those that its equations name.
    """
    import girsanov as gv

    table = read_table(file)
    time = o.time or time_column(table.header, str(file))
    values = list(o.values or ()) or _outputs(file, table.header, getattr(model, "output_names", None) or ())
    acting = _inputs(o, model)
    how: dict[str, Any] = {"time": time, "values": values, "errors": o.errors or None, "unit": o.unit}
    how |= {"decimal": o.decimal, "date_order": o.date_order}
    how |= {"inputs": list(acting), "input_kind": list(acting.values())} if acting else {}
    if o.id is None:
        data = gv.TimeSeries.from_csv(file, **how)  # pyright: ignore[reportArgumentType]
        one, size = data, f"{len(data)} times from {_shown(data, 0)} to {_shown(data, -1)}"
    else:
        data = gv.Panel.from_csv(file, id=o.id, **how)  # pyright: ignore[reportArgumentType]
        one, size = next(iter(data.values())), f"{len(data)} series of {sum(map(len, data.values()))} times together"
    source = one.source
    names = [] if source is None else source.names
    members: list[Any] = [data] if o.id is None else list(data.values())  # pyright: ignore[reportCallIssue]
    gone = sum(int((~s.observed).sum()) for s in members)
    facts = [size, f"times in {time!r}", f"values in {', '.join(map(repr, names))}"]
    facts += [f"errors in {', '.join(map(repr, o.errors))}"] if o.errors else []
    facts += [f"inputs in {', '.join(f'{n!r} ({kind})' for n, kind in acting.items())}"] if acting else []
    facts += [f"{gone} missing"] if gone else []
    facts += [] if source is None else source.found
    settings = {"time": time, "values": values, "unit": o.unit}
    settings |= {k: v for k, v in vars(o).items() if k not in settings and v}
    return Read(data, settings, f"read {file}: {'; '.join(facts)}", file)


def _inputs(o: DataOptions, model: Any) -> dict[str, str]:
    """Return the kinds of the inputs by the names of their columns: of the options, or else of a model's equations."""
    if o.inputs:
        parts = [text.partition(":") for text in o.inputs]
        return {name: kind or "linear" for name, _, kind in parts}
    equations = getattr(model, "equations", None)
    return {} if equations is None else {i.name: i.kind for i in equations.statement.inputs}


def time_column(header: Sequence[str], source: str) -> str:
    """Return the one column whose name is that of a time, or raise a ValueError that asks for it."""
    if "t" in header:
        return "t"
    found = [name for name in header if name.lower() in TIMES]
    if len(found) == 1:
        return found[0]
    what = "no column is called t, time or date" if not found else f"{' and '.join(map(repr, found))} may be the times"
    raise ValueError(f"{source}: {what}: say which column has the times, --time NAME; there are {', '.join(header)}")


def _outputs(file: Path, header: Sequence[str], outputs: Sequence[str]) -> list[str] | None:
    missing = [name for name in outputs if name not in header]
    if missing:
        raise ValueError(
            f"{file} has no column {missing[0]!r}, which the equations call an output; it has {', '.join(header)}. "
            f"Name the columns of {', '.join(outputs)} in this order: --values NAME for each"
        )
    return list(outputs) or None


def _shown(series: "gv.TimeSeries", i: int) -> str:
    """Return a time of a series, as a date where it has dates."""
    t = series.times[i]
    if series.origin is None:
        return f"{t:.10g}"
    return str(series.dates([t])[0].astype("datetime64[s]")).removesuffix("T00:00:00")


@contextmanager
def in_lines(data: Any) -> Iterator[None]:
    """Turn messages about entries of the arrays of a series into messages about lines of its file."""
    try:
        yield
    except ValueError as error:
        source = getattr(data, "source", None)
        told = str(error) if source is None else source.told(str(error))
        if told == str(error):
            raise
        raise ValueError(told) from None


def times_of(data: Any, texts: Sequence[str], option: str) -> list[float]:
    """Return times that options give, as numbers of the series: numbers, or dates where it has dates."""
    try:
        return [float(text) for text in texts]
    except ValueError:
        pass
    one = data if hasattr(data, "origin") else next(iter(data.values()))
    if one.origin is None:
        raise ValueError(f"{option} {' '.join(texts)}: the times of the data are numbers: give numbers here")
    try:
        dates = [np.datetime64(text) for text in texts]
    except ValueError:
        raise ValueError(f"{option} {' '.join(texts)}: a date has the form 2024-03-01 or 2024-03-01T12:30") from None
    return [float(v) for v in one.numbers(np.array(dates, "datetime64[ns]"), option)]
