"""The tables of a run: outcomes by family, and by dimension and condition where a family has them."""

import math
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fuzz.cases import Outcome
from fuzz.linear import ALLOWED

_FIRST, _LAST = ("right", "wrong", "refused"), ("crashed",)
_BOUNDS = (1e4, 1e8, ALLOWED, math.inf)
_SHOWN = 12


def show(outcomes: list[Outcome], out: Path) -> None:
    console = Console()
    console = console if console.is_terminal else Console(width=140)
    names = _columns(outcomes)
    families = list(dict.fromkeys(o.family for o in outcomes))
    rows = {f: [o for o in outcomes if o.family == f] for f in families}
    console.print(_table("outcomes", "family", rows, names))
    for family in families:
        groups = dict.fromkeys(sorted({o.group for o in rows[family] if o.group}))
        if len(groups) > 1:
            parts = {g: [o for o in rows[family] if o.group == g] for g in groups}
            console.print(_table(f"{family}, in detail", "of which", parts, names))
        _show_conditions(console, family, [o for o in rows[family] if o.condition is not None], names)
    _show_messages(console, outcomes)
    failures = [o for o in outcomes if o.failed]
    for o in failures[:_SHOWN]:
        console.print(f"{o.outcome}: {out / o.case}.py  {o.message}", markup=False, highlight=False, soft_wrap=True)
    if len(failures) > _SHOWN:
        console.print(f"… and {len(failures) - _SHOWN} more in {out}")
    seconds = sum(o.seconds for o in outcomes)
    console.print(f"{len(outcomes)} cases, {len(failures)} failures; {seconds:.0f} s of computing")


def _columns(outcomes: list[Outcome]) -> list[str]:
    found = Counter(o.outcome for o in outcomes)
    return [*_FIRST, *sorted(set(found) - {*_FIRST, *_LAST}), *_LAST]


def _table(title: str, first: str, rows: dict[str, list[Outcome]], names: list[str]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for name in ("cases", *names, "worst error"):
        table.add_column(name, justify="right")
    for label, part in rows.items():
        found = Counter(o.outcome for o in part)
        table.add_row(label, str(len(part)), *(str(found[n]) if found[n] else "·" for n in names), _worst(part))
    return table


def _worst(part: list[Outcome]) -> str:
    """The largest error of the answers that claim to be right, as a multiple of what is allowed."""
    errors = [o.error for o in part if o.outcome in ("right", "wrong") and not math.isnan(o.error)]
    return f"{max(errors):.2g}" if errors else "–"


def _show_conditions(console: Console, family: str, part: list[Outcome], names: list[str]) -> None:
    if not part:
        return
    rows, low = {}, 0.0
    for high in _BOUNDS:
        label = f"condition ≤ {high:.0e}" if math.isfinite(high) else f"beyond {low:.0e}"
        rows[label] = [o for o in part if o.condition is not None and low < o.condition <= high]
        low = high
    console.print(_table(f"{family}, by the condition of the chain's precision", "of which", rows, names))
    solvable = [o for o in part if o.condition is not None and o.condition <= ALLOWED]
    right = sum(o.outcome == "right" for o in solvable)
    share = f" ({100 * right / len(solvable):.1f} %)" if solvable else ""
    console.print(
        f"{family}: {right} of {len(solvable)} right{share} where float64 allows it (condition ≤ {ALLOWED:.0e})\n"
    )


def _show_messages(console: Console, outcomes: list[Outcome]) -> None:
    """The commonest words of those that gave up."""
    found = Counter(
        f"{o.family}, {o.outcome}: {o.message[:110]}" for o in outcomes if o.outcome != "right" and not o.failed
    )
    for text, count in found.most_common(6):
        console.print(f"{count:5d} × {text}", markup=False, highlight=False, soft_wrap=True)
