"""(f) A panel of 200 short series against a loop of `gv.infer` over them, in d = 1 and 2.

The child process imports the library, infers the panel once with the compiler, and then takes turns with the loop. In
the loop every length of a series has a program of its own, so it is timed over a sample of series, each after a call of
its own, and the time is multiplied up. A larger panel tells what memory it takes.

python -m benchmarks.panel 1 200     (dimension and number of series: prints the figures of one process)
"""

import json
import resource
import sys
import time

_AT_LEAST = 8.0  # times the throughput of the loop
_SAMPLE = 12  # series of the loop
_REPEATS = 3
_DT = 0.05


def scenario(data):
    """Throughput and first call, by processes of their own."""
    from benchmarks.measure import Figure, fresh_process

    for d in (1, 2):
        r = fresh_process("benchmarks.panel", d, 200)
        name = f"d={d}, 200 series of 20 to 60 observations, {r['fewest']} to {r['most']} nodes"
        yield Figure("f", f"{name}: throughput of the loop × ", r["loop"] / r["panel"], "", at_least=_AT_LEAST)
        yield Figure("f", f"d={d}, panel, a series", 1e3 * r["panel"] / 200, "ms")
        yield Figure("f", f"d={d}, warm loop, a series", 1e3 * r["loop"] / 200, "ms")
        yield Figure("f", f"d={d}, first call, with compilation", r["first"], "s", at_most=r["loop"])
        yield Figure("f", f"d={d}, programs compiled for the panel", r["programs"], "")
        yield Figure("f", f"d={d}, seconds to compile one length for the loop", r["one"], "s")
        yield Figure("f", f"d={d}, largest difference from single calls", r["apart"], "", at_most=1e-8)
    small, large = (fresh_process("benchmarks.panel", 1, n) for n in (1000, 5000))
    grown = (large["memory"] - small["memory"]) / 4000
    yield Figure("f", "d=1, memory that a further series takes", 1e3 * grown, "kB", at_most=200.0)
    yield Figure("f", "d=1, 5000 series, a series", 1e3 * large["panel"] / 5000, "ms")


def make_model(d: int):
    """Return a model of this dimension."""
    import girsanov as gv

    if d == 1:
        return gv.Model(gv.DoubleWell(2.0, 1.0), 0.8, gv.GaussianState(0.5, 0.5), gv.likelihoods.Gaussian(0.05))
    noise, start = gv.likelihoods.Gaussian(0.1), gv.GaussianState([1.0, 0.0], 0.3)
    return gv.Model(gv.VanDerPol(1.0, 1.0), 0.3, start, noise, emission=[[1.0, 0.0]])


def make_panel(model, count: int):
    """Return a panel with paths of the model, by Euler–Maruyama in NumPy, and the span of every series."""
    import numpy as np

    import girsanov as gv

    rng, d = np.random.default_rng(0), model.dim
    series, spans = {}, {}
    Q, R = np.diag(np.asarray(model.diffusion)), float(model.likelihood.variance)
    for k in range(count):
        n = int(rng.integers(20, 61))
        span = round(0.2 * n, 10)
        times = np.sort(rng.uniform(0.0, span, n))
        x, path = np.asarray(model.initial.mean) + 0.3 * rng.normal(size=d), []
        for _ in range(round(span / 0.01) + 1):
            path.append(x)
            drift = 8.0 * x * (1.0 - x**2) if d == 1 else np.array([x[1], (1 - x[0] ** 2) * x[1] - x[0]])
            x = x + 0.01 * drift + np.sqrt(0.01 * Q) * rng.normal(size=d)
        y = np.array([path[round(t / 0.01)][0] for t in times]) + np.sqrt(R) * rng.normal(size=n)
        series[str(k)], spans[str(k)] = gv.TimeSeries(times, y), (0.0, span)
    return gv.Panel(series), spans


def measure(d: int, count: int) -> dict:
    """One process: the first call of the panel, then the loop over a sample and the panel, in turns."""
    import numpy as np

    import girsanov as gv
    from benchmarks.startup import count_compilations

    model = make_model(d)
    panel, spans = make_panel(model, count)
    programs = count_compilations()

    def infer_panel():
        return gv.infer(model, panel, _DT, spans, progress=False)

    def infer(name):
        return gv.infer(model, panel[name], _DT, spans[name], progress=False)

    def timed(call, *arguments) -> float:
        started = time.perf_counter()
        call(*arguments)
        return time.perf_counter() - started

    first, made = timed(infer_panel), programs()
    loops, panels, one, apart = [], [timed(infer_panel)], 0.0, 0.0
    posts = infer_panel()
    if count <= 200:
        sample = panel.names[:: max(1, count // _SAMPLE)]
        one = max(timed(infer, name) for name in sample)
        for _ in range(_REPEATS):
            loops.append(sum(timed(infer, name) for name in sample) * count / len(sample))
            panels.append(timed(infer_panel))
        for name in sample:
            post, single = posts[name], infer(name)
            pairs = ((post.elbo, single.elbo), (post.mean, single.mean), (post.cov, single.cov))
            apart = max(apart, *(float(np.abs(a - b).max()) for a, b in pairs))
    nodes = [len(posts[name].times) for name in panel.names[:200]]
    return {
        "first": first,
        "programs": made,
        "panel": min(panels),
        "loop": min(loops, default=0.0),
        "one": one,
        "apart": apart,
        "fewest": min(nodes),
        "most": max(nodes),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
