"""Observations at irregular times."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from girsanov.dates import are_dates, as_dates, as_numbers


class TimeSeries:
    """Times of shape (n,), strictly increasing, and values of shape (n,) or (n, D); NaN entries are missing.

    Dates are counted in a `unit` ("D", "h", "min", "s", …) since `origin`, by default the first of them; a second
    series to go with this one takes the same origin.

    `times`, `values` (n, D) and `observed` (n, D) are read-only float64 and bool arrays; `origin` is a datetime64 in
    UTC, or None where the times are not dates.
    """

    times: np.ndarray
    values: np.ndarray
    observed: np.ndarray
    unit: str | None
    origin: np.datetime64 | None

    def __init__(self, times: Any, values: Any, *, unit: str | None = None, origin: Any = None):
        t, self.origin = _as_times(times, unit, origin)
        self.unit = unit
        y = _as_float("values", values)
        if t.ndim != 1:
            raise ValueError(f"times must have shape (n,), got {t.shape}")
        if y.ndim not in (1, 2):
            raise ValueError(f"values must have shape (n,) or (n, D), got {y.shape}")
        y = y[:, None] if y.ndim == 1 else y
        if len(t) != len(y):
            raise ValueError(f"times and values differ in length: {len(t)} times, {len(y)} rows of values")
        if len(t) == 0 or y.shape[1] == 0:
            raise ValueError("the series is empty: give at least one time and one value")
        _check_times(t)
        if np.isinf(y).any():
            i, j = np.argwhere(np.isinf(y))[0]
            raise ValueError(f"values[{i}, {j}] is {y[i, j]} at time {t[i]:g}; write NaN where a value is missing")
        observed = ~np.isnan(y)
        if not observed.any():
            raise ValueError("every value is missing (NaN): there is nothing to infer from")
        for a in (t, y, observed):
            a.flags.writeable = False
        self.times, self.values, self.observed = t, y, observed

    @property
    def dim(self) -> int:
        return self.values.shape[1]

    def __len__(self) -> int:
        return len(self.times)

    def __repr__(self) -> str:
        missing = int((~self.observed).sum())
        gone = f", {missing} entries missing" if missing else ""
        return f"TimeSeries(n={len(self)}, D={self.dim}, from {self.times[0]:g} to {self.times[-1]:g}{gone})"

    def subset(self, index: Any) -> "TimeSeries":
        """The observations at `index` (a boolean mask or increasing integers)."""
        return TimeSeries.counted(self.times[index], self.values[index], self.unit, self.origin)

    @classmethod
    def counted(cls, times: Any, values: Any, unit: str | None, origin: np.datetime64 | None) -> "TimeSeries":
        """Times that are numbers already, counted in a unit since an origin."""
        series = cls(times, values)
        series.unit, series.origin = unit, origin
        return series

    def dates(self, times: Any) -> np.ndarray:
        """The dates (datetime64, UTC) of times that are counted as this series' are."""
        if self.unit is None or self.origin is None:
            raise ValueError("the times of this series were given as numbers, not as dates")
        return as_dates(times, self.unit, self.origin)

    def axis(self, times: Any) -> np.ndarray:
        """Times for the axis of a plot: dates where the series has them, else the numbers."""
        return np.asarray(times) if self.origin is None else self.dates(times)

    def numbers(self, times: Any) -> np.ndarray:
        """Dates as times of this series; numbers stay as they are."""
        if not are_dates(times):
            return _as_float("times", times)
        if self.unit is None:
            raise ValueError("the times of this series were given as numbers: give numbers here, not dates")
        counted, origin = as_numbers("times", times, self.unit, self.origin)
        if self.origin is None and origin is not None:
            raise ValueError("the times of this series are durations: give durations or numbers here, not dates")
        return counted

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        time: str = "t",
        values: Sequence[str] | str | None = None,
        *,
        unit: str | None = None,
        origin: Any = None,
    ) -> "TimeSeries":
        """Read columns of a CSV file; by default every column but the time is a value. Empty cells are missing.

        With a `unit`, the time column holds dates in ISO 8601.
        """
        import pandas as pd

        return cls.from_dataframe(pd.read_csv(path), time, values, unit=unit, origin=origin, source=str(path))

    @classmethod
    def from_dataframe(
        cls,
        frame: Any,
        time: str = "t",
        values: Sequence[str] | str | None = None,
        *,
        unit: str | None = None,
        origin: Any = None,
        source: str = "the table",
    ) -> "TimeSeries":
        """Columns of a pandas table; the time may be its index, by name."""
        if time not in frame.columns and frame.index.name == time:
            frame = frame.reset_index()
        columns = [str(c) for c in frame.columns]
        names = [c for c in columns if c != time] if values is None else [values] if isinstance(values, str) else values
        for name in [time, *names]:
            if name not in columns:
                raise ValueError(f"{source} has no column {name!r}; its columns are {columns}")
        read = np.stack([_column(frame, n, source) for n in names], axis=1)
        dated = unit is not None or are_dates(frame[time])
        times = np.asarray(frame[time]) if dated else _column(frame, time, source, _AS_DATES)
        return cls(times, read, unit=unit, origin=origin)


_AS_DATES = "; if these are dates, say in which unit to count them: unit='D' for days, 'h', 'min', 's', …"


def _as_times(times: Any, unit: str | None, origin: Any) -> tuple[np.ndarray, np.datetime64 | None]:
    if unit is not None:
        return as_numbers("times", times, unit, origin)
    if are_dates(times):
        raise ValueError("times are dates; say in which unit to count them: unit='D' for days, 'h', 'min', 's', …")
    if origin is not None:
        raise ValueError("origin= goes with unit=, where times are dates")
    return _as_float("times", times), None


def _column(frame: Any, name: str, source: str, hint: str = "") -> np.ndarray:
    import pandas as pd

    column = frame[name]
    if are_dates(column):
        raise ValueError(f"{source}, column {name!r} holds dates, not numbers")
    numbers = np.asarray(pd.to_numeric(column, errors="coerce"), dtype=np.float64)
    bad = np.flatnonzero(np.isnan(numbers) & np.asarray(column.notna()))
    if len(bad):
        raise ValueError(f"{source}, column {name!r}, row {bad[0]}: {column.iloc[bad[0]]!r} is not a number{hint}")
    return numbers


def _as_float(name: str, values: Any) -> np.ndarray:
    if are_dates(values):
        raise ValueError(f"{name} must be numbers, not dates or durations")
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers: {error}") from None


def _check_times(t: np.ndarray) -> None:
    if not np.isfinite(t).all():
        i = int(np.argmin(np.isfinite(t)))
        raise ValueError(f"times[{i}] is {t[i]}; every time must be finite (drop that row)")
    steps = np.diff(t)
    if (steps < 0).any():
        i = int(np.argmax(steps < 0))
        raise ValueError(
            f"times must increase: times[{i + 1}] = {t[i + 1]:g} comes after times[{i}] = {t[i]:g}; "
            "sort both arrays with order = np.argsort(times)"
        )
    if (steps == 0).any():
        i = int(np.argmax(steps == 0))
        raise ValueError(
            f"times[{i}] and times[{i + 1}] are both {t[i]:g}; average repeated observations or put them in columns"
        )
