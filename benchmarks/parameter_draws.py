"""Draws of the parameters of the double well, fold 0: seconds, inferences, effective draws a second.

    python benchmarks/parameter_draws.py --data DIR [--draws 1000] [--chains 4] [--runs 3]

The first run compiles; the second one, with another key, does not. CPU seconds are those of all threads, so they do not
depend on what else the machine does.
"""

import argparse
import time
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist

import girsanov as gv
from girsanov.paper.data import inference_model, load_fold

PRIORS = {"drift.scale": dist.LogNormal(np.log(4.0), 0.5), "drift.well": dist.LogNormal(0.0, 0.5)}
CONSTRAINTS = dict.fromkeys(PRIORS, "positive")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--runs", type=int, choices=(1, 2, 3), default=3, help="how many of the three runs")
    args = parser.parse_args()
    fold = load_fold(args.data, "double_well", 0)
    model = inference_model("double_well", fold)
    sizes = {"draws": args.draws, "chains": args.chains}
    runs = (("first", 0, True), ("again", 1, True), ("again, without correction", 2, False))
    for label, seed, correct in runs[: args.runs]:
        wall, cpu = time.perf_counter(), time.process_time()
        tree = gv.sample_parameters(
            model, fold.train, 0.01, fold.span, priors=PRIORS, constraints=CONSTRAINTS, key=jax.random.key(seed),
            correct=correct, progress=False, **sizes,
        )  # fmt: skip
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        steps = tree["sample_stats"]["n_steps"].values
        print(
            f"{label}: {wall:.1f} s, {cpu:.1f} CPU s; {steps.mean():.2f} steps a draw; {tree.attrs['divergences']} "
            f"divergences, {tree.attrs['failed_inferences']} failed; R̂ {tree.attrs['rhat_max']:.4f}, effective "
            f"{tree.attrs['ess_min']:.0f}, {tree.attrs['ess_min'] / wall:.1f} a second",
            flush=True,
        )
        for name in PRIORS:
            draws = tree["posterior"][name].values
            print(f"  {name}: {draws.mean():.4f} ± {draws.std():.4f}", end="")
            if correct:
                again = tree["corrected"][name].values
                print(f", corrected {again.mean():.4f} ± {again.std():.4f}", end="")
            print()
        if correct:
            print("  " + ", ".join(f"{k} {v}" for k, v in tree["corrected"].attrs.items()), flush=True)


if __name__ == "__main__":
    main()
