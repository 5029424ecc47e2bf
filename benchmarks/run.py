"""Run the benchmarks: every figure beside its target, as a table and as a JSON file.

python -m benchmarks.run [--only a d ...] [--data DIR] [--out FILE]
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import iterations, panel, scaling, smoother, startup, update
from benchmarks.measure import Figure

SCENARIOS: dict[str, tuple[str, Callable[[Path | None], Iterator[Figure]]]] = {
    "a": ("smoother against one textbook scan, N = 20 001", smoother.scenario),
    "b": ("one full update against its smoother, N = 20 001", update.scenario),
    "c": ("cost and memory as the series grows, d = 1", scaling.scenario),
    "d": ("iterations to within 1e-3 nats of the optimum", iterations.scenario),
    "e": ("a fresh process from import to posterior, double well", startup.scenario),
    "f": ("a panel of many short series against a loop over them", panel.scenario),
}
_NEED_DATA = ("d", "e")
_DEFAULT_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS), metavar="a..f")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the authors' data sets (default: ../shared/data)")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks.json"), metavar="FILE", help="JSON file")
    return parser.parse_args(argv)


def find_data(given: Path | None) -> Path | None:
    if given is None:
        return _DEFAULT_DATA if _DEFAULT_DATA.is_dir() else None
    if not given.is_dir():
        raise SystemExit(f"benchmarks: --data {given} is not a folder")
    return given


def as_table(title: str, figures: list[Figure]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("figure", overflow="fold")
    for name in ("measured", "target", "met"):
        table.add_column(name, justify="right", no_wrap=True)
    if any(f.detail for f in figures):
        table.add_column("in detail", no_wrap=True)
    for f in figures:
        target = f"≤ {f.at_most:g}" if f.at_most is not None else f"≥ {f.at_least:g}" if f.at_least is not None else ""
        met = {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[f.met]
        table.add_row(f.name, f"{f.value:.4g} {f.unit}".rstrip(), target, met, *([f.detail] if f.detail else []))
    return table


def write(path: Path, figures: list[Figure]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([{**dataclasses.asdict(f), "met": f.met} for f in figures], indent=1) + "\n")


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    data = find_data(options.data)
    console = Console()
    console = console if console.is_terminal else Console(width=140)
    if data is None and set(options.only) & set(_NEED_DATA):
        console.print("No data sets found: series are simulated with the same settings. Use --data DIR for the others.")
    load = os.getloadavg()[0]
    console.print(
        f"{os.cpu_count()} cores, load average {load:.1f}" + (": times will be too long" if load > 0.5 else "")
    )
    figures: list[Figure] = []
    for name in options.only:
        title, scenario = SCENARIOS[name]
        with console.status(f"({name}) {title}"):
            new = list(scenario(data))
        console.print(as_table(f"({name}) {title}", new))
        figures += new
        write(options.out, figures)
    with_target = [f for f in figures if f.met is not None]
    met = sum(bool(f.met) for f in with_target)
    console.print(f"{met} of {len(with_target)} targets met; figures written to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
