"""Checks of numbers that a user gives. The ValueError names the argument, its value and what is required."""

import datetime
import math
import warnings
from typing import Any

import numpy as np

_EXACT = 2**53  # a float64 represents every whole number up to this size exactly


def check_whole(least: int = 1, **values: Any) -> None:
    """Raise a ValueError unless every value is a whole number that is at least `least`."""
    for name, value in values.items():
        if not (is_finite(value) and int(value) == value and value >= least):
            raise ValueError(f"{name} must be a whole number ≥ {least}, got {value!r}")


def check_positive(**values: Any) -> None:
    """Raise a ValueError unless every value is a positive, finite number."""
    for name, value in values.items():
        if not (is_finite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, got {value!r}")


def is_finite(value: Any) -> bool:
    """Return whether `value` is a single finite real number."""
    if isinstance(value, str | bytes) or np.ndim(value) or np.iscomplexobj(value):
        return False
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        return False


def shown(number: Any) -> str:
    """Return the shortest text that identifies the number exactly, without a trailing ".0"."""
    return repr(float(number)).removesuffix(".0")


def as_floats(name: str, values: Any, *, missing: bool = False) -> np.ndarray:
    """Copy `values` to a new float64 array, or raise a ValueError that calls them `name`.

    With missing=True, entries that are None, masked or NA become NaN; otherwise they are an error. Text, complex
    numbers and dates are always errors. Whole numbers that float64 cannot represent are an error unless missing=True.
    """
    mask = _mask(values)
    try:
        with warnings.catch_warnings():
            # NumPy warns that a masked number in a list becomes NaN, which is what we want.
            warnings.simplefilter("ignore", UserWarning)
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
            raise ValueError(f"{name}[{place}] is masked or missing; every entry of {name} must be a number (drop it)")
        out[mask] = np.nan
    return out


def _mask(values: Any) -> np.ndarray | None:
    """Return the mask of a masked array or of a list of masked arrays; None if there is none."""
    if isinstance(values, np.ma.MaskedArray):
        return np.ma.getmaskarray(values)
    if isinstance(values, list | tuple) and any(isinstance(v, np.ma.MaskedArray) for v in values):
        try:
            return np.array([np.ma.getmaskarray(np.ma.asanyarray(v)) for v in values])
        except ValueError:  # the arrays differ in length; a later check reports that
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
        raise ValueError(
            f"{name} must be real numbers, got {a.dtype if first is None else first!r}; take the real part, a.real"
        )
    if a.dtype.kind == "b" and not missing:
        raise ValueError(f"{name} must be numbers, not True and False")


_NO_NUMBERS = (datetime.date, datetime.timedelta, str, bytes, complex)


def _check_exact(name: str, a: np.ndarray, out: np.ndarray) -> None:
    """Raise a ValueError if rounding to float64 changed a whole number.

    A time in nanoseconds since 1970 has 19 digits, but a float64 only about 16.
    """
    for i in np.flatnonzero(np.abs(out) >= _EXACT):
        if isinstance(a.flat[i], int | np.integer) and int(out.flat[i]) != int(a.flat[i]):
            raise ValueError(
                f"{name}[{i}] = {a.flat[i]} is too long for a float64, which has 16 digits; subtract the first number "
                "from all of them while they are still whole numbers"
            )


def check_positive_entries(name: str, value: np.ndarray) -> None:
    """Raise a ValueError unless every entry of the array is positive and finite."""
    bad = ~(np.isfinite(value) & (value > 0))
    if bad.any():
        raise ValueError(f"{name} must be positive and finite, got {float(value[bad].flat[0])!r}")


def check_covariance(name: str, value: np.ndarray) -> None:
    """Raise a ValueError unless `value` is a symmetric positive-definite matrix."""
    if value.ndim != 2 or value.shape[0] != value.shape[1]:
        raise ValueError(f"{name} must be a square matrix, got shape {value.shape}")
    if not np.isfinite(value).all():
        i, j = np.argwhere(~np.isfinite(value))[0]
        raise ValueError(f"{name}[{i}, {j}] is {float(value[i, j])!r}; it must be finite")
    if not np.allclose(value, value.T, rtol=1e-10, atol=0):
        i, j = np.unravel_index(np.argmax(abs(value - value.T)), value.shape)
        raise ValueError(
            f"{name} must be symmetric: [{i}, {j}] is {float(value[i, j])!r} but [{j}, {i}] is {float(value[j, i])!r}; "
            "symmetrise it with 0.5 * (a + a.T)"
        )
    smallest = np.linalg.eigvalsh(value)[0]
    if not smallest > 0:
        raise ValueError(f"{name} must be positive definite; its smallest eigenvalue is {smallest:.3g}")
