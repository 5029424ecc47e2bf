"""CVI-DP rows of the paper's Table 1: NLPD of held-out observations, mean and spread over five folds.

    python benchmarks/table1_cvi.py --data DIR [--dt 0.01 0.005 0.001] [--expected paper_tables.json]

DIR is a folder with the authors' data sets. With the paper's printed values (`--expected`, or the file
`../expected/paper_tables.json` beside DIR) each row also shows them and the difference.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import girsanov as gv
from girsanov.experiments.data import FOLDS, PROCESSES, Fold, inference_model, load_fold


class Row(NamedTuple):
    """Results of one process at one step size, an entry a fold."""

    nlpd: np.ndarray
    elbo: np.ndarray
    iterations: np.ndarray
    unfinished: list[int]  # folds whose run did not converge
    seconds: float  # all folds, compilation included


def run_folds(process: str, folds: list[Fold], dt: float) -> Row:
    begun = time.perf_counter()
    posts = [gv.infer(inference_model(process, f), f.train, dt=dt, span=f.span, progress=False) for f in folds]
    seconds = time.perf_counter() - begun
    return Row(
        np.array([p.nlpd(f.test) for p, f in zip(posts, folds, strict=True)]),
        np.array([p.elbo for p in posts]),
        np.array([len(p.history) - 1 for p in posts]),
        [i for i, p in enumerate(posts) if not p.converged],
        seconds,
    )


def cells(process: str, dt: float, row: Row, printed: dict | None) -> list[str]:
    mean, sd = row.nlpd.mean(), row.nlpd.std()
    paper, difference = "–", "–"
    if printed is not None:
        paper = f"{printed['mean']:.3f} ± {printed['sd']:.3f}"
        difference = f"{mean - printed['mean']:+.4f}, {sd - printed['sd']:+.4f}"
    iterations = f"{row.iterations.mean():.1f} ({row.iterations.max()})"
    status = f"not converged: fold {', '.join(map(str, row.unfinished))}" if row.unfinished else "converged"
    figures = [f"{mean:.4f} ± {sd:.4f}", paper, difference, f"{row.elbo.mean():.4f}", iterations]
    return [process, f"{dt:g}", *figures, f"{row.seconds:.1f}", status]


def find_printed(data: Path, expected: Path | None) -> dict:
    """The paper's CVI-DP figures by step size ("cvi_dp@0.01") and process; empty where there is no file."""
    path = expected or data.resolve().parent / "expected" / "paper_tables.json"
    if expected is None and not path.is_file():
        return {}
    try:
        return json.loads(path.read_text())["table1_inference"]
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path} does not hold the paper's table (field table1_inference): {error!r}") from None


def make_table() -> Table:
    table = Table(title="Table 1, CVI-DP: NLPD, mean ± population sd over five folds")
    for name in ("process", "dt", "NLPD", "paper", "difference", "ELBO", "iterations (most)", "seconds", "status"):
        table.add_column(name, justify="left" if name in ("process", "status") else "right", no_wrap=True)
    return table


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the data sets")
    parser.add_argument("--dt", type=float, nargs="+", default=[0.01, 0.005, 0.001], help="step sizes")
    parser.add_argument("--expected", type=Path, metavar="FILE", help="the paper's printed values, JSON")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    try:
        printed = find_printed(options.data, options.expected)
        data = {p: [load_fold(options.data, p, i) for i in range(FOLDS)] for p in PROCESSES}
    except ValueError as error:
        print(f"table1_cvi: {error}", file=sys.stderr)
        return 2
    table = make_table()
    for process, folds in data.items():
        for dt in options.dt:
            row = run_folds(process, folds, dt)
            table.add_row(*cells(process, dt, row, printed.get(f"cvi_dp@{dt:g}", {}).get(process)))
        table.add_section()
    console = Console()
    Console(width=None if console.is_terminal else 140).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
