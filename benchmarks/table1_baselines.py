"""Baseline rows of the paper's Table 1: SMC, optimal Gaussian, GPR, beside the exact smoother and the printed values.

    python benchmarks/table1_baselines.py --data DIR [--dt 0.01] [--out out/paper]

Particles are guided by CVI-DP's posterior. For scalar states their scores are compared with the exact smoother's, in
units of their own Monte Carlo error. For van der Pol, where the paper's particles did not converge, a second table
shows what guiding and doubling the particles change. The tasks are those of `girsanov reproduce table1`, and results
that are in the folder already are not made again.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import girsanov as gv
from girsanov.baselines import particle_smoother
from girsanov.evaluation import sweep
from girsanov.paper.data import inference_model, load_fold
from girsanov.paper.plan import PARTICLES, synthetic_tasks
from girsanov.paper.settings import PROCESSES, printed

VDP_SAMPLES = 4000  # draws for van der Pol, whose particles mix more slowly
ROWS = ["particles", "exact", "gp_regression"]


def answers(options: argparse.Namespace) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Of every process and row, one a fold."""
    plan = {"data": str(options.data.resolve()), "steps": [options.dt], "processes": list(PROCESSES), "rows": ROWS}
    tasks = synthetic_tasks("table1", plan | {"particles": PARTICLES, "changes": {}})
    out: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in sweep(tasks, options.out):
        if result.value is None:
            raise ValueError(f"{result.task.name} failed: {result.error}")
        settings = result.task.settings
        out.setdefault((settings["process"], settings["row"]), []).append(result.value)
    return out


def text(values: list[dict[str, Any]], metric: str) -> str:
    numbers = np.array([v[metric] for v in values])
    return f"{numbers.mean():.3f} ± {numbers.std():.3f}"


def paper(row: str, process: str) -> str:
    mean, sd = printed("table1")[row][process]
    return f"{mean:.3f} ± {sd:.3f}"


def deviations(drawn: list[dict[str, Any]], exact: list[dict[str, Any]], before: str) -> str:
    """Difference of every fold's score from the exact one in Monte Carlo errors: root mean square, and the largest."""
    z = [(d[f"{before}nlpd"] - e[f"{before}nlpd"]) / d[f"{before}error"] for d, e in zip(drawn, exact, strict=True)]
    return f"{np.sqrt(np.mean(np.square(z))):.1f} ({np.abs(z).max():.1f})"


def baseline_table(options: argparse.Namespace, say: Any) -> Table:
    found = answers(options)
    table = Table(title=f"Table 1, baselines, dt {options.dt:g}: NLPD, mean ± population sd over five folds")
    for name in ("process", "row", "NLPD", "exact", "off, in MC errors", "MC error", "paper", "R̂", "seconds a fold"):
        table.add_column(name, justify="left" if name in ("process", "row") else "right", no_wrap=True)
    for process in PROCESSES:
        drawn, exact = found[process, "particles"], found.get((process, "exact"), [])
        rhat, seconds = f"{max(d['rhat'] for d in drawn):.3f}", f"{np.mean([d['seconds'] for d in drawn]):.0f}"
        for row, before, name in (("SMC", "", "smc"), ("optimal Gaussian", "gaussian_", "optimal_gaussian")):
            truth = [text(exact, f"{before}nlpd"), deviations(drawn, exact, before)] if exact else ["–", "–"]
            error = f"{np.mean([d[f'{before}error'] for d in drawn]):.3f}"
            cells = [text(drawn, f"{before}nlpd"), *truth, error, paper(name, process), rhat, seconds]
            table.add_row(process, row, *cells)
        regression = text(found[process, "gp_regression"], "nlpd")
        table.add_row(process, "GPR", regression, "", "", "", paper("gp_regression", process), "", "")
        table.add_section()
    return table


def guided_table(options: argparse.Namespace, say: Any) -> Table:
    """van der Pol, fold 0: bootstrap and guided particles, and twice as many of the latter."""
    table = Table(title=f"van der Pol, fold 0, dt {options.dt:g}: {VDP_SAMPLES} draws of four chains")
    for name in ("proposals", "particles", "NLPD", "MC error", "R̂", "ESS", "seconds", "ESS a second", "log evidence"):
        table.add_column(name, justify="left" if name == "proposals" else "right", no_wrap=True)
    fold = load_fold(options.data, "van_der_pol", 0)
    model = inference_model("van_der_pol", fold)
    post = gv.infer(model, fold.train, dt=options.dt, span=fold.span, progress=False)
    runs = (("bootstrap", None, 1), ("guided", post, 1), ("guided", post, 2))
    found: list[tuple[float, float]] = []  # score and error of every run
    for label, guided, times in runs:
        n = times * PARTICLES["particles"]
        draws = particle_smoother(
            model, fold.train, options.dt, fold.span, key=jax.random.key(1), particles=n, samples=VDP_SAMPLES,
            guided=guided, progress=False,
        )  # fmt: skip
        apart = [c.nlpd(fold.test) for c in draws.by_chain()]
        error = float(np.std(apart, ddof=1) / np.sqrt(len(apart)))
        found.append((draws.nlpd(fold.test), error))
        evidence = f"{draws.log_evidence:.2f} ± {draws.standard_error:.2f}"
        figures = [f"{found[-1][0]:.4f}", f"{error:.4f}", f"{draws.rhat:.3f}", f"{draws.ess:.0f}"]
        table.add_row(label, str(n), *figures, f"{draws.seconds:.0f}", f"{draws.ess / draws.seconds:.2f}", evidence)
        say(f"van der Pol, {label}, {n} particles: {draws.seconds:.0f} s")
    change, error = found[2][0] - found[1][0], float(np.hypot(found[1][1], found[2][1]))
    table.caption = f"Doubling the guided particles changes the NLPD by {change:+.4f} ± {error:.4f}"
    return table


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the data sets")
    parser.add_argument("--dt", type=float, default=0.01, help="step of the grid")
    parser.add_argument("--out", type=Path, default=Path("out/paper"), help="folder of the results")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    try:
        load_fold(options.data, "ou", 0)
    except ValueError as error:
        print(f"table1_baselines: {error}", file=sys.stderr)
        return 2
    terminal = Console()
    console = Console(width=None if terminal.is_terminal else 170)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    for make in (baseline_table, guided_table):
        console.print(make(options, say))
    return 0


if __name__ == "__main__":
    sys.exit(main())
