"""Speed of learning: parameters against E-steps, evaluations of the bound and seconds, by objective.

    python benchmarks/learning.py --data DIR [--dt 0.01]

The first part is the paper's figure of learning speed: the decay of the Ornstein–Uhlenbeck process from 2.5 and the
well of the double well from 0, fold 0. The second starts further away, learns several parameters at once, and says who
arrives. A pass is one evaluation of the bound, in an E-step or an M-step; seconds are those of a second run, without
compilation.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import girsanov as gv
from girsanov.model.drifts import Drift
from girsanov.paper.data import Fold, inference_model, load_fold

OBJECTIVES = ("modified", "standard", "profile")
_ARRIVED = 1e-3  # nats below the best bound that any objective reached


class Task(NamedTuple):
    label: str
    process: str
    drift: Drift
    trainable: tuple[str, ...]
    factor: float = 1.0  # between the diffusion and noise variance at the start and those of the simulation


TRACES = (
    Task("OU, decay from 2.5", "ou", gv.OrnsteinUhlenbeck(decay=2.5), ("drift.decay",)),
    Task("double well, well from 0", "double_well", gv.DoubleWell(scale=4.0, well=0.0), ("drift.well",)),
)
_NOISES = ("diffusion", "likelihood.variance")
FAR = (
    *TRACES,
    Task("OU, decay from 20", "ou", gv.OrnsteinUhlenbeck(decay=20.0), ("drift",)),
    Task("double well, well from 3", "double_well", gv.DoubleWell(scale=4.0, well=3.0), ("drift.well",)),
    Task("Beneš, scale from 3", "benes", gv.Benes(scale=3.0), ("drift",)),
    Task("sine, phase from 2", "sine", gv.Sine(scale=1.0, phase=2.0), ("drift.phase",)),
    Task("square root, scale from 5", "sqrt", gv.SquareRoot(scale=5.0), ("drift",)),
    Task("van der Pol from (2, 2)", "van_der_pol", gv.VanDerPol(rate=2.0, damping=2.0), ("drift",)),
    Task("OU, all noise × 4", "ou", gv.OrnsteinUhlenbeck(decay=2.5), ("drift", *_NOISES), 4.0),
    Task("sine, all noise × 4", "sine", gv.Sine(scale=0.3, phase=1.0), ("drift", *_NOISES), 4.0),
    Task("van der Pol, all noise × 4", "van_der_pol", gv.VanDerPol(rate=4.0, damping=2.5), ("drift", *_NOISES), 4.0),
    Task("double well, network 0", "double_well", gv.MLP(1, key=jax.random.key(0)), ("drift",)),
    Task("double well, network 1", "double_well", gv.MLP(1, key=jax.random.key(1)), ("drift",)),
)


def learn(task: Task, fold: Fold, objective: str, dt: float) -> gv.Fit:
    model = gv.Model(
        drift=task.drift,
        diffusion=task.factor * fold.Q[0, 0],
        initial=inference_model(task.process, fold).initial,
        likelihood=gv.likelihoods.Gaussian(task.factor * fold.sigma**2),
    )
    return gv.learn(
        model, fold.train, dt=dt, span=fold.span, trainable=task.trainable, objective=objective, standard_errors=False,
        check=False, progress=False,
    )  # fmt: skip


def run(task: Task, data: Path, dt: float) -> dict[str, gv.Fit]:
    """A fit by each objective, timed in a second run."""
    fold = load_fold(data, task.process, 0)
    for objective in OBJECTIVES:
        learn(task, fold, objective, dt)
    return {objective: learn(task, fold, objective, dt) for objective in OBJECTIVES}


def trace_table(task: Task, fits: dict[str, gv.Fit]) -> Table:
    """One line an iteration; every objective has its own columns."""
    table = Table(title=f"{task.label}, fold 0")
    table.add_column("iteration", justify="right")
    for objective in fits:
        for name in (objective, "E-steps", "passes", "seconds"):
            table.add_column(name, justify="right", no_wrap=True)
    for i in range(max(len(f.history) for f in fits.values())):
        row = [str(i)]
        for fit in fits.values():
            h = fit.history
            done = i < len(h)
            value = h.parameters[task.trainable[0]][i] if done else 0.0
            row += [f"{value:.4f}", str(h.e_steps[i]), str(h.passes[i]), f"{h.seconds[i]:.3f}"] if done else [""] * 4
        table.add_row(*row)
    return table


def arrival(fit: gv.Fit, best: float) -> int | None:
    """The first iteration whose bound is as good as the best, or None."""
    close = np.flatnonzero(fit.history.elbo >= best - _ARRIVED)
    return int(close[0]) if len(close) else None


def values(fit: gv.Fit) -> str:
    if isinstance(fit.model.drift, gv.MLP):
        return f"bound {fit.elbo:.3f}"
    short = {k.split(".")[-1]: np.asarray(v).ravel()[0] for k, v in fit.parameters.items()}
    return ", ".join(f"{k} {v:.4f}" for k, v in short.items())


def robustness_table(results: dict[str, dict[str, gv.Fit]]) -> Table:
    table = Table(title=f"Until within {_ARRIVED:g} nats of the best bound: iterations / E-steps / passes / seconds")
    for name in ("task", *OBJECTIVES, "best values"):
        table.add_column(name, justify="left" if name in ("task", "best values") else "right")
    for label, fits in results.items():
        best = max(f.elbo for f in fits.values())
        row = [label]
        for fit in fits.values():
            i, h = arrival(fit, best), fit.history
            far = f"{best - fit.elbo:.2g} nats short"
            figures = far if i is None else f"{i} / {h.e_steps[i]} / {h.passes[i]} / {h.seconds[i]:.2f}"
            row.append(figures if fit.converged else f"{figures} ({fit.status})")
        row.append(values(max(fits.values(), key=lambda f: f.elbo)))
        table.add_row(*row)
    return table


def summary(results: dict[str, dict[str, gv.Fit]]) -> str:
    """Totals over the tasks, from which the default is chosen: arrivals first, then cost."""
    lines = []
    for objective in OBJECTIVES:
        arrived, totals = 0, np.zeros(3)
        for fits in results.values():
            i, h = arrival(fits[objective], max(f.elbo for f in fits.values())), fits[objective].history
            arrived += i is not None
            end = len(h) - 1 if i is None else i
            totals += h.e_steps[end], h.passes[end], h.seconds[end]
        e_steps, passes, seconds = totals
        cost = f"{e_steps:.0f} E-steps, {passes:.0f} passes, {seconds:.1f} s"
        lines.append(f"{objective}: {arrived} of {len(results)} arrived; {cost} until then")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the data sets")
    parser.add_argument("--dt", type=float, default=0.01, help="step size")
    options = parser.parse_args(argv)
    console = Console()
    console = console if console.is_terminal else Console(width=170)
    results = {}
    try:
        for task in FAR:
            results[task.label] = run(task, options.data, options.dt)
            if task in TRACES:
                console.print(trace_table(task, results[task.label]))
    except ValueError as error:
        print(f"learning: {error}", file=sys.stderr)
        return 2
    console.print(robustness_table(results))
    console.print(summary(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
