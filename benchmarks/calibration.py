"""Simulation-based calibration of `gv.sample_parameters`: are ranks of the true parameters among draws uniform?

    python benchmarks/calibration.py [--sets 200] [--processes ou sine] [--draws 200] [--warmup 150]

Parameters are drawn from the prior, a data set from the model on the grid of inference, and the rank of each true value
among 19 draws is counted, for the draws by the bound and for the corrected ones. If the draws follow the posterior, all
20 ranks are equally likely; the p-value is that of the χ² test. The processes take turns, and what is known is printed
every 20 data sets.
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
RANKS, BLOCK = 20, 20


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


def ranks(process: Process, seed: int, sizes: dict[str, int]) -> tuple[list[int], list[int], dict[str, Any]]:
    """Return the ranks of the true values among draws and among corrected draws, and what the result says of itself."""
    keys = jax.random.split(jax.random.key(seed), 2 + len(process.priors))
    truth = [float(p.sample(k)) for p, k in zip(process.priors.values(), keys[2:], strict=True)]
    series = gv.simulate(process.model(*truth), TIMES, key=keys[0], dt=DT, start=0.0).series
    tree = gv.sample_parameters(
        process.model(*(float(p.mean) for p in process.priors.values())), series, DT, (0.0, TIMES[-1]),
        priors=process.priors, constraints=process.constraints, key=keys[1], chains=2, progress=False,
        **sizes,
    )  # fmt: skip
    found: list[list[int]] = []
    for group in ("posterior", "corrected"):
        draws = [tree[group][path].values.ravel() for path in process.priors]
        places = np.linspace(0, draws[0].size - 1, RANKS - 1).astype(int)
        found.append([int((x[places] < true).sum()) for x, true in zip(draws, truth, strict=True)])
    kept = ("divergences", "failed_inferences")
    return found[0], found[1], {k: tree.attrs[k] for k in kept} | {"verdict": tree["corrected"].attrs["verdict"]}


def show(name: str, found: list[tuple[list[int], list[int], dict]], seconds: float) -> None:
    verdicts = [attrs["verdict"] for *_, attrs in found]
    failed = {k: sum(attrs[k] for *_, attrs in found) for k in ("divergences", "failed_inferences")}
    print(
        f"{name}: {len(found)} data sets, {seconds:.0f} CPU s; divergences {failed['divergences']}, failed inferences "
        f"{failed['failed_inferences']}, " + ", ".join(f"{verdicts.count(v)} “{v}”" for v in sorted(set(verdicts)))
    )
    for label, which in (("bound", 0), ("corrected", 1)):
        for i, path in enumerate(PROCESSES[name].priors):
            counts = np.bincount([f[which][i] for f in found], minlength=RANKS)
            print(f"  {label:<10}{path:<14}p = {stats.chisquare(counts).pvalue:.3f}  {counts.tolist()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--processes", nargs="+", default=list(PROCESSES), choices=list(PROCESSES))
    parser.add_argument("--draws", type=int, default=200, help="of each of two chains; 19 of all of them are ranked")
    parser.add_argument("--warmup", type=int, default=150)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # a run that has not mixed counts like any other
    found: dict[str, list] = {name: [] for name in args.processes}
    spent = dict.fromkeys(args.processes, 0.0)
    for first in range(0, args.sets, BLOCK):
        for name in args.processes:
            begun = time.process_time()
            for seed in range(first, min(first + BLOCK, args.sets)):
                found[name].append(ranks(PROCESSES[name], seed, {"draws": args.draws, "warmup": args.warmup}))
            spent[name] += time.process_time() - begun
            show(name, found[name], spent[name])


if __name__ == "__main__":
    main()
