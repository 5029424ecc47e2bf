"""Dates as people write them, brought into the form of ISO 8601. What could be two dates is refused, never guessed."""

import datetime
import re
from collections.abc import Callable, Sequence

ORDERS = ("DMY", "MDY")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = r"(?P<clock>[T ]\s*\d{1,2}:\d{2}.*)?"
_COMPACT = re.compile(r"(?P<y>\d{4})(?P<m>\d{2})(?P<d>\d{2})" + _CLOCK)
_FORMS = {
    "year-month-day": re.compile(r"(?P<y>\d{4})-(?P<m>\d{2})(-(?P<d>\d{2})(?P<clock>[T ].*)?)?"),
    "year/month/day": re.compile(r"(?P<y>\d{4})(?P<sign>[/.])(?P<m>\d{1,2})(?P=sign)(?P<d>\d{1,2})" + _CLOCK),
    "yearmonthday": _COMPACT,
    "day month year": re.compile(r"(?P<d>\d{1,2})[ -](?P<name>[A-Za-z]{3,9})[ -](?P<y>\d{4})" + _CLOCK),
    "in numbers": re.compile(r"(?P<a>\d{1,2})(?P<sign>[./-])(?P<b>\d{1,2})(?P=sign)(?P<y>\d{4})" + _CLOCK),
}
_NAMES = {"DMY": "day{0}month{0}year", "MDY": "month{0}day{0}year"}


def looks_compact(texts: Sequence[str]) -> bool:
    """Return whether all texts are dates such as 20240301, which are numbers too."""
    return all(_COMPACT.fullmatch(t) and _valid(int(t[:4]), int(t[4:6]), int(t[6:8])) for t in texts)


def in_iso(texts: Sequence[str], order: str | None, place: Callable[[int], str]) -> tuple[list[str], str] | None:
    """Return dates in ISO 8601, and their form in words, or None if the first is in no form that is known here.

    Args:
        texts: the dates, without blanks at their ends.
        order: "DMY" or "MDY" for dates such as 01/03/2024, or None to find out from days beyond 12.
        place: the place of text i, for messages.

    Raises:
        ValueError: with the place of a date that is of another form than the first, does not exist, or could be two.
    """
    if order is not None and order not in ORDERS:
        raise ValueError(f"date_order must be 'DMY' (day first) or 'MDY' (month first), got {order!r}")
    form = next((name for name, pattern in _FORMS.items() if pattern.fullmatch(texts[0])), None)
    if form is None:
        return None
    found = [_FORMS[form].fullmatch(text) for text in texts]
    for i, match in enumerate(found):
        if match is None:
            raise ValueError(f"{place(i)}: {texts[i]!r} is not a date of the form of the first, {texts[0]!r}")
    matches = [match for match in found if match is not None]
    if form == "year-month-day":  # the form itself; pandas reads the rest
        for i, m in enumerate(matches):
            _check(int(m["y"]), int(m["m"]), int(m["d"] or 1), texts[i], place(i))
        return list(texts), form
    if form == "in numbers":
        order = order or _order(matches, texts, place)
        form = _NAMES[order].format(matches[0]["sign"])
    out = []
    for i, m in enumerate(matches):
        year, month, day = int(m["y"]), _month(m, order), int(_part(m, "d", "a" if order == "DMY" else "b"))
        _check(year, month, day, texts[i], place(i))
        clock = (m["clock"] or "").strip().lstrip("T ")
        out.append(
            f"{year:04d}-{month:02d}-{day:02d}" + (f"T{clock.zfill(5) if len(clock) < 5 else clock}" if clock else "")
        )
    return out, form


def _part(m: re.Match, name: str, other: str) -> str:
    parts = m.groupdict()
    return parts[name] if name in parts else parts[other]


def _month(m: re.Match, order: str | None) -> int:
    parts = m.groupdict()
    if "name" in parts:
        short = parts["name"][:3].lower()
        return _MONTHS.index(short) + 1 if short in _MONTHS else 0
    return int(_part(m, "m", "b" if order == "DMY" else "a"))


def _order(matches: list[re.Match], texts: Sequence[str], place: Callable[[int], str]) -> str:
    """Return whether the day or the month comes first, by the first date that has a number beyond 12."""
    for m in matches:
        if int(m["a"]) > 12 or int(m["b"]) > 12:
            return "DMY" if int(m["a"]) > 12 else "MDY"
    a, b = int(matches[0]["a"]), int(matches[0]["b"])
    raise ValueError(
        f"{place(0)}: {texts[0]!r} may be the {a}. of month {b} or the {b}. of month {a}, and no other date tells "
        "which: give date_order='DMY' if the day comes first, or date_order='MDY' if the month does"
    )


def _valid(year: int, month: int, day: int) -> bool:
    try:
        datetime.date(year, month, day)
    except ValueError:
        return False
    return True


def _check(year: int, month: int, day: int, text: str, place: str) -> None:
    if not _valid(year, month, day):
        raise ValueError(
            f"{place}: {text!r} is not a date of the calendar (read as year {year}, month {month}, day {day})"
        )
