"""Lorenz-63: is ρ, the parameter that makes it chaotic, learnt without bias? In continuous and in discrete time.

    python -m benchmarks.lorenz [--sets 10] [--dt 0.01] [--every 0.05] [--horizon 10] [--trainable drift.rho]

Every set is a path of the equation with ρ = 28, in steps of dt/20, and observations of all three states. Learning
starts at ρ = 25. A set counts where 28 lies within two standard errors of the estimate. CPU seconds are those of all
threads; the first set of each kind compiles.
"""

import argparse
import sys
import time
import warnings

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import girsanov as gv

RHO, START = 28.0, 25.0
TIMES = ("continuous", "discrete")


def model(rho: float) -> gv.Model:
    first = gv.GaussianState(np.array([-5.0, -5.0, 25.0]), 0.1)
    return gv.Model(gv.Lorenz63(rho=rho), 1.0, first, gv.likelihoods.Gaussian(1.0))


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="number of the first set")
    parser.add_argument("--dt", type=float, default=0.01)
    parser.add_argument("--every", type=float, default=0.05, help="time between two observations")
    parser.add_argument("--horizon", type=float, default=10.0)
    parser.add_argument("--trainable", nargs="+", default=["drift.rho"])
    parser.add_argument("--times", nargs="+", choices=TIMES, default=list(TIMES))
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    warnings.filterwarnings("ignore", message="learn: |the step of")
    times = np.arange(1, round(options.horizon / options.every) + 1) * options.every
    table = Table(title=f"Lorenz-63, ρ = {RHO:g}, dt = {options.dt:g}, {len(times)} observations")
    for name in ("time", "set", "ρ", "standard errors away", "status", "CPU seconds", "E-steps"):
        table.add_column(name, justify="left" if name in ("time", "status") else "right", no_wrap=True)
    near = {}
    for kind in options.times:
        away, cpu = [], []
        for i in range(options.first, options.first + options.sets):
            series = gv.simulate(model(RHO), times, key=jax.random.key(i), dt=options.dt / 20, start=0.0).series
            begun = time.process_time()
            fit = gv.learn(
                model(START), series, options.dt, (0.0, options.horizon), trainable=options.trainable,
                method=gv.CVIDP(time=kind), progress=False,
            )  # fmt: skip
            cpu.append(time.process_time() - begun)
            rho, error = float(fit.parameters["drift.rho"]), (fit.standard_errors or {}).get("drift.rho", float("nan"))
            away.append((rho - RHO) / error)
            row = [kind, str(i), f"{rho:.3f} ± {error:.3f}", f"{away[-1]:+.2f}", fit.status, f"{cpu[-1]:.1f}"]
            table.add_row(*row, str(int(fit.history.e_steps[-1])))
            print(*row, fit.message, file=sys.stderr, flush=True)
        near[kind] = sum(abs(a) <= 2.0 for a in away)
        table.add_row(kind, "all", f"within 2: {near[kind]} of {len(away)}", f"mean {np.mean(away):+.2f}",
                      "", f"median {np.median(cpu):.1f}")  # fmt: skip
        table.add_section()
    console = Console()
    Console(width=None if console.is_terminal else 120).print(table)
    return 0 if near.get("continuous", options.sets) == options.sets else 1


if __name__ == "__main__":
    sys.exit(main())
