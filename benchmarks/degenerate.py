"""Singular noise: a Langevin double well of which only the position is observed, and tracking by range and bearing.

    python -m benchmarks.degenerate [order] [evidence] [parameters] [tracking] [--sets 20]

- `order`: the bound at four steps, and its observed order of convergence.
- `evidence`: log p(y) by a bootstrap particle filter in NumPy that shares no code with the library, and how far the
  bound lies below it. Its steps are the splitting BAOAB, whose error is of second order in the step.
- `parameters`: learning from simulated data sets, and how many intervals of ± 1.96 standard errors hold the truth.
- `tracking`: means and spreads of `infer` against guided particles, for a state of four dimensions.
"""

import argparse
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import girsanov as gv
from girsanov.baselines import particle_smoother

SCALE, WELL, FRICTION, NOISE, VARIANCE = 4.0, 1.0, 0.8, 0.7, 0.05
SPAN = (0.0, 10.0)
STEPS = (0.1, 0.05, 0.025, 0.0125)
WANTED_ORDER = 1.8
PARTICLES, RUNS, SUBSTEPS = 100_000, 6, 50
TRUTH = {"drift.force.scale": SCALE, "drift.force.well": WELL, "drift.friction": FRICTION, "diffusion[1, 1]": NOISE}
_Z = 1.959963984540054


def langevin(off: float = 1.0) -> gv.Model:
    """The true model, or one with parameters that are off by a factor."""
    return gv.Model(
        gv.Langevin(gv.DoubleWell(SCALE / off, WELL * off), FRICTION * off),
        [0.0, NOISE * off],
        likelihood=gv.likelihoods.Gaussian(VARIANCE),
        emission=[[1.0, 0.0]],
    )


def positions(seed: int, end: float = SPAN[1], n: int = 40) -> gv.TimeSeries:
    times = np.linspace(0.0, end, n + 1)[1:]
    return gv.simulate(langevin(), times, key=jax.random.key(seed), start=0.0, dt=0.002).series


def table(title: str, *columns: str) -> Table:
    out = Table(title=title)
    for i, name in enumerate(columns):
        out.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    return out


def order(console: Console, sets: int) -> bool:
    options = {"span": SPAN, "method": gv.CVIDP(tolerance=1e-10), "progress": False}
    posts = [gv.infer(langevin(), positions(3), dt, **options) for dt in STEPS]
    bounds = np.array([p.elbo for p in posts])
    change = np.diff(bounds)
    observed = np.log2(np.abs(change[:-1] / change[1:]))
    out = table("Bound of the double well", "dt", "bound", "change", "order", "status")
    cells = ["", *(f"{c:.2e}" for c in change)], ["", "", *(f"{o:.2f}" for o in observed)]
    for i, post in enumerate(posts):
        out.add_row(f"{STEPS[i]:g}", f"{bounds[i]:.6f}", cells[0][i], cells[1][i], post.status)
    console.print(out)
    return bool((observed >= WANTED_ORDER).all())


def bootstrap(series: gv.TimeSeries, n: int, rng: np.random.Generator) -> float:
    """Log evidence by a particle filter with systematic resampling at every observation; NumPy alone."""
    x, v = rng.standard_normal((2, n))
    before, total = SPAN[0], 0.0
    for t, y in zip(series.times, series.values[:, 0], strict=True):
        h = (t - before) / SUBSTEPS
        keep = np.exp(-FRICTION * h)
        kick = np.sqrt(NOISE * (1.0 - keep**2) / (2.0 * FRICTION))
        for _ in range(SUBSTEPS):
            v = v + 0.5 * h * SCALE * x * (WELL - x**2)
            x = x + 0.5 * h * v
            v = keep * v + kick * rng.standard_normal(n)
            x = x + 0.5 * h * v
            v = v + 0.5 * h * SCALE * x * (WELL - x**2)
        log_w = -0.5 * ((y - x) ** 2 / VARIANCE + np.log(2.0 * np.pi * VARIANCE))
        w = np.exp(log_w - log_w.max())
        total += log_w.max() + np.log(w.mean())
        index = np.searchsorted(np.cumsum(w), (np.arange(n) + rng.random()) / n * w.sum())
        index = np.minimum(index, n - 1)
        x, v, before = x[index], v[index], t
    return float(total)


def evidence(console: Console, sets: int) -> bool:
    series, dt = positions(3), 0.025
    logs = np.array([bootstrap(series, PARTICLES, np.random.default_rng(i)) for i in range(RUNS)])
    w = np.exp(logs - logs.max())
    wanted, error = logs.max() + np.log(w.mean()), w.std(ddof=1) / w.mean() / np.sqrt(RUNS)
    post = gv.infer(langevin(), series, dt, SPAN, progress=False)
    found = post.diagnose(key=jax.random.key(0), n=4000)
    drawn = particle_smoother(
        langevin(), series, dt, SPAN, key=jax.random.key(1), guided=post, trust=0.8, particles=100, samples=800,
        chains=4, evidence_runs=64, progress=False,
    )  # fmt: skip
    out = table(f"Evidence of the double well, dt = {dt:g}", "by", "log p(y)", "error", "difference", "in errors")
    rows = (
        (f"independent filter, {PARTICLES} × {RUNS}", wanted, error),
        ("bound", post.elbo, 0.0),
        ("weights of q's paths and filter (diagnose)", found.log_evidence, found.standard_error),
        ("guided particles", drawn.log_evidence, drawn.standard_error),
    )
    for name, value, own in rows:
        away = (value - wanted) / np.hypot(error, own)
        out.add_row(name, f"{value:.4f}", f"{own:.4f}", f"{value - wanted:+.4f}", f"{away:+.1f}")
    console.print(out)
    console.print(f"diagnose says {found.verdict!r}, k̂ = {found.k_hat:.2f}")
    return all(abs(v - wanted) < 3.0 * np.hypot(error, own) for _, v, own in rows[2:])


