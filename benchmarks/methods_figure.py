"""The figure of docs/methods.md: one series seen by every method, and their bounds as the grid gets finer.

python -m benchmarks.methods_figure [--out docs/images/methods.png]
"""

import argparse
import sys
from pathlib import Path

import jax
import matplotlib
import numpy as np

import girsanov as gv
from girsanov.baselines import exact_smoother

STEPS = (0.1, 0.05, 0.02, 0.01, 0.005)
SPAN = (0.0, 8.0)
MODEL = gv.Model(
    gv.DoubleWell(scale=1.0, well=1.0),
    diffusion=0.8,
    initial=gv.GaussianState(1.0, 0.05),
    likelihood=gv.likelihoods.Gaussian(variance=0.04),
)
METHODS = {
    "CVI-DP": (gv.CVIDP(), "C1o-"),
    "CVI-DP, continuous": (gv.CVIDP(time="continuous"), "C3s-"),
    "VDP": (gv.VDP(), "C0^-"),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images/methods.png"))
    options = parser.parse_args(argv)
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    times = np.array([0.5, 1.0, 2.2, 4.5, 5.0, 7.2])
    series = gv.simulate(MODEL, times, key=jax.random.key(7), dt=0.01, start=0.0).series
    exact = {dt: exact_smoother(MODEL, series, dt=dt, span=SPAN) for dt in STEPS}
    posts = {
        name: {dt: gv.infer(MODEL, series, dt, SPAN, method=method, progress=False) for dt in STEPS}
        for name, (method, _) in METHODS.items()
    }
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", width_ratios=(1.6, 1))
    truth = exact[0.02]
    levels = np.linspace(-2.5, 2.5, 300)
    density = np.stack([np.interp(levels, x, p, 0.0, 0.0) for x, p in zip(truth.points, truth.density, strict=True)])
    left.pcolormesh(truth.times, levels, np.sqrt(density.T), cmap="Greys", shading="nearest", rasterized=True)
    for name, color in (("CVI-DP", "C1"), ("VDP", "C0")):
        post = posts[name][0.02]
        mean, sd = post.mean[:, 0], post.std[:, 0]
        left.plot(post.times, mean, color=color, label=f"{name}: mean ± 2 sd")
        for side in (-2, 2):
            left.plot(post.times, mean + side * sd, color=color, linewidth=0.7)
    left.plot(series.times, series.values[:, 0], "kx", label="observations")
    left.set(
        xlabel="time", ylabel="state", ylim=(-2.5, 2.5), title="exact density (grey) and Gaussian posteriors, dt 0.02"
    )
    left.legend(fontsize=7, loc="lower left", ncols=3)
    right.plot(STEPS, [exact[dt].log_evidence for dt in STEPS], "k.:", label="exact evidence of the Euler chain")
    for name, (_, style) in METHODS.items():
        right.plot(STEPS, [posts[name][dt].elbo for dt in STEPS], style, label=f"{name}: bound", markersize=4)
    right.set(xscale="log", xlabel="dt", ylabel="nats", title="as the grid gets finer")
    right.legend(fontsize=7)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=130)
    for dt in STEPS:
        bounds = ", ".join(f"{name} {posts[name][dt].elbo:.4f} ({posts[name][dt].status})" for name in METHODS)
        print(f"dt {dt:g}: exact {exact[dt].log_evidence:.4f}, {bounds}")
    print(f"figure written to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
