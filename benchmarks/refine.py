"""Whether `post.refine` reaches the exact answer: on the paper's scalar folds, and where q misses part of the truth.

    python -m benchmarks.refine folds --data DIR [--dt 0.01] [--seconds 120] [--only double_well 0]
    python -m benchmarks.refine modes [--cases 100] [--first 0] [--seconds 60]

`folds`: held-out NLPD beside that of the exact smoother on the same nodes. The error is that of the mean of the chains'
own scores, from their spread. `modes`: random models of `fuzz.verdicts` with two or more wells for which `diagnose`
says "use particles"; the evidence is compared with that of a filter on a grid of states written there, in NumPy alone.
"""

import argparse
import time
import warnings
from pathlib import Path

import jax
import numpy as np

import girsanov as gv
from benchmarks.exact_gap import SCALAR
from fuzz.verdicts import Case
from girsanov.baselines import exact_smoother
from girsanov.paper.data import FOLDS, inference_model, load_fold

FAMILIES = ("double well", "sine")
SEED = 17_000_000  # cases are numbered from here
NEAR = 0.1  # nats


def folds(data: Path, dt: float, seconds: float, only: tuple[str, int] | None) -> None:
    print("process       fold    exact   refine ±        evidence: exact  refine ±         status    ess  seconds")
    away = []
    for process in SCALAR:
        for i in range(FOLDS):
            if only not in (None, (process, i)):
                continue
            fold = load_fold(data, process, i)
            model, begun = inference_model(process, fold), time.perf_counter()
            exact = exact_smoother(model, fold.train, dt, fold.span, at=fold.test.times)
            post = gv.infer(model, fold.train, grid=exact.times, progress=False)
            got = post.refine(key=jax.random.key(i), seconds=seconds, progress=False)
            wanted, found = exact.nlpd(fold.test), got.nlpd(fold.test)
            parts = [part.nlpd(fold.test) for part in got.by_chain()]
            error = float(np.std(parts, ddof=1) / np.sqrt(len(parts)))
            away.append((found - wanted) / error)
            print(
                f"{process:13s} {i:3d} {wanted:9.4f} {found:8.4f} {error:.4f} {exact.log_evidence:15.3f} "
                f"{got.log_evidence:8.3f} {got.standard_error:.3f} {got.status:>14s} {got.ess:6.0f} "
                f"{time.perf_counter() - begun:6.0f}",
                flush=True,
            )
    print(f"NLPD within two errors on {sum(abs(a) < 2.0 for a in away)} of {len(away)}, within three on ", end="")
    print(f"{sum(abs(a) < 3.0 for a in away)}; largest {max(map(abs, away)):.1f} errors")


def modes(cases: int, first: int, seconds: float) -> None:
    errors, scores, tried, begun = [], [], first, time.perf_counter()
    statuses: dict[str, int] = {}
    while len(errors) < cases:
        case = Case.make(FAMILIES[tried % len(FAMILIES)], SEED + tried)
        tried += 1
        post = gv.infer(case.model(), case.series(), grid=case.times, progress=False)
        if post.diagnose(key=jax.random.key(tried), n=1000).verdict != "use particles":
            continue
        got, truth = post.refine(key=jax.random.key(tried), seconds=seconds, progress=False), case.log_evidence()
        errors.append(got.log_evidence - truth)
        scores.append(errors[-1] / got.standard_error)
        statuses[got.status] = statuses.get(got.status, 0) + 1
        print(
            f"{len(errors):4d} {tried - 1:4d} {case.family:12s} N={len(case.times)} n={len(case.node)} bound "
            f"{post.elbo - truth:8.3f} refine {errors[-1]:+.4f} ± {got.standard_error:.4f} R̂ {got.rhat:.3f} ess "
            f"{got.ess:.0f} {got.status} {got.seconds:.0f} s",
            flush=True,
        )
    near = sum(abs(e) < NEAR for e in errors)
    print(f"evidence within {NEAR} nats on {near} of {len(errors)} ({tried - first} models tried); {statuses}")
    print(f"errors in standard errors: root mean square {np.sqrt(np.mean(np.square(scores))):.2f}", end="; ")
    print(f"{time.perf_counter() - begun:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("folds", "modes"))
    parser.add_argument("--data", type=Path, metavar="DIR", help="the authors' data sets")
    parser.add_argument("--dt", type=float, default=0.01)
    parser.add_argument("--only", nargs=2, metavar=("PROCESS", "FOLD"))
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first model to try")
    parser.add_argument("--seconds", type=float, default=120.0, help="time limit of each refinement")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", message="refine has not converged|the step of|infer has not converged")
    if given.what == "modes":
        return modes(given.cases, given.first, given.seconds)
    if given.data is None:
        parser.error("folds needs --data")
    folds(given.data, given.dt, given.seconds, (given.only[0], int(given.only[1])) if given.only else None)


if __name__ == "__main__":
    main()
