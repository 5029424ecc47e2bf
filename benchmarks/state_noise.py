"""Noise that depends on the state, beside exact answers: python -m benchmarks.state_noise [PART] [--data DIR]

rates      the Cox–Ingersoll–Ross model of monthly interest rates, by learning in continuous time, and by maximum
           likelihood with the non-central χ² transition, at three steps
simulated  the same on 20 series drawn from the exact transition
lynx       lynx and hare with multiplicative noise: fit, bands, forecast and verdict; run it under `time`

DIR has the folder `real`, by default ../shared/data; the parts that need it say so where it is absent.
"""

import argparse
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy.optimize
import scipy.stats

import girsanov as gv

NOISE = 1e-8  # variance of the observations: they are all but exact


class MeanReverting(eqx.Module):
    """The drift rate · (level − x)."""

    rate: jax.Array
    level: jax.Array
    constraints = {"rate": "positive", "level": "positive"}  # noqa: RUF012

    def __call__(self, x, t):
        return self.rate * (self.level - x)


def transition(x: np.ndarray, gap: float, rate: float, level: float, scale: float) -> tuple[float, object]:
    """The factor 2c and the non-central χ² law of 2c x₊ given x."""
    c = 2.0 * rate / (scale**2 * -np.expm1(-rate * gap))
    return 2.0 * c, scipy.stats.ncx2(4.0 * rate * level / scale**2, 2.0 * c * x * np.exp(-rate * gap))


def maximum_likelihood(x: np.ndarray, gap: float, start: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Estimates and standard errors of log rate, log level and log scale, by Nelder and Mead's method."""

    def minus(p: np.ndarray) -> float:
        factor, law = transition(x[:-1], gap, *np.exp(p))
        return -float(np.sum(np.log(factor) + law.logpdf(factor * x[1:])))

    best = scipy.optimize.minimize(minus, np.log(start), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-10})
    h, I = 1e-3, np.eye(3)
    H = [
        [
            sum(s * r * minus(best.x + h * (s * I[i] + r * I[j])) for s in (1, -1) for r in (1, -1)) / (4 * h * h)
            for j in range(3)
        ]
        for i in range(3)
    ]
    return best.x, np.sqrt(np.diagonal(np.linalg.inv(H)))


def learnt(x: np.ndarray, gap: float, dt: float, start: list[float]) -> tuple[gv.Fit, np.ndarray]:
    model = gv.Model(
        MeanReverting(start[0], start[1]),
        diffusion=gv.diffusions.SquareRoot(start[2]),
        initial=gv.GaussianState(x[0], NOISE),
        likelihood=gv.likelihoods.Gaussian(NOISE),
    )
    series = gv.TimeSeries(gap * np.arange(len(x)), x)
    method = gv.CVIDP(time="continuous")
    fit = gv.learn(model, series, dt=dt, trainable=["drift", "diffusion"], method=method, progress=False)
    return fit, np.log([fit.model.drift.rate, fit.model.drift.level, fit.model.diffusion.scale])


def rates(data: Path) -> None:
    x = pd.read_csv(data / "real" / "Irates.csv")["r1"].to_numpy(float)
    gap = 1.0 / 12.0
    exact, errors = maximum_likelihood(x, gap, [0.3, 5.0, 0.8])
    print(f"{len(x)} months; maximum likelihood: rate, level, scale {np.exp(exact).round(5)}")
    for dt in (gap, gap / 2, gap / 4):
        begun = time.perf_counter()
        fit, found = learnt(x, gap, dt, [0.3, 5.0, 0.8])
        off = np.abs(found - exact) / errors
        seconds = time.perf_counter() - begun
        values = f"{np.exp(found).round(5)}, off by {off.max():.4f} standard errors"
        print(f"dt 1/{1 / dt:.0f}: {values}, {fit.status}, {seconds:.1f} s")


def simulated(data: Path) -> None:
    rng, gap, truth, worst = np.random.default_rng(0), 0.25, [1.0, 1.0, 0.4], []
    for _ in range(20):
        x = [1.0]
        for _ in range(200):
            factor, law = transition(x[-1], gap, *truth)
            x.append(law.rvs(random_state=rng) / factor)
        exact, errors = maximum_likelihood(np.array(x), gap, truth)
        fit, found = learnt(np.array(x), gap, gap / 2, [0.5, 1.5, 0.3])
        worst.append((np.abs(found - exact) / errors).max())
        print(f"off by {(np.abs(found - exact) / errors).round(5)} standard errors, {fit.status}", flush=True)
    print(f"largest of 20 sets: {max(worst):.5f} standard errors")


def lynx(data: Path) -> None:
    table = pd.read_csv(data / "real" / "lynx_hare.csv", comment="#", skipinitialspace=True)
    y, t = table[["Hare", "Lynx"]].to_numpy(float), table["Year"].to_numpy(float)
    model = gv.Model(
        gv.LotkaVolterra(0.5, 0.025, 0.025, 0.8),
        diffusion=gv.diffusions.Proportional([0.2, 0.2]),
        initial=gv.GaussianState(y[0], (0.3 * y[0]) ** 2),
        emission=lambda x, t: jnp.log(x),
        likelihood=gv.likelihoods.LogNormal([0.02, 0.02]),
    )
    fit = gv.learn(model, gv.TimeSeries(t, y), dt=0.1, trainable=["drift", "diffusion", "likelihood"], progress=False)
    print(fit.summary())
    post = fit.posterior
    low, high = post.quantiles(t, [0.025, 0.975])
    ahead = post.forecast(np.arange(1921.0, 1931.0), key=jax.random.key(0))
    found = post.diagnose(key=jax.random.key(1))
    print(
        f"95 % bands hold {((y > low) & (y < high)).mean():.1%} of the data; smallest state forecast {ahead.min():.3g}"
    )
    print(f"{found}\n{found.message}")


PARTS = {"rates": rates, "simulated": simulated, "lynx": lynx}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.state_noise", description=__doc__.split(":")[0])
    parser.add_argument("part", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    options = parser.parse_args()
    if unknown := set(options.part) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    for name in options.part or PARTS:
        if name != "simulated" and not (options.data / "real").is_dir():
            print(f"{name}: there is no folder {options.data / 'real'}; give --data", file=sys.stderr)
            continue
        print(f"-- {name}")
        PARTS[name](options.data)


if __name__ == "__main__":
    main()
