"""CVI-DP rows of the paper's Table 2: NLPD of held-out observations after learning, mean and spread over five folds.

    python benchmarks/table2_cvi.py --data DIR [--dt 0.01 0.005 0.001] [--expected paper_tables.json]

DIR is a folder with the authors' data sets. Parameters start where the paper's do and are run to the maximum of the
bound. With the printed values (`--expected`, or the file `../expected/paper_tables.json` beside DIR) each row also
shows them and the difference in units of their standard deviation. Where the means differ by more than 0.02 a sentence
says which parameters between the start and the maximum would give the printed one.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from rich.console import Console
from rich.table import Table

import girsanov as gv
from girsanov.drifts import Drift
from girsanov.experiments.data import FOLDS, PROCESSES, Fold, inference_model, learning_model, load_fold

_EXPLAIN = 0.02
_FRACTIONS = np.linspace(0.0, 1.0, 11)


class Row(NamedTuple):
    """Results of one process at one step size, an entry a fold."""

    fits: list[gv.Fit]
    nlpd: np.ndarray
    seconds: float  # all folds, compilation included

    @property
    def elbo(self) -> np.ndarray:
        return np.array([f.elbo for f in self.fits])


def with_drift(process: str, fold: Fold, drift: Drift) -> gv.Model:
    return eqx.tree_at(lambda m: m.drift, inference_model(process, fold), drift)


def run_folds(process: str, folds: list[Fold], dt: float) -> Row:
    begun = time.perf_counter()
    fits = []
    for fold in folds:
        model, trainable = learning_model(process, fold)
        options = {"trainable": trainable, "standard_errors": False, "progress": False}
        fits.append(gv.learn(model, fold.train, dt=dt, span=fold.span, **options))
    seconds = time.perf_counter() - begun
    return Row(fits, np.array([fit.posterior.nlpd(f.test) for fit, f in zip(fits, folds, strict=True)]), seconds)


def between(start: Any, row: Row, fraction: float) -> list[Drift]:
    """A drift a fold, this far on the line from the start of learning to its end."""

    def mix(a, b):
        return (1.0 - fraction) * a + fraction * b

    drifts = []
    for fit in row.fits:
        fields = {k: mix(getattr(start, k), getattr(fit.model.drift, k)) for k in vars(start)}
        drifts.append(type(start)(**fields))
    return drifts


def explain(process: str, folds: list[Fold], dt: float, row: Row, printed: dict) -> str:
    """The printed mean as that of parameters on the way from the start to the maximum, where there are such."""
    nlpd, elbo = [], []
    start = learning_model(process, folds[0])[0].drift
    for fraction in _FRACTIONS:
        pairs = list(zip(folds, between(start, row, fraction), strict=True))
        posts = [gv.infer(with_drift(process, f, d), f.train, dt=dt, span=f.span, progress=False) for f, d in pairs]
        nlpd.append([p.nlpd(f.test) for p, (f, _) in zip(posts, pairs, strict=True)])
        elbo.append([p.elbo for p in posts])
    means, sds = np.mean(nlpd, axis=1), np.std(nlpd, axis=1)
    short = np.mean(row.elbo - np.array(elbo), axis=1)
    i = int(np.argmin(np.abs(means - printed["mean"])))
    head = f"{process}, dt {dt:g}: printed {printed['mean']:.3f} ± {printed['sd']:.3f}"
    if abs(means[i] - printed["mean"]) > _EXPLAIN:
        ends = f"{means[0]:.3f} at the start, {means[-1]:.3f} at the maximum"
        return f"{head} is met nowhere between the start of learning and the maximum of the bound ({ends})."
    return (
        f"{head} is, to {_EXPLAIN:g}, the NLPD of parameters {100 * _FRACTIONS[i]:.0f} % of the way from the start to "
        f"the maximum of the bound ({means[i]:.3f} ± {sds[i]:.3f}), {short[i]:.2f} nats a fold below it: what a run "
        "leaves that ends early, not another optimum."
    )


def mean_values(row: Row) -> str:
    """Learnt values, averaged over the folds; a phase in (−π, π], since any period is as good as another."""
    texts = []
    for path in row.fits[0].trainable:
        name = path.removeprefix("drift.")
        learnt = np.array([float(fit.parameters[path]) for fit in row.fits])
        learnt = np.angle(np.exp(1j * learnt)) if name == "phase" else learnt
        texts.append(f"{name} {learnt.mean():.3f}")
    return ", ".join(texts)


def cells(process: str, dt: float, row: Row, printed: dict | None) -> list[str]:
    mean, sd = row.nlpd.mean(), row.nlpd.std()
    paper, difference, units = "–", "–", "–"
    if printed is not None:
        paper = f"{printed['mean']:.3f} ± {printed['sd']:.3f}"
        difference = f"{mean - printed['mean']:+.4f}"
        units = f"{(mean - printed['mean']) / printed['sd']:+.2f}"
    iterations = [len(fit.history) - 1 for fit in row.fits]
    bad = [str(i) for i, fit in enumerate(row.fits) if not fit.converged]
    status = f"not converged: fold {', '.join(bad)}" if bad else "converged"
    figures = [f"{mean:.4f} ± {sd:.4f}", paper, difference, units, f"{row.elbo.mean():.4f}", mean_values(row)]
    return [process, f"{dt:g}", *figures, f"{np.mean(iterations):.1f}", f"{row.seconds:.1f}", status]


def find_printed(data: Path, expected: Path | None) -> dict:
    """The paper's CVI-DP figures by step size ("cvi_dp@0.01") and process; empty where there is no file."""
    path = expected or data.resolve().parent / "expected" / "paper_tables.json"
    if expected is None and not path.is_file():
        return {}
    try:
        return json.loads(path.read_text())["table2_learning"]
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path} does not hold the paper's table (field table2_learning): {error!r}") from None


def make_table() -> Table:
    table = Table(title="Table 2, CVI-DP after learning: NLPD, mean ± population sd over five folds")
    left = ("process", "learnt (mean)", "status")
    columns = ("process", "dt", "NLPD", "paper", "difference", "in its sd", "ELBO", "learnt (mean)")
    for name in (*columns, "iterations", "seconds", "status"):
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    return table


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the data sets")
    parser.add_argument("--dt", type=float, nargs="+", default=[0.01, 0.005, 0.001], help="step sizes")
    parser.add_argument("--expected", type=Path, metavar="FILE", help="the paper's printed values, JSON")
    parser.add_argument("--process", nargs="+", default=list(PROCESSES), choices=PROCESSES, help="rows to run")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    try:
        printed = find_printed(options.data, options.expected)
        data = {p: [load_fold(options.data, p, i) for i in range(FOLDS)] for p in options.process}
    except ValueError as error:
        print(f"table2_cvi: {error}", file=sys.stderr)
        return 2
    table, sentences = make_table(), []
    for process, folds in data.items():
        for dt in options.dt:
            paper = printed.get(f"cvi_dp@{dt:g}", {}).get(process)
            row = run_folds(process, folds, dt)
            table.add_row(*cells(process, dt, row, paper))
            if paper is not None and abs(row.nlpd.mean() - paper["mean"]) > _EXPLAIN:
                sentences.append(explain(process, folds, dt, row, paper))
        table.add_section()
    console = Console()
    console = console if console.is_terminal else Console(width=170)
    console.print(table)
    for sentence in sentences:
        console.print(sentence)
    return 0


if __name__ == "__main__":
    sys.exit(main())