def parameters(console: Console, sets: int) -> bool:
    end, n, dt = 40.0, 200, 0.1
    options = {"trainable": ["drift", "diffusion"], "method": gv.CVIDP(time="continuous"), "progress": False}
    begun, fits = time.perf_counter(), []
    for seed in range(sets):
        fits.append(gv.learn(langevin(1.3), positions(100 + seed, end, n), dt, (0.0, end), **options))
        print(f"set {seed}: {fits[-1].status}, {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    title = f"{sets} data sets, {n} positions up to time {end:g}, dt = {dt:g}"
    out = table(title, "parameter", "truth", "mean", "sd", "median std. error", "covered")
    hits = total = 0
    for name, truth in TRUTH.items():
        found = np.array([_value(fit.model, name) for fit in fits])
        error = np.array([(fit.standard_errors or {}).get(name, np.nan) for fit in fits])
        inside = np.abs(found - truth) <= _Z * error
        hits, total = hits + int(inside.sum()), total + int(np.isfinite(error).sum())
        figures = (found.mean(), found.std(ddof=1), np.nanmedian(error))
        count = f"{inside.sum()} of {np.isfinite(error).sum()}"
        out.add_row(name, f"{truth:g}", *(f"{v:.4f}" for v in figures), count)
    console.print(out)
    statuses = [fit.status for fit in fits]
    console.print(f"covered {hits} of {total} ({100.0 * hits / max(total, 1):.1f} %); statuses {sorted(set(statuses))}")
    return 0.9 <= hits / max(total, 1) <= 0.99


def _value(model: gv.Model, name: str) -> float:
    drift = model.drift
    values = {
        "drift.force.scale": drift.force.scale,
        "drift.force.well": drift.force.well,
        "drift.friction": drift.friction,
        "diffusion[1, 1]": np.asarray(model.diffusion)[1, 1],
    }
    return float(np.asarray(values[name]).squeeze())


def radar(x, t):
    """Range and bearing of a position, seen from the origin."""
    return jnp.stack([jnp.hypot(x[0], x[1]), jnp.arctan2(x[1], x[0])])


def tracking(console: Console, sets: int) -> bool:
    model = gv.Model(
        gv.ConstantVelocity(2),
        [0.0, 0.0, 0.2, 0.2],
        gv.GaussianState([3.0, 1.0, -0.8, 0.5], [0.25, 0.25, 0.1, 0.1]),
        gv.likelihoods.Gaussian([0.02, 0.01]),
        emission=radar,
    )
    series = gv.simulate(model, np.linspace(0.5, 4.0, 8), key=jax.random.key(2), start=0.0).series
    out = table(
        "Tracking by range and bearing, d = 4", "dt", "bound", "log p(y)", "error", "mean off, sd", "errors",
        "sd off, %", "ESS", "R̂", "least acceptance",
    )  # fmt: skip
    fine = True
    for dt in (0.25, 0.05):
        post = gv.infer(model, series, dt, (0.0, 4.0), progress=False)
        got = particle_smoother(
            model, series, dt, (0.0, 4.0), key=jax.random.key(0), guided=post, trust=0.8, particles=60, samples=6000,
            progress=False,
        )  # fmt: skip
        off = np.abs(post.mean - got.mean) / got.std
        spread = 100.0 * np.abs(post.std / got.std - 1.0).max()
        out.add_row(
            f"{dt:g}", f"{post.elbo:.4f}", f"{got.log_evidence:.4f}", f"{got.standard_error:.4f}", f"{off.max():.3f}",
            f"{off.max() * np.sqrt(got.ess):.1f}", f"{spread:.1f}", f"{got.ess:.0f}", f"{got.rhat:.3f}",
            f"{got.acceptance.min():.2f}",
        )  # fmt: skip
        fine &= bool(off.max() < 3.0 / np.sqrt(got.ess) + 0.1)
    console.print(out)
    return fine


PARTS = {"order": order, "evidence": evidence, "parameters": parameters, "tracking": tracking}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; all by default")
    parser.add_argument("--sets", type=int, default=20, help="data sets for the parameters")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.part if name not in PARTS]:
        parser.error(f"no part is called {unknown[0]!r}: choose from {', '.join(PARTS)}")
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=150)
    met = {name: PARTS[name](console, options.sets) for name in options.part or PARTS}
    console.print(", ".join(f"{name}: target {'met' if good else 'NOT met'}" for name, good in met.items()))
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
