"""Simulation-based calibration of `gv.sample_parameters`: are ranks of the true parameters among draws uniform?

    python benchmarks/calibration.py [--sets 200] [--processes ou sine]

Parameters are drawn from the prior, a data set from the model on the grid of inference, and the rank of each true value
among 19 draws is counted, for the draws by the bound and for the corrected ones. If the draws follow the posterior, all
20 ranks are equally likely; the p-value is that of the χ² test.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
from scipy import stats

import girsanov as gv

DT, TIMES = 0.05, np.arange(1, 26) * 0.2
RANKS = 20


class Process(NamedTuple):
    priors: dict[str, Any]
    constraints: dict[str, Any]
    model: Callable[..., gv.Model]


START, NOISE = gv.GaussianState(0.0, 0.25), gv.likelihoods.Gaussian(0.05)
PROCESSES = {
    "ou": Process(
        {"drift.decay": dist.LogNormal(0.0, 0.5), "diffusion": dist.LogNormal(0.0, 0.5)},
        {},
        lambda decay, diffusion: gv.Model(gv.OrnsteinUhlenbeck(decay), diffusion, START, NOISE),
    ),
    "sine": Process(
        {"drift.scale": dist.LogNormal(0.5, 0.5), "drift.phase": dist.Normal(0.0, 0.5)},
        {"drift.scale": "positive"},
        lambda scale, phase: gv.Model(gv.Sine(scale, phase), 1.0, START, NOISE),
    ),
}


def ranks(process: Process, seed: int) -> tuple[list[int], list[int], Any]:
    """Return the ranks of the true values among draws and among corrected draws, and the result."""
    keys = jax.random.split(jax.random.key(seed), 2 + len(process.priors))
    truth = [float(p.sample(k)) for p, k in zip(process.priors.values(), keys[2:], strict=True)]
    series = gv.simulate(process.model(*truth), TIMES, key=keys[0], dt=DT, start=0.0).series
    tree = gv.sample_parameters(
        process.model(*(float(p.mean) for p in process.priors.values())), series, DT, (0.0, TIMES[-1]),
        priors=process.priors, constraints=process.constraints, key=keys[1], draws=200, warmup=150, chains=2,
        progress=False,
    )  # fmt: skip
    found: list[list[int]] = []
    for group in ("posterior", "corrected"):
        draws = [tree[group][path].values.ravel() for path in process.priors]
        places = np.linspace(0, draws[0].size - 1, RANKS - 1).astype(int)
        found.append([int((x[places] < true).sum()) for x, true in zip(draws, truth, strict=True)])
    return found[0], found[1], tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--processes", nargs="+", default=list(PROCESSES), choices=list(PROCESSES))
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # a run that has not mixed counts like any other
    for name in args.processes:
        process, begun = PROCESSES[name], time.perf_counter()
        found = [ranks(process, seed) for seed in range(args.sets)]
        verdicts = [tree["corrected"].attrs["verdict"] for *_, tree in found]
        print(
            f"{name}: {args.sets} data sets in {time.perf_counter() - begun:.0f} s; divergences "
            f"{sum(tree.attrs['divergences'] for *_, tree in found)}, failed inferences "
            f"{sum(tree.attrs['failed_inferences'] for *_, tree in found)}, "
            + ", ".join(f"{verdicts.count(v)} “{v}”" for v in sorted(set(verdicts)))
        )
        for label, which in (("bound", 0), ("corrected", 1)):
            for i, path in enumerate(process.priors):
                counts = np.bincount([f[which][i] for f in found], minlength=RANKS)
                print(f"  {label:<10}{path:<14}p = {stats.chisquare(counts).pvalue:.3f}  {counts.tolist()}", flush=True)


if __name__ == "__main__":
    main()
