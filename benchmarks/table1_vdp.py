"""VDP rows of the paper's Table 1: NLPD of held-out observations, mean and spread over five folds.

    python benchmarks/table1_vdp.py --data DIR [--dt 0.01 0.005 0.001] [--expected paper_tables.json]

Two rows a cell. "plain" is the iteration as the paper states it: its ω, Euler's scheme, no safeguard, from the prior;
the best bound met in --iterations counts. "safeguarded" is the same fixed point by steps that never lower the bound,
run to convergence: what VDP itself, and not its step size, start or stopping rule, can say on this grid.
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
from girsanov.experiments.data import FOLDS, PROCESSES, Fold, inference_model, load_fold
from girsanov.experiments.tasks import stated_omega

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for a run as a script
from benchmarks.table1_cvi import find_printed


class Row(NamedTuple):
    nlpd: np.ndarray
    elbo: np.ndarray
    iterations: np.ndarray
    status: list[str]
    seconds: float


def run_folds(process: str, folds: list[Fold], dt: float, method: gv.VDP) -> Row:
    begun = time.perf_counter()
    posts = [
        gv.infer(inference_model(process, f), f.train, dt=dt, span=f.span, method=method, progress=False) for f in folds
    ]
    return Row(
        np.array([p.nlpd(f.test) for p, f in zip(posts, folds, strict=True)]),
        np.array([p.elbo for p in posts]),
        np.array([len(p.history) - 1 for p in posts]),
        [p.status for p in posts],
        time.perf_counter() - begun,
    )


def cells(process: str, dt: float, label: str, row: Row, printed: dict | None) -> list[str]:
    paper = inside = "–"
    if printed is not None:
        paper = f"{printed['mean']:.3f} ± {printed['sd']:.3f}"
        inside = f"{(row.nlpd.mean() - printed['mean']) / printed['sd']:+.2f}"
    counts = ", ".join(f"{row.status.count(s)} {s}" for s in sorted(set(row.status)))
    figures = [f"{row.nlpd.mean():.3f} ± {row.nlpd.std():.3f}", paper, inside, f"{row.elbo.mean():.4g}"]
    return [process, f"{dt:g}", label, *figures, f"{row.iterations.mean():.0f}", f"{row.seconds:.1f}", counts]


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the data sets")
    parser.add_argument("--dt", type=float, nargs="+", default=[0.01, 0.005, 0.001], help="step sizes")
    parser.add_argument("--iterations", type=int, default=1000, help="of either version, at the most")
    parser.add_argument("--expected", type=Path, metavar="FILE", help="the paper's printed values, JSON")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    try:
        printed = find_printed(options.data, options.expected)
        data = {p: [load_fold(options.data, p, i) for i in range(FOLDS)] for p in PROCESSES}
    except ValueError as error:
        print(f"table1_vdp: {error}", file=sys.stderr)
        return 2
    table = Table(title="Table 1, VDP: NLPD, mean ± population sd over five folds")
    names = ("process", "dt", "iteration", "NLPD", "paper", "in its sd", "ELBO", "iterations", "seconds", "status")
    for name in names:
        table.add_column(name, justify="left" if name in ("process", "iteration", "status") else "right", no_wrap=True)
    for process, folds in data.items():
        for dt in options.dt:
            limit = {"max_iterations": options.iterations}
            plain = gv.VDP(stated_omega(process, dt), solver="euler", safeguard=False, begin="prior", **limit)
            for label, method in (("plain", plain), ("safeguarded", gv.VDP(**limit))):
                row = run_folds(process, folds, dt, method)
                table.add_row(*cells(process, dt, label, row, printed.get(f"vdp@{dt:g}", {}).get(process)))
        table.add_section()
    console = Console()
    Console(width=None if console.is_terminal else 160).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
