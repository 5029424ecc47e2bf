"""The public type for observations at irregular times."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from girsanov._core.checks import as_floats, is_finite, shown
from girsanov.data.columns import Source, read_csv, read_frame
from girsanov.data.dates import are_dates, as_dates, as_numbers
from girsanov.data.inputs import Inputs, input_names, sampled


class TimeSeries:
    """Observations at irregular times.

    Args:
        times: strictly increasing times, shape (n,): numbers, or dates or durations together with `unit`.
        values: observed values, shape (n,) or (n, D). Entries that are NaN, None, masked or pandas' NA are missing.
        errors: known standard deviations of the values, in the shape of `values`; by default none are known. A Gaussian
            likelihood adds its variance to their squares.
        unit: the unit in which dates or durations are counted: "us", "ms", "s", "min", "h", "D", "W", or for
            dates "month" or "year", those of the calendar. Leave it out
            if `times` are numbers.
        origin: the date that becomes time zero, by default the first of `times`. Give a second series for the same
            model, such as test data, the same origin.
        covariates: numbers that describe the series as a whole, by name, such as {"weight": 70.0, "dose": 4.02}; by
            default there are none. A model takes them by `Model.with_covariates`.
        inputs: what acts on the state, u(t), for a drift f(x, t, u): an `Inputs`, or a list of those, whose components
            follow each other.

    Attributes:
        times: the times as numbers, shape (n,), read-only float64.
        values: the values, shape (n, D), read-only float64, NaN where missing.
        observed: mask of the values that are not missing, shape (n, D), read-only bool.
        errors: standard deviations of the values, shape (n, D), read-only float64, NaN where missing; or None.
        unit: the unit of the times, or None if they were given as numbers.
        origin: the date of time zero as a datetime64 in UTC, or None if the times are not dates.
        covariates: the covariates of the series, by name.
        source: for a series from a file of text, the file, the line of every row, and what was found out about the
            file, such as its separator; otherwise None.
        inputs: the inputs, with their times as numbers, or None.

    Raises:
        ValueError: if the times do not increase, the shapes do not fit, a value is infinite or all are missing, or an
            error is negative, infinite, or missing where there is a value, or a covariate is no finite number.
    """

    times: np.ndarray
    values: np.ndarray
    observed: np.ndarray
    errors: np.ndarray | None
    unit: str | None
    origin: np.datetime64 | None
    covariates: dict[str, float]
    inputs: Inputs | None
    source: Source | None = None

    def __init__(
        self,
        times: Any,
        values: Any,
        *,
        errors: Any = None,
        unit: str | None = None,
        origin: Any = None,
        covariates: Any = None,
        inputs: Any = None,
    ):
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
        self.errors = None if errors is None else _as_errors(errors, t, observed)
        for a in (t, y, observed):
            a.flags.writeable = False
        self.times, self.values, self.observed = t, y, observed
        self.covariates = as_covariates(covariates)
        self.inputs = None if inputs is None else Inputs.joined(inputs).counted(self.numbers)

    @property
    def dim(self) -> int:
        """D, the number of values at each time."""
        return self.values.shape[1]

    @property
    def filled(self) -> np.ndarray:
        """The values with zeros in place of missing ones, for code that uses the mask `observed`."""
        return np.where(self.observed, self.values, 0.0)

    def __len__(self) -> int:
        return len(self.times)

    def __repr__(self) -> str:
        missing = int((~self.observed).sum())
        gone = f", {missing} entries missing" if missing else ""
        acting = "" if self.inputs is None else f", {self.inputs!r}"
        return f"TimeSeries(n={len(self)}, D={self.dim}, from {self.times[0]:g} to {self.times[-1]:g}{gone}{acting})"

    def subset(self, index: Any) -> "TimeSeries":
        """Select observations.

        Args:
            index: a boolean mask of shape (n,), increasing integers or a slice.

        Returns:
            A series of the selected observations, with the same unit, origin, covariates and inputs.
        """
        errors = None if self.errors is None else self.errors[index]
        return TimeSeries.counted(
            self.times[index], self.values[index], self.unit, self.origin, errors, self.covariates, self.inputs
        )

    def with_inputs(self, inputs: Any) -> "TimeSeries":
        """Give the series other inputs.

        Args:
            inputs: an `Inputs`, a list of those, or None for no inputs.

        Returns:
            A series of the same observations with these inputs.
        """
        new = copy.copy(self)
        new.inputs = None if inputs is None else Inputs.joined(inputs).counted(self.numbers)
        return new

    def with_columns(self, columns: np.ndarray | None, names: list[str], kind: Any) -> "TimeSeries":
        """Give the series inputs from columns of the table that it comes from.

        Args:
            columns: the columns, (n, m), NaN where a cell is empty; None leaves the series as it is.
            names: their names.
            kind: "linear", "previous" or "impulse", or one for each of them.

        Returns:
            A series of the same observations with these inputs.
        """
        return self if columns is None else self.with_inputs(sampled(self.times, columns, names, kind))

    @classmethod
    def counted(
        cls,
        times: Any,
        values: Any,
        unit: str | None,
        origin: np.datetime64 | None,
        errors: Any = None,
        covariates: Any = None,
        inputs: Inputs | None = None,
    ) -> "TimeSeries":
        """Make a series from times that are already numbers of `unit` since `origin`.

        Args:
            times: strictly increasing numbers, shape (n,).
            values: observed values, shape (n,) or (n, D).
            unit: the unit in which the times are counted, or None.
            origin: the date of time zero in UTC, or None.
            errors: standard deviations of the values, or None.
            covariates: the covariates of the series, or None.
            inputs: the inputs, whose times are numbers too, or None.

        Returns:
            The series.
        """
        series = cls(times, values, errors=errors, covariates=covariates, inputs=inputs)
        series.unit, series.origin = unit, origin
        return series

    def dates(self, times: Any) -> np.ndarray:
        """Convert times of this series to dates.

        Args:
            times: numbers of `unit` since `origin`, shape (n,) or a scalar.

        Returns:
            The dates as datetime64 in UTC, shape (n,).

        Raises:
            ValueError: if the series was not made from dates.
        """
        if self.unit is None or self.origin is None:
            raise ValueError("the times of this series were given as numbers, not as dates")
        return as_dates(times, self.unit, self.origin)

    def axis(self, times: Any) -> np.ndarray:
        """Convert times for the axis of a plot.

        Args:
            times: numbers of `unit` since `origin`.

        Returns:
            Dates if the series was made from dates; otherwise the numbers unchanged.
        """
        return np.asarray(times) if self.origin is None else self.dates(times)

    def numbers(self, times: Any, name: str = "times") -> np.ndarray:
        """Convert dates or durations to times of this series.

        Args:
            times: dates, durations or numbers; numbers are not changed. Dates may be texts such as "2024-03-01" where
                the series has dates.
            name: what an error message calls the argument.

        Returns:
            The times as float64 numbers of `unit` since `origin`.

        Raises:
            ValueError: if dates are given for a series that was made from numbers or durations.
        """
        texts = self.origin is not None and np.asarray(times).dtype.kind in "UT"
        if not (texts or are_dates(times)):
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
        errors: Sequence[str] | str | None = None,
        unit: str | None = None,
        origin: Any = None,
        decimal: str | None = None,
        date_order: str | None = None,
        inputs: Sequence[str] | str | None = None,
        input_kind: Any = "linear",
    ) -> "TimeSeries":
        """Read a series from a CSV file with a header.

        The encoding, the separator of the columns, decimal commas, comment lines (# or %) and the form of dates are
        found out; `series.source.found` says what they are. Empty cells and texts such as NA or nan are missing values.

        Args:
            path: the file; one that ends in .gz, .bz2 or .xz is decompressed.
            time: name of the time column.
            values: name or names of the value columns, by default all columns but the time, the errors and the inputs.
            errors: name or names of the columns with the standard deviations of the values, in the order of `values`.
            unit: give a unit, such as "D", "month" or "s", if the time column holds dates.
            origin: the date that becomes time zero, by default the first date.
            decimal: "." or ",", where the file does not tell whether 1,234 is a decimal number.
            date_order: "DMY" or "MDY", where the file does not tell whether the day or the month comes first.
            inputs: name or names of columns with inputs, sampled at the times of the rows: an empty cell is no sample,
                or no impulse. A row may have inputs and no values.
            input_kind: "linear" (the default), "previous" or "impulse", as in `Inputs`, or one for each of the inputs.

        Returns:
            The series.

        Raises:
            ValueError: with the line and the column if the file cannot be read, such as for a row with more fields
                than the header.
        """
        acting, how = input_names(inputs), {"decimal": decimal, "date_order": date_order}
        read = read_csv(path, time, values, errors, dated=unit is not None, inputs=acting, **how)
        try:
            series = cls(read.times, read.values, errors=read.errors, unit=unit, origin=origin)
        except ValueError as error:
            raise ValueError(read.source.told(str(error)) if read.source else str(error)) from None
        series.source = read.source
        return series.with_columns(read.inputs, acting, input_kind)

    @classmethod
    def from_dataframe(
        cls,
        frame: Any,
        time: str = "t",
        values: Sequence[str] | str | None = None,
        *,
        errors: Sequence[str] | str | None = None,
        unit: str | None = None,
        origin: Any = None,
        source: str = "the table",
        inputs: Sequence[str] | str | None = None,
        input_kind: Any = "linear",
    ) -> "TimeSeries":
        """Read a series from a pandas table.

        Args:
            frame: a pandas DataFrame.
            time: name of the time column, or of the index.
            values: name or names of the value columns, by default all columns but the time, the errors and the inputs.
            errors: name or names of the columns with the standard deviations of the values, in the order of `values`.
            unit: the unit in which to count the times, such as "D" or "s", if they are dates or durations.
            origin: the date that becomes time zero, by default the first date.
            inputs: name or names of columns with inputs, sampled at the times of the rows: an empty cell is no sample,
                or no impulse. A row may have inputs and no values.
            input_kind: "linear" (the default), "previous" or "impulse", as in `Inputs`, or one for each of the inputs.
            source: what an error message calls the table.

        Returns:
            The series.
        """
        acting = input_names(inputs)
        read = read_frame(frame, time, values, errors, unit is not None, source, inputs=acting)
        series = cls(read.times, read.values, errors=read.errors, unit=unit, origin=origin)
        return series.with_columns(read.inputs, acting, input_kind)


def as_covariates(given: Any) -> dict[str, float]:
    """Return covariates as floats by name, or raise a ValueError that names the one that is no finite number."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(f"covariates must be a mapping of names to numbers, such as {{'weight': 70.0}}, got {given!r}")
    for name, value in given.items():
        if not (isinstance(name, str) and is_finite(value)):
            raise ValueError(
                f"the covariate {name!r} must be one finite number under a name, got {value!r}; write groups as 0 and 1"
            )
    return {name: float(value) for name, value in given.items()}


def _as_times(times: Any, unit: str | None, origin: Any) -> tuple[np.ndarray, np.datetime64 | None]:
    if unit is not None:
        return as_numbers("times", times, unit, origin)
    if are_dates(times):
        raise ValueError("times are dates; say in which unit to count them: unit='D' for days, 'h', 'min', 's', …")
    if origin is not None:
        raise ValueError("origin= goes with unit=, where times are dates")
    return as_floats("times", times), None


def _as_errors(errors: Any, t: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """Return the standard deviations as a read-only array (n, D), after checking them."""
    sd = as_floats("errors", errors, missing=True)
    sd = sd[:, None] if sd.ndim == 1 else sd
    if sd.shape != observed.shape:
        raise ValueError(
            f"errors must have the shape of the values, {observed.shape}, got {np.shape(errors)}; give one standard "
            "deviation for each value, such as np.full_like(values, 0.1) where all are alike"
        )
    for bad, what in ((np.isnan(sd) & observed, "missing"), (np.isinf(sd), "infinite"), (sd < 0.0, "negative")):
        if bad.any():
            i, j = np.argwhere(bad)[0]
            raise ValueError(
                f"errors[{i}, {j}] is {what} ({sd[i, j]}) at time {shown(t[i])}; errors are standard deviations: give "
                "a number that is not negative for each value, or make the value NaN"
            )
    sd.flags.writeable = False
    return sd


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
        raise ValueError(f"{both}; average repeated observations, or give them as separate columns of values")
