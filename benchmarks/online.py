"""Data that arrive in pieces: updates against refits of all data, and one-step-ahead scores against exact ones."""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

import girsanov as gv
from benchmarks.measure import Figure

_PIECES, _GAP, _DT = 10, 0.25, 0.05


def models() -> dict[str, gv.Model]:
    noise = gv.likelihoods.Gaussian(0.05)
    return {
        "linear": gv.Model(gv.OrnsteinUhlenbeck(0.5), 0.3, gv.GaussianState(0.0, 0.3), noise),
        "double well": gv.Model(gv.DoubleWell(2.0, 1.0), 0.8, gv.GaussianState(0.5, 0.2), noise),
    }


def simulated(model: gv.Model, n: int) -> gv.TimeSeries:
    return gv.simulate(model, _GAP * np.arange(1, n + 1), key=jax.random.key(0), start=0.0, dt=0.01).series


def whole(model: gv.Model, series: gv.TimeSeries) -> gv.Posterior:
    return gv.infer(model, series, _DT, (0.0, series.times[-1]))


def node_passes(post: gv.Posterior) -> float:
    """Nodes that all passes of a run went over, on its own grid and on the coarser ones."""
    if post.history.node_passes is not None:
        return post.history.node_passes
    levels = len(post.history.coarse)
    shares = [(1 / 2, 1 / 8, 1 / 32, 1 / 128)[k] for k in range(levels)][::-1]
    coarse = sum(share * passes for share, (_, passes) in zip(shares, post.history.coarse, strict=True))
    return len(post.times) * (post.history.passes + coarse)


def updates(name: str, model: gv.Model, n: int) -> Iterator[Figure]:
    """Work of updates and of inferences of all data until then; the seconds are without compiling."""
    series = simulated(model, n)
    parts = [series.subset(slice(k[0], k[-1] + 1)) for k in np.array_split(np.arange(n), _PIECES)]
    ends = np.cumsum([len(part) for part in parts])
    seconds, work = {"updates": 0.0, "refits": 0.0}, {"updates": 0.0, "refits": 0.0}
    post = whole(model, parts[0])
    refit = post
    for k in range(1, _PIECES):
        known = series.subset(slice(0, ends[k]))
        calls = {"updates": lambda p=post, k=k: p.update(parts[k]), "refits": lambda s=known: whole(model, s)}
        made = {}
        for what, call in calls.items():
            call()
            begun = time.perf_counter()
            made[what] = call()
            seconds[what] += time.perf_counter() - begun
            work[what] += node_passes(made[what])
        post, refit = made["updates"], made["refits"]
    label = f"{name}, {n} observations"
    yield Figure("online", f"{label}, node-passes of updates over refits", work["updates"] / work["refits"], "×")
    yield Figure("online", f"{label}, seconds of updates over refits", seconds["updates"] / seconds["refits"], "×")
    yield Figure("online", f"{label}, seconds of an update", seconds["updates"] / (_PIECES - 1), "s")
    yield Figure("online", f"{label}, difference of the bounds", abs(post.elbo - refit.elbo), "nats", at_most=1e-6)
    sd = refit.std
    yield Figure("online", f"{label}, difference of the means", np.abs((post.mean - refit.mean) / sd).max(), "sd")


def grid_scores(series: gv.TimeSeries) -> np.ndarray:
    """One-step-ahead scores of the double well by densities on a grid of states."""
    x = np.linspace(-3.0, 3.0, 601)
    h = x[1] - x[0]

    def normal(e, variance):
        return np.exp(-0.5 * e**2 / variance) / np.sqrt(2 * np.pi * variance)

    kernel = normal(x[:, None] - x - _DT * 2.0 * x * (1.0 - x**2), _DT * 0.8) * h
    p, scores = normal(x - 0.5, 0.2), []
    for y in series.values[:, 0]:
        for _ in range(round(_GAP / _DT)):
            p = kernel @ p
        joint = p * normal(y - x, 0.05)
        scores.append(np.log(joint.sum() * h))
        p = joint / (joint.sum() * h)
    return np.array(scores)


def scores(n: int) -> Iterator[Figure]:
    model = models()["double well"]
    series = simulated(model, n)
    found, exact = gv.filter(model, series, _DT, (0.0, series.times[-1])), grid_scores(series)
    away = found.log_scores - exact
    yield Figure("online", f"double well, {n} observations, exact score", exact.mean(), "nats an observation")
    yield Figure("online", "its difference, gv.filter less exact", away.mean(), "nats an observation")
    yield Figure("online", "root mean square of single differences", np.sqrt((away**2).mean()), "nats")


def scenario(data: Path | None, sizes: tuple[int, ...] = (400, 2000)) -> Iterator[Figure]:
    for n in sizes:
        for name, model in models().items():
            yield from updates(name, model, n)
    yield from scores(400)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[400, 2000])
    for figure in scenario(None, tuple(parser.parse_args().sizes)):
        print(figure, flush=True)
