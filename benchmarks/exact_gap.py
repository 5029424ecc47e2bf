"""How far CVI-DP's bound lies below the log evidence: the exact answer on every fold of the scalar processes.

    python benchmarks/exact_gap.py --data DIR [--dt 0.01]

DIR is a folder with the authors' data sets. Both methods work on the same nodes: the grid of step dt, the training
times and the held-out times. `error` is the change of the evidence when the spatial points are refined by half.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import girsanov as gv
from girsanov.baselines import exact_smoother
from girsanov.paper.data import FOLDS, PROCESSES, Fold, inference_model, load_fold

SCALAR = tuple(p for p in PROCESSES if p != "van_der_pol")
COLUMNS = (
    "process", "fold", "log evidence", "error", "ELBO", "gap", "NLPD exact", "NLPD CVI-DP", "nodes × points", "seconds",
)  # fmt: skip


class Row(NamedTuple):
    """One fold: the exact answer and CVI-DP's."""

    evidence: float
    error: float
    elbo: float
    nlpd_exact: float
    nlpd: float
    shape: tuple[int, int]
    seconds: float  # compilation included
    converged: bool


def compare(process: str, fold: Fold, dt: float) -> Row:
    begun = time.perf_counter()
    model = inference_model(process, fold)
    exact = exact_smoother(model, fold.train, dt, fold.span, at=fold.test.times)
    post = gv.infer(model, fold.train, grid=exact.times, progress=False)
    scores = exact.nlpd(fold.test), post.nlpd(fold.test)
    nodes, points = exact.points.shape
    seconds = time.perf_counter() - begun
    return Row(exact.log_evidence, exact.error, post.elbo, *scores, (nodes, points), seconds, post.converged)


def cells(process: str, fold: int, row: Row) -> list[str]:
    gap = row.evidence - row.elbo
    mark = "" if row.converged else " *"
    return [
        process, str(fold), f"{row.evidence:.6f}", f"{row.error:.1e}", f"{row.elbo:.6f}{mark}", f"{gap:.3e}",
        f"{row.nlpd_exact:.4f}", f"{row.nlpd:.4f}", f"{row.shape[0]} × {row.shape[1]}", f"{row.seconds:.1f}",
    ]  # fmt: skip


def verdict(rows: list[tuple[str, int, Row]]) -> str:
    """Which folds have a bound above the evidence by more than the evidence's own error and rounding."""
    above = [f"{p} {i}" for p, i, r in rows if r.elbo > r.evidence + r.error + 1e-9 * abs(r.evidence)]
    unfinished = [f"{p} {i}" for p, i, r in rows if not r.converged]
    lines = [
        f"ELBO above the evidence: {', '.join(above)}" if above else "The ELBO lies below the evidence everywhere."
    ]
    if unfinished:
        lines.append(f"* CVI-DP did not converge: {', '.join(unfinished)}")
    return "\n".join(lines)


def make_table(dt: float) -> Table:
    table = Table(title=f"Exact log evidence and CVI-DP's bound, in nats, dt = {dt:g}")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "process" else "right", no_wrap=True)
    return table


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the data sets")
    parser.add_argument("--dt", type=float, default=0.01, help="step size")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    try:
        data = {p: [load_fold(options.data, p, i) for i in range(FOLDS)] for p in SCALAR}
    except ValueError as error:
        print(f"exact_gap: {error}", file=sys.stderr)
        return 2
    table, rows = make_table(options.dt), []
    for process, folds in data.items():
        for i, fold in enumerate(folds):
            row = compare(process, fold, options.dt)
            rows.append((process, i, row))
            table.add_row(*cells(process, i, row))
        gaps = [r.evidence - r.elbo for p, _, r in rows if p == process]
        table.add_row(process, "mean", *("",) * 3, f"{np.mean(gaps):.3e}", *("",) * 4)
        table.add_section()
    console = Console()
    console = Console(width=None if console.is_terminal else 140)
    console.print(table)
    console.print(verdict(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
