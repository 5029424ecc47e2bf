"""The paper's convergence panels: the evidence bound against iterations, CVI-DP and VDP, one panel a process.

    python benchmarks/convergence.py --data DIR [--fold 0] [--out out/convergence]

CVI-DP runs with the paper's ρ; VDP with its ω as the paper states it (plain), and with safeguarded steps. The dotted
line is the exact evidence of a scalar state. A table gives iterations until within 0.1 nats of the best bound that the
method reaches, seconds without compilation, and milliseconds an iteration.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import girsanov as gv
from girsanov.baselines import exact_smoother
from girsanov.paper.data import PROCESSES, Fold, inference_model, load_fold
from girsanov.paper.settings import experiment
from girsanov.paper.tasks import stated_omega

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for a run as a script

_CLOSE = 0.1  # nats
_ITERATIONS = 1000
_STYLES = {"CVI-DP": "C1", "VDP plain": "C7", "VDP safeguarded": "C0"}


class Trace(NamedTuple):
    method: str
    dt: float
    elbo: np.ndarray
    status: str
    seconds: float

    @property
    def needed(self) -> int | None:
        """Iterations until it stays within 0.1 nats of its best; None where it ends below that."""
        short = np.flatnonzero(self.elbo < self.elbo.max() - _CLOSE)
        last = short[-1] + 1 if len(short) else 0
        return int(last) if last < len(self.elbo) else None


def methods(process: str, dt: float) -> dict[str, gv.CVIDP | gv.VDP]:
    limit = {"max_iterations": _ITERATIONS}
    plain = gv.VDP(stated_omega(process, dt), solver="euler", safeguard=False, begin="prior", **limit)
    return {
        "CVI-DP": gv.CVIDP(experiment(process)["inference"]["rho"], **limit),
        "VDP plain": plain,
        "VDP safeguarded": gv.VDP(begin="prior", **limit),
    }


def run(process: str, fold: Fold, dt: float) -> list[Trace]:
    traces = []
    for name, method in methods(process, dt).items():
        for _ in range(2):  # the second run is without compilation
            post = gv.infer(inference_model(process, fold), fold.train, dt, fold.span, method=method, progress=False)
        traces.append(Trace(name, dt, post.history.elbo, post.status, post.seconds))
    return traces


def panel(axis, process: str, traces: list[Trace], evidence: float | None) -> None:
    for t in traces:
        line = "-" if t.dt == 0.01 else "--"
        shown = np.where(np.isfinite(t.elbo), t.elbo, np.nan)
        axis.plot(np.arange(len(shown)) + 1, -shown, line, color=_STYLES[t.method], label=f"{t.method}, dt {t.dt:g}")
    if evidence is not None:
        axis.axhline(-evidence, color="k", linestyle=":", linewidth=1.0, label="exact evidence")
    axis.set(
        xscale="log", yscale="log", title=process.replace("_", " "), xlabel="iteration", ylabel="minus bound (nats)"
    )
    low = min(-t.elbo.max() for t in traces)
    axis.set_ylim(0.9 * low, 1e7)


def draw(results: dict[str, tuple[list[Trace], float | None]], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
    for axis, (process, (traces, evidence)) in zip(axes.flat, results.items(), strict=False):
        panel(axis, process, traces, evidence)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    out.parent.mkdir(parents=True, exist_ok=True)
    for kind in ("png", "pdf"):
        figure.savefig(out.with_suffix(f".{kind}"), dpi=160)


def as_table(results: dict[str, tuple[list[Trace], float | None]]) -> Table:
    table = Table(title=f"Iterations until within {_CLOSE} nats of the method's own best bound")
    for name in ("process", "method", "dt", "best ELBO", "exact", "iterations", "seconds", "ms an iteration", "status"):
        table.add_column(name, justify="left" if name in ("process", "method", "status") else "right", no_wrap=True)
    for process, (traces, evidence) in results.items():
        for t in traces:
            needed = "not kept" if t.needed is None else str(t.needed)
            each = 1e3 * t.seconds / max(1, len(t.elbo) - 1)
            exact = "–" if evidence is None else f"{evidence:.3f}"
            figures = [f"{t.dt:g}", f"{t.elbo.max():.4g}", exact, needed, f"{t.seconds:.3f}", f"{each:.2f}"]
            table.add_row(process, t.method, *figures, t.status)
        table.add_section()
    return table


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the data sets")
    parser.add_argument("--fold", type=int, default=0)
    parser.add_argument("--dt", type=float, nargs="+", default=[0.01, 0.001])
    parser.add_argument("--out", type=Path, default=Path("out/convergence"), help="figure, without its ending")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    results = {}
    for process in track(PROCESSES, "processes"):
        try:
            fold = load_fold(options.data, process, options.fold)
        except ValueError as error:
            print(f"convergence: {error}", file=sys.stderr)
            return 2
        traces = [t for dt in options.dt for t in run(process, fold, dt)]
        evidence = None
        if process != "van_der_pol":
            evidence = exact_smoother(inference_model(process, fold), fold.train, dt=0.01, span=fold.span).log_evidence
        results[process] = traces, evidence
    console = Console()
    Console(width=None if console.is_terminal else 160).print(as_table(results))
    draw(results, options.out)
    console.print(f"figure written to {options.out}.png and .pdf")
    return 0


if __name__ == "__main__":
    sys.exit(main())
