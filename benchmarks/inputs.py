"""Parameters recovered where the input is known: a forced Duffing oscillator and a dosed compartment model.

    python benchmarks/inputs.py [--sets 20] [--process duffing compartments]

Every data set is simulated with steps of a tenth of the grid's, and all its parameters are learnt in continuous time
from a start that is off by a factor. The force on the oscillator is a square wave that switches at irregular times;
only the velocity has noise. The compartments are a depot that gets four doses and a central one that it feeds, of which
concentrations are observed. The table has the mean of the estimates, how far it is from the truth in standard errors of
that mean, and how many of the 95 % intervals cover the truth (fewer than 17 of 20 has a probability of 1.6 %).
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import girsanov as gv
from girsanov._core.precision import float64
from girsanov.learning.parameters import constrained_entries, entries, make_spec, to_vector

_Z = 1.959963984540054
METHOD = gv.CVIDP(time="continuous")


class Force(eqx.Module):
    """The push gain · u on the velocity of an oscillator."""

    gain: Any

    def __call__(self, x, t, u):
        return jnp.stack([0.0 * u[0], self.gain * u[0]])


class Compartments(eqx.Module):
    """A depot with the amount x₀, and a central compartment with the concentration x₁ = amount / volume."""

    log_absorption: Any
    log_elimination: Any
    log_volume: Any

    def __call__(self, x, t, u):
        flow = jnp.exp(self.log_absorption) * x[0]
        out = jnp.exp(self.log_elimination) * x[1]
        return jnp.stack([u[0] - flow, flow * jnp.exp(-self.log_volume) - out])


class Design(NamedTuple):
    """What is simulated, with true and starting values of the named parameters."""

    model: Callable[..., gv.Model]
    inputs: gv.Inputs
    times: np.ndarray
    dt: float
    span: tuple[float, float]
    trainable: list[str]
    truth: dict[str, float]
    start: dict[str, float]


def duffing(linear, cubic, damping, gain, noise, variance):
    return gv.Model(
        gv.Duffing(linear, cubic, damping) + Force(np.asarray(gain)),
        [0.0, noise],
        gv.GaussianState([1.0, 0.0], [0.01, 0.01]),
        gv.likelihoods.Gaussian(variance),
        [[1.0, 0.0]],
    )


def compartments(log_absorption, log_elimination, log_volume, noise, variance):
    return gv.Model(
        Compartments(*map(np.asarray, (log_absorption, log_elimination, log_volume))),
        [0.01, noise],
        gv.GaussianState([0.0, 0.0], [1e-4, 1e-4]),
        gv.likelihoods.Gaussian(variance),
        [[0.0, 1.0]],
    )


def designs() -> dict[str, Design]:
    rng = np.random.default_rng(0)
    switches = np.concatenate([[0.0], np.sort(rng.uniform(0.5, 29.5, 14))])
    doses = gv.Inputs.impulses([0.0, 8.0, 16.0, 24.0], [100.0, 100.0, 50.0, 150.0])
    return {
        "duffing": Design(
            duffing,
            gv.Inputs(switches, np.where(np.arange(15) % 2, -1.0, 1.0), kind="previous"),
            np.linspace(0.3, 30.0, 100), 0.1, (0.0, 30.0),
            ["drift.parts[0].linear", "drift.parts[0].cubic", "drift.parts[0].damping", "drift.parts[1].gain",
             "diffusion", "likelihood"],
            {"linear": -1.0, "cubic": 1.0, "damping": 0.3, "gain": 0.8, "noise": 0.05, "variance": 0.01},
            {"linear": -0.7, "cubic": 0.7, "damping": 0.5, "gain": 0.4, "noise": 0.1, "variance": 0.02},
        ),
        "compartments": Design(
            compartments, doses, np.linspace(0.4, 32.0, 80), 0.2, (0.0, 32.0),
            ["drift", "diffusion[1, 1]", "likelihood"],
            {"log_absorption": 0.0, "log_elimination": np.log(0.15), "log_volume": np.log(20.0), "noise": 0.02,
             "variance": 0.01},
            {"log_absorption": 0.4, "log_elimination": np.log(0.25), "log_volume": np.log(30.0), "noise": 0.05,
             "variance": 0.03},
        ),
    }  # fmt: skip


@float64
def named_values(model: gv.Model, trainable: list[str]) -> dict[str, float]:
    """Return every learnt number of a model, by name."""
    spec = make_spec(model, trainable)
    return dict(zip(entries(spec), np.asarray(constrained_entries(spec, to_vector(spec, model))).tolist(), strict=True))


def run(design: Design, sets: int, console: Console) -> tuple[dict[str, list], int, float]:
    """Return estimates and standard errors by entry, the number of converged fits, and the median seconds of one."""
    found: dict[str, list] = {}
    converged, seconds = 0, []
    truth = design.model(**design.truth)
    for i in range(sets):
        drawn = gv.simulate(
            truth, design.times, key=jax.random.key(i), dt=0.1 * design.dt, start=design.span[0], inputs=design.inputs
        )
        begun = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = gv.learn(
                design.model(**design.start), drawn.series, dt=design.dt, span=design.span, method=METHOD,
                trainable=design.trainable, progress=False,
            )  # fmt: skip
        seconds.append(time.perf_counter() - begun)
        converged += fit.status == "converged"
        values = named_values(fit.model, design.trainable)
        for name, error in (fit.standard_errors or {}).items():
            found.setdefault(name, []).append((values[name], error))
        console.print(f"set {i + 1}: {fit.status}, {seconds[-1]:.1f} s")
    return found, converged, float(np.median(seconds[1:] or seconds))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", type=int, default=20)
    parser.add_argument("--process", nargs="*", default=["duffing", "compartments"])
    args = parser.parse_args()
    console = Console(width=110)
    for name in args.process:
        design = designs()[name]
        found, converged, seconds = run(design, args.sets, console)
        table = Table("parameter", "truth", "mean", "bias / its error", "covered", title=f"{name}: {converged} of "
                      f"{args.sets} fits converged, {seconds:.1f} s each")  # fmt: skip
        for (entry, values), truth in zip(found.items(), design.truth.values(), strict=True):
            at, error = np.array(values).T
            positive = truth > 0.0 and not entry.startswith("drift.log")
            covers = np.abs(np.log(at / truth)) < _Z * error / at if positive else np.abs(at - truth) < _Z * error
            bias = (at.mean() - truth) / (at.std(ddof=1) / np.sqrt(len(at)))
            table.add_row(entry, f"{truth:.4g}", f"{at.mean():.4g}", f"{bias:+.1f}", f"{covers.sum()} of {len(at)}")
        console.print(table)


if __name__ == "__main__":
    main()
