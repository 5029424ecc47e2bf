"""Checks of numbers that a user gives, by name: a ValueError says what was given and what is wanted."""

import datetime
import math
import warnings
from typing import Any

import numpy as np

_EXACT = 2**53  # up to here every whole number is a float64


def check_whole(least: int = 1, **values: Any) -> None:
    """Whole numbers that are not below `least`."""
    for name, value in values.items():
        if not (is_finite(value) and int(value) == value and value >= least):
            raise ValueError(f"{name} must be a whole number ≥ {least}, got {value!r}")


def check_positive(**values: Any) -> None:
    for name, value in values.items():
        if not (is_finite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, got {value!r}")


def is_finite(value: Any) -> bool:
    """Whether this is one finite real number."""
    if isinstance(value, str | bytes) or np.ndim(value) or np.iscomplexobj(value):
        return False
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        return False


def shown(number: Any) -> str:
    """The number with all its digits, and no more."""
    return repr(float(number)).removesuffix(".0")


def as_floats(name: str, values: Any, *, missing: bool = False) -> np.ndarray:
    """A float64 array of its own. What is masked or NA becomes NaN where values may be `missing`, else is an error.

    Text, complex numbers and dates are errors, and so are whole numbers that a float64 does not hold.
    """
    mask = _mask(values)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a masked number in a list becomes NaN: as it should be
            a = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers: {error}") from None
    if a.dtype.kind == "O":
        gone = np.array([_is_gone(v) for v in a.flat], bool).reshape(a.shape)
        mask = gone if mask is None else mask | gone
        a = np.where(mask, np.nan, a)
    _check_kind(name, a, missing)
    try:
        out = np.array(a, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be numbers: {error}") from None
    if a.dtype.kind in "iuO" and not missing:
        _check_exact(name, a, out)
    if mask is not None and mask.any():
        if not missing:
            place = ", ".join(map(str, np.argwhere(mask)[0]))
            raise ValueError(f"{name}[{place}] is masked or missing; every one of {name} must be a number (drop it)")
        out[mask] = np.nan
    return out


def _mask(values: Any) -> np.ndarray | None:
    """The mask of a masked array, or of a list of them."""
    if isinstance(values, np.ma.MaskedArray):
        return np.ma.getmaskarray(values)
    if isinstance(values, list | tuple) and any(isinstance(v, np.ma.MaskedArray) for v in values):
        try:
            return np.array([np.ma.getmaskarray(np.ma.asanyarray(v)) for v in values])
        except ValueError:  # of different lengths: what is wrong with that is said elsewhere
            return None
    return None


def _is_gone(value: Any) -> bool:
    return value is None or value is np.ma.masked or type(value).__name__ in ("NAType", "NaTType")


def _check_kind(name: str, a: np.ndarray, missing: bool) -> None:
    first = next((v for v in a.flat if isinstance(v, _NO_NUMBERS)), None) if a.dtype.kind == "O" else None
    if a.dtype.kind in "mM" or isinstance(first, datetime.date | datetime.timedelta):
        raise ValueError(f"{name} must be numbers, not dates or durations")
    if a.dtype.kind in "USTV" or isinstance(first, str | bytes):
        text = first if first is not None else a.flat[0] if a.size else ""
        raise ValueError(f"{name} must be numbers, not text such as {str(text)!r}; convert it with float(...)")
    if a.dtype.kind == "c" or isinstance(first, complex):
        raise ValueError(f"{name} must be real numbers, got {a.dtype if first is None else first!r}; take a.real")
    if a.dtype.kind == "b" and not missing:
        raise ValueError(f"{name} must be numbers, not True and False")


_NO_NUMBERS = (datetime.date, datetime.timedelta, str, bytes, complex)


def _check_exact(name: str, a: np.ndarray, out: np.ndarray) -> None:
    """A time in nanoseconds since 1970 has 19 digits and a float64 16: it would be moved."""
    for i in np.flatnonzero(np.abs(out) >= _EXACT):
        if isinstance(a.flat[i], int | np.integer) and int(out.flat[i]) != int(a.flat[i]):
            raise ValueError(
                f"{name}[{i}] = {a.flat[i]} is too long for a float64, which has 16 digits; subtract the first of them "
                "from all, as whole numbers"
            )
