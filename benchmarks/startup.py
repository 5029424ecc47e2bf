"""(e) Wall time of a fresh process from `import` to the posterior, and what a later call compiles again.

The child process of this module imports nothing but the standard library before it starts its clock.
"""

import json
import sys
import time

_STEPS = {0.01: 3.0, 0.001: 4.0}  # seconds to aim at
_REPEATS = 3
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


def scenario(data):
    """Shortest of several processes, and the counts, which must be zero in all of them."""
    import tempfile
    from pathlib import Path

    from benchmarks.measure import Figure, fresh_process
    from benchmarks.problems import load_or_simulate

    folds = load_or_simulate(data, "double_well")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "series.npz"
        write_series(path, folds[:2])
        for dt, aim in _STEPS.items():
            runs = [fresh_process("benchmarks.startup", path, dt) for _ in range(_REPEATS)]
            best = min(runs, key=lambda r: r["total"])
            yield Figure("e", f"dt={dt:g}, import to posterior", best["total"], "s", at_most=aim)
            for part in ("import", "import beyond that of JAX", "compile", "run", "processor time"):
                yield Figure("e", f"dt={dt:g}, {part}", min(r[part] for r in runs), "s")
            for call in runs[0]["recompiled"]:
                most = max(r["recompiled"][call] for r in runs)
                yield Figure("e", f"dt={dt:g}, programs compiled for {call}", most, "", at_most=0)


def write_series(path, folds) -> None:
    import numpy as np

    np.savez(
        path,
        times=[f.train.times for f in folds],
        values=[f.train.values for f in folds],
        span=folds[0].span,
        variance=folds[0].sigma ** 2,
    )


def measure(path: str, dt: float) -> dict:
    """One process: import, model and data, first posterior, then the calls that must not compile."""
    begun = time.perf_counter()
    import jax  # noqa: F401

    jax_there = time.perf_counter()
    import girsanov as gv

    imported = time.perf_counter()
    import numpy as np

    data = np.load(path)
    series = [gv.TimeSeries(t, y) for t, y in zip(data["times"], data["values"], strict=True)]
    span, noise = tuple(data["span"]), gv.likelihoods.Gaussian(variance=float(data["variance"]))

    def infer(series, well=1.0):
        model = gv.Model(gv.DoubleWell(4.0, well), 1.0, gv.GaussianState(1.0, 1e-4), noise)
        return gv.infer(model, series, dt=dt, span=span, progress=False)

    def timed(call) -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    first = timed(lambda: infer(series[0]))
    total, processor = time.perf_counter() - begun, time.process_time()
    counted = count_compilations()
    seconds = min(timed(lambda: infer(series[0])) for _ in range(3))
    recompiled = {"the same call": counted()}
    infer(series[0], well=1.1)
    recompiled["another drift parameter"] = counted()
    infer(series[1])
    recompiled["another fold"] = counted()
    parts = {"import": imported - begun, "import beyond that of JAX": imported - jax_there}
    parts |= {"compile": first - seconds, "run": seconds}
    return {**parts, "total": total, "processor time": processor, "recompiled": recompiled}


def count_compilations():
    """A function that says how many programs were compiled since it was last asked."""
    import jax.monitoring

    events: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: events.append(event))

    def counted() -> int:
        n = events.count(_COMPILE_EVENT)
        events.clear()
        return n

    return counted


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], float(sys.argv[2]))))
