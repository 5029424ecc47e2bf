"""Annealed importance sampling against the exact evidence, and a neural SDE against CVI-DP, on the authors' data.

    python benchmarks/evidence.py --data DIR [--steps 200] [--iterations 1500]

The paper's own setting of the first is --steps 8000 (hours; with --checkpoint DIR it survives an interruption).
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import girsanov as gv
from girsanov.baselines import annealed_importance_sampling, exact_smoother, neural_sde
from girsanov.paper.data import inference_model, load_fold


def annealing_table(options: argparse.Namespace) -> Table:
    table = Table(title=f"Annealed importance sampling, fold 0, dt {options.dt:g}, J = {options.steps}, three runs")
    for name in ("process", "log evidence", "error", "exact", "off, in errors", "CVI-DP's bound", "seconds"):
        table.add_column(name, justify="left" if name == "process" else "right", no_wrap=True)
    for process in ("ou", "double_well"):
        fold = load_fold(options.data, process, 0)
        model = inference_model(process, fold)
        begun = time.perf_counter()
        file = None if options.checkpoint is None else options.checkpoint / f"{process}-{options.steps}.npz"
        ais = annealed_importance_sampling(
            model, fold.train, options.dt, fold.span, key=jax.random.key(0), steps=options.steps, checkpoint=file,
            progress=False,
        )  # fmt: skip
        seconds = time.perf_counter() - begun
        exact = exact_smoother(model, fold.train, options.dt, fold.span).log_evidence
        post = gv.infer(model, fold.train, dt=options.dt, span=fold.span, progress=False)
        error = float(ais.standard_error or np.nan)
        off = f"{(float(ais.log_evidence or np.nan) - exact) / error:+.2f}"
        cells = [f"{ais.log_evidence:.3f}", f"{error:.3f}", f"{exact:.3f}", off, f"{post.elbo:.3f}", f"{seconds:.0f}"]
        table.add_row(process, *cells)
    return table


def neural_table(options: argparse.Namespace) -> Table:
    """Bounds of a neural SDE as it learns, beside the seconds that CVI-DP takes, compilation included in both."""
    dt = 2.0 * options.dt
    table = Table(title=f"Neural SDE, double well, fold 0, dt {dt:g}")
    for name in ("method", "iterations", "bound", "NLPD", "mean off CVI-DP", "std off CVI-DP", "seconds"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    fold = load_fold(options.data, "double_well", 0)
    model = inference_model("double_well", fold)
    ours = gv.infer(model, fold.train, dt=dt, span=fold.span, progress=False)
    vdp = gv.infer(model, fold.train, dt=dt, span=fold.span, method=gv.VDP(), progress=False)

    def row(name: str, post: Any, iterations: int, seconds: float) -> None:
        off = [f"{np.abs(a - b).mean():.3f}" for a, b in ((post.mean, ours.mean), (post.std, ours.std))]
        table.add_row(name, str(iterations), f"{post.elbo:.1f}", f"{post.nlpd(fold.test):.3f}", *off, f"{seconds:.1f}")

    row("CVI-DP", ours, len(ours.history) - 1, ours.seconds)
    row("VDP", vdp, len(vdp.history) - 1, vdp.seconds)
    network, done, seconds = None, 0, 0.0
    for until in [n for n in (50, 150, 500, 1500, 5000) if n <= options.iterations]:
        fit = neural_sde(
            model, fold.train, dt, fold.span, key=jax.random.key(done), iterations=until - done, start=network,
            learning_rate=0.01 * 0.999**done, samples=200, progress=False,
        )  # fmt: skip
        network, done, seconds = fit.network, until, seconds + fit.history.seconds[-1]
        row("neural SDE", fit, until, seconds)
    return table


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the data sets")
    parser.add_argument("--dt", type=float, default=0.01, help="step of the grid (twice that for the neural SDE)")
    parser.add_argument("--steps", type=int, default=200, help="rungs J of the annealing")
    parser.add_argument("--iterations", type=int, default=1500, help="of the neural SDE")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="folder for the annealing's state")
    options = parser.parse_args(argv)
    try:
        load_fold(options.data, "ou", 0)
    except ValueError as error:
        print(f"evidence: {error}", file=sys.stderr)
        return 2
    terminal = Console()
    console = Console(width=None if terminal.is_terminal else 150)
    for make in (annealing_table, neural_table):
        console.print(make(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
