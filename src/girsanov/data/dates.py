"""Convert dates and durations to numbers: the number of units that have passed since an origin."""

import datetime
from typing import Any

import numpy as np

from girsanov._core.checks import as_floats

UNITS = ("us", "ms", "s", "min", "h", "D", "W", "month", "year")
_DAYS = {"month": 31, "year": 366}  # at most
_CALENDAR = {"month": "M", "year": "Y"}  # units of different lengths, by the letter of NumPy
# Dates are stored as 64-bit whole numbers of nanoseconds since 1970. Beyond this number they would wrap around.
_REACH = 9.2e18
_YEARS = "1679 and 2261"


def are_dates(values: Any) -> bool:
    """Return whether the values are dates or durations of NumPy, pandas or the standard library."""
    a = np.asarray(values)
    return a.dtype.kind in "mM" or (
        a.dtype.kind == "O" and a.size > 0 and isinstance(a.flat[0], datetime.date | datetime.timedelta)
    )


def check_unit(unit: Any) -> None:
    """Raise a ValueError unless `unit` is one of UNITS."""
    if unit not in UNITS:
        raise ValueError(f"unit must be one of {', '.join(UNITS)}, got {unit!r}")


def as_numbers(name: str, values: Any, unit: Any, origin: Any = None) -> tuple[np.ndarray, np.datetime64 | None]:
    """Return the number of units from the origin to each date, and the origin in UTC.

    The origin is the first date by default. Months and years are those of the calendar: the first days of
    months are whole numbers of months apart. Durations are divided by the unit, and their origin is None. Dates without
    a time zone are read as UTC, and text as ISO 8601 (2024-03-01, 2024-03-01T12:30). NaT becomes NaN.
    """
    import pandas as pd

    check_unit(unit)
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        i = int(np.argmax(np.ma.getmaskarray(values)))
        raise ValueError(f"{name}[{i}] is masked; every date must be given (drop that row)")
    a = np.atleast_1d(np.asarray(values))
    if a.size == 0:
        raise ValueError(f"{name} are empty: give at least one date")
    if a.dtype.kind in "biufc":
        raise ValueError(f"unit= and origin= are for dates; {name} are numbers already, so leave them out")
    if a.dtype.kind == "m" or (a.dtype.kind == "O" and isinstance(a[0], datetime.timedelta)):
        if origin is not None:
            raise ValueError(f"origin= is for dates; {name} are durations")
        if unit in _CALENDAR:
            raise ValueError(f"unit={unit!r} is for dates: a {unit} has no fixed length; count {name} in 'D', days")
        return np.asarray(pd.to_timedelta(a) / pd.Timedelta(1, unit), np.float64), None
    stamps = _stamps(name, a)
    first = stamps[0] if origin is None else _stamps("origin", np.atleast_1d(np.asarray(origin)))[0]
    start = np.datetime64(first.tz_localize(None), "ns")
    if unit in _CALENDAR:
        return _calendar(np.asarray(stamps.tz_localize(None), "datetime64[ns]"), unit, start), start
    return np.asarray((stamps - first) / pd.Timedelta(1, unit), np.float64), start


def _calendar(stamps: np.ndarray, unit: str, origin: np.datetime64) -> np.ndarray:
    """Return calendar months or years since the origin: whole ones, and the share that has passed of the last."""
    whole, share = _split(stamps, unit)
    first, start = _split(np.atleast_1d(origin), unit)
    passed = (whole - first).astype(np.float64) + (share - start)
    passed[np.isnat(stamps)] = np.nan
    return passed


def _split(stamps: np.ndarray, unit: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the month or year of each date since 1970, and the share of it that has passed."""
    letter = _CALENDAR[unit]
    units = stamps.astype(f"datetime64[{letter}]")
    begin, end = (u.astype("datetime64[ns]").astype(np.int64) for u in (units, units + np.timedelta64(1, letter)))
    return units.astype(np.int64), (stamps.astype(np.int64) - begin) / (end - begin)


def _calendar_dates(times: np.ndarray, unit: str, origin: np.datetime64) -> np.ndarray:
    """Return the dates so many calendar months or years after the origin: the inverse of `_calendar`."""
    letter = _CALENDAR[unit]
    first, start = _split(np.atleast_1d(origin).astype("datetime64[ns]"), unit)
    passed = times + start
    whole = np.floor(passed)
    units = (first + whole.astype(np.int64)).astype(f"datetime64[{letter}]")
    begin, end = (u.astype("datetime64[ns]").astype(np.int64) for u in (units, units + np.timedelta64(1, letter)))
    dates = (begin + np.round((passed - whole) * (end - begin)).astype(np.int64)).astype("datetime64[ns]")
    # Rounding moves a date by less than a thousandth of a second: one so near to a whole second is that second.
    near = (dates + np.timedelta64(500, "ms")).astype("datetime64[s]").astype("datetime64[ns]")
    return np.where(np.abs(dates - near) < np.timedelta64(1, "ms"), near, dates)


def as_dates(times: Any, unit: Any, origin: np.datetime64) -> np.ndarray:
    """Convert numbers of units after the origin back to dates (datetime64, UTC)."""
    import pandas as pd

    t = np.atleast_1d(as_floats("times", times))
    one: Any = pd.Timedelta(_DAYS.get(unit, 1), "D" if unit in _DAYS else unit)
    nanoseconds = np.float64(origin.astype("datetime64[ns]").astype(np.int64)) + t * (one / pd.Timedelta(1, "ns"))
    if not (np.abs(nanoseconds) < _REACH).all():
        i = int(np.argmin(np.abs(nanoseconds) < _REACH))
        raise ValueError(f"times[{i}] = {t[i]:g} {unit} after {origin} is not a date between the years {_YEARS}")
    if unit in _CALENDAR:
        return _calendar_dates(t, unit, origin)
    return np.asarray(pd.Timestamp(origin) + pd.to_timedelta(t, unit=unit), "datetime64[ns]")


def _stamps(name: str, a: np.ndarray) -> Any:
    import pandas as pd

    text = a.dtype.kind in "UTS" or (a.dtype.kind == "O" and isinstance(a[0], str))
    stamps = pd.to_datetime(a, utc=True, errors="coerce", format="ISO8601" if text else None)
    bad = np.flatnonzero(np.asarray(stamps.isna()) & np.asarray(~pd.isna(a)))
    if len(bad):
        raise ValueError(
            f"{name}[{bad[0]}] = {str(a[bad[0]])!r} is not a date like 2024-03-01 or 2024-03-01T12:30; "
            "read other formats with pandas.to_datetime first"
        )
    outside = np.flatnonzero((stamps.year < 1679) | (stamps.year > 2261))
    if len(outside):
        raise ValueError(f"{name}[{outside[0]}] = {str(a[outside[0]])!r} does not lie between the years {_YEARS}")
    return stamps
