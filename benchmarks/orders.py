"""Observed orders of convergence in dt of continuous-time CVI-DP, next to the errors of the discrete version.

    python benchmarks/orders.py --data DIR [--fold 1] [--process sine double_well van_der_pol]

DIR is a folder with the authors' data sets. Errors are against the continuous version's own limit, extrapolated from
its two finest grids; `limits apart` says how far from it the discrete version's own limit lies, extrapolated from its
three finest grids. Means and standard deviations are compared at the nodes of the coarsest grid, largest deviation.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import girsanov as gv
from girsanov.chain.linear_sde import Time
from girsanov.paper.data import Fold, inference_model, load_fold

STEPS = (0.04, 0.02, 0.01, 0.005)
FINE = (0.0025, 0.00125)
FINEST_DISCRETE = 0.000625
WANTED = {"sine": 1.8, "double_well": 1.5, "van_der_pol": 1.8}
TOLERANCE = 1e-10  # in nats: far below the errors of discretisation
QUANTITIES = ("ELBO", "mean", "std")


class Answer(NamedTuple):
    """The bound and the marginals at the common nodes."""

    values: dict[str, np.ndarray]
    status: str


class Orders(NamedTuple):
    """Errors of one quantity at STEPS, and how the two limits compare."""

    continuous: np.ndarray
    discrete: np.ndarray
    limits_apart: float

    @property
    def pairwise(self) -> np.ndarray:
        return np.log2(self.continuous[:-1] / self.continuous[1:])

    @property
    def fitted(self) -> float:
        """Slope of log error against log dt over all of STEPS."""
        return float(np.polyfit(np.log(STEPS), np.log(self.continuous), 1)[0])

    @property
    def closer(self) -> bool:
        """Whether the continuous version at dt = 0.02 is nearer to the limit than the discrete one at 0.005."""
        return bool(self.continuous[STEPS.index(0.02)] < self.discrete[STEPS.index(0.005)])


def solve(process: str, fold: Fold, time: Time, common: np.ndarray | None, dt: float) -> tuple[Answer, np.ndarray]:
    model, method = inference_model(process, fold), gv.CVIDP(time=time, tolerance=TOLERANCE)
    post = gv.infer(model, fold.train, dt, fold.span, method=method, progress=False)
    common = post.times if common is None else common
    node = np.searchsorted(post.times, common - 1e-9)
    values = {"ELBO": np.array(post.elbo), "mean": post.mean[node], "std": post.std[node]}
    return Answer(values, post.status), common


def measure(process: str, fold: Fold, say: Callable[[str], None]) -> dict[str, Orders]:
    common: np.ndarray | None = None
    answers: dict[tuple[Time, float], Answer] = {}
    grids: dict[Time, tuple[float, ...]] = {
        "continuous": (*STEPS, *FINE),
        "discrete": (*STEPS, *FINE, FINEST_DISCRETE),
    }
    for time, steps in grids.items():
        for dt in steps:
            answer, common = solve(process, fold, time, common, dt)
            answers[time, dt] = answer
            say(f"{process}, {time}, dt = {dt:g}: {answer.status}, ELBO {answer.values['ELBO']:.6f}")
    return {name: orders(name, answers) for name in QUANTITIES}


def orders(name: str, answers: dict[tuple[Time, float], Answer]) -> Orders:
    def value(time: Time, dt: float) -> np.ndarray:
        return answers[time, dt].values[name]

    limit = (4.0 * value("continuous", FINE[1]) - value("continuous", FINE[0])) / 3.0
    a, b, c = (value("discrete", dt) for dt in (*FINE, FINEST_DISCRETE))
    discrete_limit = (a - 6.0 * b + 8.0 * c) / 3.0  # free of the terms in dt and dt²

    def error(time: Time) -> np.ndarray:
        return np.array([np.abs(value(time, dt) - limit).max() for dt in STEPS])

    return Orders(error("continuous"), error("discrete"), float(np.abs(discrete_limit - limit).max()))


def make_table(process: str, fold: int) -> Table:
    table = Table(title=f"{process}, fold {fold}: largest error at dt = {', '.join(f'{dt:g}' for dt in STEPS)}")
    names = ("quantity", "continuous", "order, pair by pair", "fitted", "wanted", "discrete", "limits apart", "closer")
    for name in names:
        table.add_column(name, justify="left" if name == "quantity" else "right", no_wrap=True)
    return table


def cells(name: str, found: Orders, wanted: float) -> list[str]:
    def figures(values: np.ndarray, form: str) -> str:
        return "  ".join(format(v, form) for v in values)

    return [
        name, figures(found.continuous, ".1e"), figures(found.pairwise, ".2f"), f"{found.fitted:.2f}",
        f"≥ {wanted:g}: {'yes' if found.fitted >= wanted else 'NO'}", figures(found.discrete, ".1e"),
        f"{found.limits_apart:.1e}", "yes" if found.closer else "NO",
    ]  # fmt: skip


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the data sets")
    parser.add_argument("--fold", type=int, default=1, help="fold of the data sets")
    parser.add_argument("--process", nargs="+", default=list(WANTED), choices=list(WANTED), help="processes to measure")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    try:
        data = {p: load_fold(options.data, p, options.fold) for p in options.process}
    except ValueError as error:
        print(f"orders: {error}", file=sys.stderr)
        return 2
    terminal = Console()
    console = Console(width=None if terminal.is_terminal else 180)
    for process, fold in data.items():
        table = make_table(process, options.fold)
        for name, found in measure(process, fold, lambda line: print(line, file=sys.stderr)).items():
            table.add_row(*cells(name, found, WANTED[process]))
        console.print(table)
    console.print("closer: whether continuous at dt = 0.02 is nearer to the limit than discrete at dt = 0.005")
    return 0


if __name__ == "__main__":
    sys.exit(main())
