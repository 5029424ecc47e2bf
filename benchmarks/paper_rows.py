"""Rows of the paper's tables fold by fold in this process: the tasks of `girsanov reproduce`, and what they took."""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from girsanov.paper import tasks
from girsanov.paper.data import FOLDS, load_fold
from girsanov.paper.explain import explain
from girsanov.paper.plan import STEPS
from girsanov.paper.settings import PROCESSES, printed
from girsanov.paper.tables import make_cell

_COLUMNS = ("process", "dt", "NLPD", "paper", "apart", "in its sd", "ELBO", "iterations (most)", "seconds", "ended")
_LEFT = ("process", "iteration", "ended", "learnt (mean)")


def parse(doc: str, argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the data sets")
    parser.add_argument("--dt", type=float, nargs="+", default=list(STEPS), help="step sizes")
    parser.add_argument("--process", nargs="+", default=list(PROCESSES), choices=PROCESSES, help="rows to run")
    return parser.parse_args(argv)


def answers(table: str, row: str, data: Path, process: str, dt: float) -> list[dict[str, Any]]:
    """One a fold."""
    task = getattr(tasks, table)
    settings = {"data": str(data), "process": process, "row": row, "dt": dt, "changes": {}}
    return [task(**settings, fold=i) for i in range(FOLDS)]


def figures(values: list[dict[str, Any]], paper: Any, before: str) -> list[str]:
    """The cells from the NLPD on; `before` is what the names of the answers begin with."""
    cell = make_cell(values, f"{before}nlpd", paper)
    apart = "–" if cell.paper is None else f"{cell.mean - cell.paper[0]:+.4f}, {cell.sd - cell.paper[1]:+.4f}"
    units = "–" if cell.apart is None else f"{cell.apart:+.2f}"
    elbo, iterations = (np.array([v[f"{before}{k}"] for v in values]) for k in ("elbo", "iterations"))
    ended = [v[f"{before}status"] for v in values]
    statuses = ", ".join(f"{ended.count(s)} {s}" for s in sorted(set(ended)))
    seconds = sum(v[f"{before}seconds"] for v in values)
    counts = f"{iterations.mean():.1f} ({iterations.max()})"
    return [
        f"{cell.mean:.4f} ± {cell.sd:.4f}", cell.printed, apart, units, f"{elbo.mean():.6g}", counts, f"{seconds:.1f}",
        statuses,
    ]  # fmt: skip


def learnt(values: list[dict[str, Any]]) -> str:
    """Mean values over the folds; a phase in (−π, π], since any period is as good as another."""
    texts = []
    for path in values[0]["learnt"]:
        name = path.removeprefix("drift.")
        found = np.array([v["learnt"][path] for v in values])
        found = np.angle(np.exp(1j * found)) if name == "phase" else found
        texts.append(f"{name} {found.mean():.3f}")
    return ", ".join(texts)


def run(doc: str, table: str, row: str, argv: list[str] | None, *, kinds: dict[str, str], apart: float = np.inf) -> int:
    """Print the row. `kinds` are its versions, by what the names of their answers begin with; a sentence says why where
    a mean differs by more than `apart`."""
    options = parse(doc, argv)
    try:
        for process in options.process:
            load_fold(options.data, process, 0)
    except ValueError as error:
        print(f"{table} {row}: {error}", file=sys.stderr)
        return 2
    extra = (["iteration"] if len(kinds) > 1 else []) + (["learnt (mean)"] if table == "table2" else [])
    shown = Table(title=f"{table}, {row}: NLPD, mean ± population sd over {FOLDS} folds; seconds of all folds")
    for name in (*_COLUMNS, *extra):
        shown.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True)
    sentences = []
    for process in options.process:
        for dt in options.dt:
            values = answers(table, row, options.data, process, dt)
            paper = printed(table).get(f"{row}@{dt:g}", {}).get(process)
            for label, before in kinds.items():
                more = ([label] if len(kinds) > 1 else []) + ([learnt(values)] if table == "table2" else [])
                shown.add_row(process, f"{dt:g}", *figures(values, paper, before), *more)
            cell = make_cell(values, "nlpd", paper)
            if cell.paper is not None and abs(cell.mean - cell.paper[0]) > apart:
                why = explain(row, cell, values, limit=apart / cell.paper[1])
                sentences.append(f"{process}, dt {dt:g}: printed {cell.printed}; {why}")
        shown.add_section()
    terminal = Console()
    console = Console(width=None if terminal.is_terminal else 190)
    console.print(shown)
    for sentence in sentences:
        console.print(sentence)
    return 0
