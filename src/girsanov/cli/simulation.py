"""The commands `girsanov simulate` and `girsanov forecast`, which draw paths of a model."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from girsanov import report
from girsanov.cli.app import app
from girsanov.cli.options import (
    Diffusion,
    Drift,
    Emission,
    InitialCov,
    InitialMean,
    Noise,
    Out,
    Param,
    Seed,
    key,
    model_in,
    random_times,
)
from girsanov.cli.output import begin, check_out, console, print_table, save_figure, write_over_time, write_series


@app.command()
def simulate(
    span: Annotated[tuple[float, float], typer.Option(help="Time of the initial state and end of the horizon.")],
    file: Annotated[
        Path | None, typer.Argument(help="TOML file of equations, instead of options.", exists=True, dir_okay=False)
    ] = None,
    drift: Drift = None,
    noise: Noise = None,
    n: Annotated[int, typer.Option(help="Number of observations, at random times in the span.", min=1)] = 40,
    param: Param = None,
    diffusion: Diffusion = "1",
    initial_mean: InitialMean = "0",
    initial_cov: InitialCov = "1",
    emission: Emission = None,
    dt: Annotated[float, typer.Option(help="Longest step of the simulation.")] = 0.001,
    seed: Seed = 0,
    out: Out = Path("out/simulate"),
) -> None:
    """Simulate a path and noisy observations of it; write them to path.csv and data.csv, at the same times."""
    import girsanov as gv

    check_out(out)

    if not span[0] < span[1]:
        raise ValueError(f"--span must be a start and a later end, as in --span 0 10; got {span[0]:g} {span[1]:g}")
    model, settings = model_in(file, drift, param, diffusion, noise, initial_mean, initial_cov, emission)
    times = random_times(np.random.default_rng(seed), span, n)
    path, series = gv.simulate(model, times, key=key(seed), dt=dt, start=span[0])

    begin(out)
    data = write_series(out / "data.csv", series, model.output_names)
    states = model.state_names or report.names("x", model.dim)
    report.write_table(out / "path.csv", {"t": times} | dict(zip(states, path.T, strict=True)))
    settings |= {"n": n, "span": span, "dt": dt}
    report.write_result(out, "simulate", {"observations": n}, settings=settings, seeds={"seed": seed}, data=data)
    console.print(f"{n} observations in {data}", markup=False, soft_wrap=True)


@app.command()
def forecast(
    file: Annotated[
        Path,
        typer.Argument(
            help="A posterior.gv of `girsanov infer`, or a fit.gv of `girsanov learn`.", exists=True, dir_okay=False
        ),
    ],
    until: Annotated[float, typer.Option(help="Time at which the forecast ends.")],
    n: Annotated[int, typer.Option(help="Number of paths.", min=1)] = 1000,
    steps: Annotated[int, typer.Option(help="Number of equal time steps in the table.", min=1)] = 100,
    seed: Seed = 0,
    out: Out = Path("out/forecast"),
) -> None:
    """Simulate the state onwards from the end of a posterior, and write mean, sd and quantiles of the paths."""
    import girsanov as gv

    check_out(out)

    loaded = gv.load(file)
    post = getattr(loaded, "posterior", loaded)
    end = float(post.times[-1])
    if not until > end:
        raise ValueError(f"--until must lie after the end of the posterior, {end:g}; got {until:g}")
    times = np.linspace(end, until, steps + 1)
    paths = post.forecast(times, key=key(seed), n=n)

    begin(out)
    quantiles = np.quantile(paths, [0.05, 0.5, 0.95], axis=0)
    columns: dict[str, np.ndarray] = {}
    for stem, a in zip(("mean", "sd", "q05_", "q50_", "q95_"), (paths.mean(0), paths.std(0), *quantiles), strict=True):
        d = post.model.dim
        stems = report.names(stem, d) if d > 1 else [stem.rstrip("_")]
        columns |= dict(zip(stems, a.T, strict=True))
    write_over_time(out / "forecast.csv", post, times, columns)
    save_figure(post, out / "figure.png", fan=(times, quantiles))
    settings = {"until": until, "n": n, "steps": steps}
    outcome = {"elbo": post.elbo, "status": post.status}
    report.write_result(out, "forecast", outcome, settings=settings, seeds={"seed": seed}, data=file)
    last = ", ".join(f"{m:.4g} ± {s:.2g}" for m, s in zip(paths[:, -1].mean(0), paths[:, -1].std(0), strict=True))
    print_table(file.name, {"paths": str(n), f"state at {until:g}": f"{last} (mean ± sd)"}, out)
