"""Observations at irregular times."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from girsanov._core.checks import as_floats, shown
from girsanov.data.columns import read_csv, read_frame
from girsanov.data.dates import are_dates, as_dates, as_numbers


class TimeSeries:
    """Times of shape (n,), strictly increasing, and values of shape (n,) or (n, D).

    Entries of the values that are NaN, None, masked or pandas' NA are missing.

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
        y = as_floats("values", values, missing=True)
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
            raise ValueError(f"values[{i}, {j}] is {y[i, j]} at time {shown(t[i])}; write NaN where a value is missing")
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

    def numbers(self, times: Any, name: str = "times") -> np.ndarray:
        """Dates as times of this series; numbers stay as they are."""
        if not are_dates(times):
            return as_floats(name, times)
        if self.unit is None:
            raise ValueError("the times of this series were given as numbers: give numbers here, not dates")
        counted, origin = as_numbers(name, times, self.unit, self.origin)
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

        With a `unit`, the time column holds dates in ISO 8601. Columns are separated by commas; a row with more fields
        than the header is an error.
        """
        read = read_csv(path, time, values, dated=unit is not None)
        return cls(read.times, read.values, unit=unit, origin=origin)

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
        read = read_frame(frame, time, values, unit is not None, source)
        return cls(read.times, read.values, unit=unit, origin=origin)


def _as_times(times: Any, unit: str | None, origin: Any) -> tuple[np.ndarray, np.datetime64 | None]:
    if unit is not None:
        return as_numbers("times", times, unit, origin)
    if are_dates(times):
        raise ValueError("times are dates; say in which unit to count them: unit='D' for days, 'h', 'min', 's', …")
    if origin is not None:
        raise ValueError("origin= goes with unit=, where times are dates")
    return as_floats("times", times), None


def _check_times(t: np.ndarray) -> None:
    if not np.isfinite(t).all():
        i = int(np.argmin(np.isfinite(t)))
        raise ValueError(f"times[{i}] is {t[i]}; every time must be finite (drop that row)")
    steps = np.diff(t)
    if (steps < 0).any():
        i = int(np.argmax(steps < 0))
        raise ValueError(
            f"times must increase: times[{i + 1}] = {shown(t[i + 1])} comes after times[{i}] = {shown(t[i])}; "
            "sort both arrays with order = np.argsort(times)"
        )
    if (steps == 0).any():
        i = int(np.argmax(steps == 0))
        both = f"times[{i}] and times[{i + 1}] are both {shown(t[i])}"
        raise ValueError(f"{both}; average repeated observations or put them in columns")
