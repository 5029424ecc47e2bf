"""The command `girsanov demo`: simulate a double-well path, infer it from observations, and score the result."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer

from girsanov import report
from girsanov.cli.app import app
from girsanov.cli.groups import with_groups
from girsanov.cli.options import Out, SayOptions, Seed, key, random_times
from girsanov.cli.output import outcome_of, run_folder, save_figure, say, table_of, write_series

if TYPE_CHECKING:
    import girsanov as gv


@app.command(rich_help_panel="To begin")
@with_groups
def demo(say_how: SayOptions, out: Out = Path("out/demo"), seed: Seed = 3) -> None:
    """Simulate a double-well path, infer it, score it, and run an exactness check."""
    with run_folder(out, "demo") as folder:
        good, rows = _run(folder, seed)
    say(say_how, out, table_of("Double well, 32 observations, 8 held out", rows))
    if not good:
        raise typer.Exit(1)


def _run(out: Path, seed: int) -> tuple[bool, dict[str, str]]:
    """Run the demo, write its results to a folder, and return whether the check passed, and what to show."""
    import girsanov as gv

    span, dt, variance = (0.0, 20.0), 0.01, 0.01
    model = gv.Model(
        drift=gv.DoubleWell(scale=4.0, well=1.0),
        diffusion=1.0,
        initial=gv.GaussianState(mean=1.0, cov=1e-4),
        likelihood=gv.likelihoods.Gaussian(variance=variance),
    )
    rng = np.random.default_rng(seed)
    observed = random_times(rng, span, 40)
    times = np.union1d(np.arange(2001) * dt, observed)
    path, series = gv.simulate(model, times, key=key(seed), dt=dt)
    series = series.subset(np.searchsorted(times, observed))
    held_out = np.isin(np.arange(40), rng.choice(40, 8, replace=False))
    train, test = series.subset(~held_out), series.subset(held_out)

    seconds = []
    for _ in range(2):  # in the second run everything is compiled already
        begun = time.perf_counter()
        post = gv.infer(model, train, dt=dt, span=span)
        seconds.append(time.perf_counter() - begun)
    compile_seconds, run_seconds = seconds[0] - seconds[1], seconds[1]
    exactness = _exactness(train, span, variance)
    nlpd, rmse = post.nlpd(test), post.rmse(test)

    data = write_series(out / "data.csv", train)
    write_series(out / "held_out.csv", test)
    save_figure(post, out / "demo.png", test=test, truth=(times, path))
    outcome = outcome_of(post) | {
        "exactness": exactness,
        "compile_seconds": compile_seconds,
        "run_seconds": run_seconds,
        "nlpd": nlpd,
        "rmse": rmse,
    }
    settings = {"drift": "double_well", "params": {"scale": 4.0, "well": 1.0}, "diffusion": 1.0, "noise": variance}
    settings |= {"initial_mean": 1.0, "initial_cov": 1e-4, "dt": dt, "span": span, "observations": 40, "held_out": 8}
    report.write_result(out, "demo", outcome, settings=settings, seeds={"seed": seed}, data=data)

    difference = exactness["difference"]
    good = difference < 1e-8
    return good, {
        "ELBO": f"{post.elbo:.6f} nats, {post.status}",
        "exactness check": f"{difference:.1e} nats from dense algebra, {'passed' if good else 'FAILED'}",
        "iterations": f"{len(post.history) - 1} on {len(post.times)} nodes",
        "compile": f"{compile_seconds:.2f} s",
        "run": f"{run_seconds:.3f} s",
        "held-out NLPD": f"{nlpd:.4f} nats a point",
        "held-out RMSE": f"{rmse:.4f}",
    }


def _exactness(series: "gv.TimeSeries", span: tuple[float, float], variance: float) -> dict[str, float]:
    """Compare the ELBO after one full step with the log evidence by dense algebra, for the double well linearised at 1.

    There f(x) ≈ −8 (x − 1), an Ornstein–Uhlenbeck process about 1, for which the two are equal on every grid.
    """
    import girsanov as gv

    decay, mean, cov = 8.0, 1.0, 1e-4
    model = gv.Model(
        drift=gv.Linear([[-decay]], [decay * mean]),
        diffusion=1.0,
        initial=gv.GaussianState(mean, cov),
        likelihood=gv.likelihoods.Gaussian(variance),
    )
    post = gv.infer(model, series, dt=0.05, span=span, method=gv.CVIDP(rho=1.0, max_iterations=1))
    # x_0 = mean + e_0 and x_{m+1} = x_m − Δ decay (x_m − mean) + e_{m+1}, so that B (x − mean) = e
    gaps = np.diff(post.times)
    B = np.eye(len(post.times)) - np.diag(1.0 - gaps * decay, -1)
    root = np.linalg.solve(B, np.diag(np.sqrt([cov, *gaps])))
    seen = root[np.searchsorted(post.times, series.times)]
    K = seen @ seen.T + variance * np.eye(len(series))
    e = series.values[:, 0] - mean
    log_evidence = float(-0.5 * (e @ np.linalg.solve(K, e) + np.linalg.slogdet(2.0 * np.pi * K)[1]))
    return {"elbo": post.elbo, "log_evidence": log_evidence, "difference": abs(post.elbo - log_evidence)}
