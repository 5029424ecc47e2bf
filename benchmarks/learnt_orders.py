"""Observed orders of convergence in dt of learnt parameters, in continuous time, beside the errors in discrete time.

    python -m benchmarks.learnt_orders [--process ou double_well van_der_pol] [--steps 0.08 0.04 0.02 0.01]

Observations lie on the nodes of all grids. Errors are against the limit of the continuous version, extrapolated
from grids with half and a quarter of the last step, as shares of a standard error. The fitted order is the slope of log
error against log dt; where all errors are below 1e-6 standard errors there is none.
"""

import argparse
import sys
import warnings
from typing import NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import girsanov as gv
from girsanov.chain.linear_sde import Time

WANTED, NOTHING = 1.8, 1e-6
END, EVERY = 16.0, 0.16


class Process(NamedTuple):
    truth: gv.Model
    begin: gv.Model
    trainable: list[str]


def _model(drift, diffusion, start, noise) -> gv.Model:
    return gv.Model(drift, diffusion, gv.GaussianState(start, 0.1), gv.likelihoods.Gaussian(noise))


PROCESSES = {
    "ou": Process(
        _model(gv.OrnsteinUhlenbeck(1.0), 1.0, 1.0, 0.05), _model(gv.OrnsteinUhlenbeck(2.0), 0.5, 1.0, 0.05),
        ["drift.decay", "diffusion"],
    ),
    "double_well": Process(
        _model(gv.DoubleWell(2.0, 1.0), 1.0, 1.0, 0.05), _model(gv.DoubleWell(1.0, 1.3), 1.0, 1.0, 0.05),
        ["drift.scale", "drift.well"],
    ),
    "van_der_pol": Process(
        _model(gv.VanDerPol(), [0.5, 0.5], [1.0, 0.0], 0.05), _model(gv.VanDerPol(), [0.5, 0.5], [1.0, 0.0], 0.05),
        ["drift"],
    ),
}  # fmt: skip


def estimates(process: Process, series: gv.TimeSeries, time: Time, dt: float) -> tuple[dict[str, float], dict | None]:
    """Return the learnt numbers by name, and their standard errors."""
    method = gv.CVIDP(time=time, tolerance=1e-11)
    fit = gv.learn(
        process.begin, series, dt, (0.0, END), trainable=process.trainable, method=method, tolerance=1e-12,
        parameter_tolerance=1e-8, step_error=False if time == "discrete" else None, progress=False,
    )  # fmt: skip
    print(f"{time}, dt = {dt:g}: {fit.status}, {int(fit.history.e_steps[-1])} E-steps", file=sys.stderr, flush=True)
    names = [d for d in (fit.standard_errors or {})]
    return {n: float(np.ravel(fit.parameters[n.split("[")[0]])[0]) for n in names}, fit.standard_errors


def measure(process: Process, steps: list[float], kinds: list[Time]) -> dict[str, dict[str, np.ndarray]]:
    """Return the errors of every number by kind of time, as shares of its standard error."""
    times = np.arange(1, round(END / EVERY) + 1) * EVERY
    series = gv.simulate(process.truth, times, key=jax.random.key(1), dt=0.001, start=0.0).series
    found = {}
    for time in kinds:
        finer = [steps[-1] / 2.0, steps[-1] / 4.0] if time == "continuous" else []
        found[time] = [estimates(process, series, time, dt) for dt in [*steps, *finer]]
    out: dict[str, dict[str, np.ndarray]] = {}
    for name, error in (found["continuous"][-1][1] or {}).items():
        values = {time: np.array([values[name] for values, _ in rows]) for time, rows in found.items()}
        a, b = values["continuous"][len(steps) :]
        limit = (4.0 * b - a) / 3.0
        out[name] = {time: np.abs(v[: len(steps)] - limit) / error for time, v in values.items()}
    return out


def order(steps: list[float], errors: np.ndarray) -> float | None:
    if errors.max() < NOTHING:
        return None
    return float(np.polyfit(np.log(steps), np.log(errors), 1)[0])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--process", nargs="+", default=list(PROCESSES), choices=list(PROCESSES))
    parser.add_argument("--steps", nargs="+", type=float, default=[0.08, 0.04, 0.02, 0.01], help="each half the last")
    parser.add_argument("--only-continuous", action="store_true", help="leave discrete time out")
    options = parser.parse_args(argv)
    kinds: list[Time] = ["continuous"] if options.only_continuous else ["continuous", "discrete"]
    warnings.filterwarnings("ignore", message="learn|the step of|infer")
    title = f"Errors of learnt parameters in standard errors, at dt = {', '.join(f'{dt:g}' for dt in options.steps)}"
    table, met = Table(title=title), True
    for name in ("process", "parameter", "continuous", "pair by pair", "fitted", "wanted", "discrete"):
        table.add_column(name, justify="left" if name in ("process", "parameter") else "right", no_wrap=True)
    for process in options.process:
        for name, errors in measure(PROCESSES[process], options.steps, kinds).items():
            e, slope = errors["continuous"], order(options.steps, errors["continuous"])
            good = slope is None or slope >= WANTED
            met = met and good
            pairs = "  ".join(f"{v:.2f}" for v in np.log2(e[:-1] / e[1:]))
            row = (
                process, name, "  ".join(f"{v:.1e}" for v in e), pairs, "exact" if slope is None else f"{slope:.2f}",
                f"≥ {WANTED:g}: {'yes' if good else 'NO'}", "  ".join(f"{v:.1e}" for v in errors.get("discrete", [])),
            )  # fmt: skip
            print(*row, sep=" | ", file=sys.stderr, flush=True)
            table.add_row(*row)
    console = Console()
    Console(width=None if console.is_terminal else 160).print(table)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
