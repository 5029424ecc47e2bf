"""What the bound's parameters are off by: the bound, the exact evidence and particles on the paper's scalar processes.

    python -m benchmarks.bias --data DIR [--dt 0.02] [--folds 0] [--only double_well sine]

DIR is a folder with the authors' data sets. What is learnt, and from which start, is as in the paper's table 2. The
bias is the variational estimate minus the exact one, in standard errors of the latter; `apart` is the estimate by
particles minus the exact one in the same unit, beside its Monte Carlo error. A dagger: the fit has not converged.
"""

import argparse
import time
import warnings
from pathlib import Path

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import girsanov as gv
from benchmarks.exact_gap import SCALAR
from girsanov.paper.data import learning_model, load_fold

COLUMNS = (
    "process", "fold", "parameter", "bound", "exact", "particles", "bias", "apart", "MC error", "log evidence − bound",
    "seconds",
)  # fmt: skip


def fits(process: str, data: Path, fold: int, dt: float) -> dict[str, gv.Fit]:
    """The three fits of one fold; the last two start from the first."""
    given = load_fold(data, process, fold)
    model, trainable = learning_model(process, given)
    options = {"trainable": trainable, "progress": False}
    found = {"bound": gv.learn(model, given.train, dt, given.span, **options)}
    options |= {"resume": found["bound"]}
    for name in ("exact", "particles"):
        key = jax.random.key(fold)
        found[name] = gv.learn(model, given.train, dt, given.span, objective=name, key=key, **options)
    return found


def value_of(fit: gv.Fit, entry: str) -> str:
    value = float(np.ravel(fit.parameters[entry])[0])
    error = (fit.standard_errors or {}).get(entry, float("nan"))
    return f"{value:.4f} ± {error:.4f}" + ("" if fit.converged else " †")


def cells(process: str, fold: int, found: dict[str, gv.Fit], seconds: float) -> list[list[str]]:
    exact, particles = found["exact"], found["particles"]
    assert exact.evidence is not None and particles.evidence is not None
    rows = []
    for entry in exact.evidence.variational:
        unit = (exact.standard_errors or {}).get(entry, float("nan"))
        apart = float(np.ravel(particles.parameters[entry])[0] - np.ravel(exact.parameters[entry])[0]) / unit
        noise = particles.evidence.monte_carlo.get(entry, float("nan"))
        rows.append([
            process, str(fold), entry, *(value_of(found[name], entry) for name in ("bound", "exact", "particles")),
            f"{exact.evidence.bias.get(entry, float('nan')):+.3f}", f"{apart:+.3f}", f"{noise:.3f}",
            f"{exact.evidence.value - exact.elbo:.3f}", f"{seconds:.0f}",
        ])  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the authors' data sets")
    parser.add_argument("--dt", type=float, default=0.02, help="step size")
    parser.add_argument("--folds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", choices=SCALAR, default=list(SCALAR), metavar="PROCESS")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", message="learn has not converged|the step of")
    table = Table(title=f"Parameters that maximise the bound and the evidence, dt = {given.dt:g}")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("process", "parameter") else "right", no_wrap=True)
    for process in given.only:
        for fold in given.folds:
            begun = time.perf_counter()
            found = fits(process, given.data, fold, given.dt)
            for row in cells(process, fold, found, time.perf_counter() - begun):
                print(*row, sep="  ", flush=True)
                table.add_row(*row)
    console = Console()
    Console(width=None if console.is_terminal else 190).print(table)


if __name__ == "__main__":
    main()
