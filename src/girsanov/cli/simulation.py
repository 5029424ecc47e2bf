"""The commands `girsanov simulate`, `girsanov forecast` and `girsanov diagnose`, which draw paths of a model."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from girsanov import report
from girsanov.cli.analysis import Method, method_of, read_task
from girsanov.cli.app import app
from girsanov.cli.groups import with_groups
from girsanov.cli.modelling import is_model, load_result, stated_model
from girsanov.cli.options import (
    DataOptions,
    ModelOptions,
    Out,
    SayOptions,
    Seed,
    Span,
    Step,
    key,
    random_times,
    run_option,
)
from girsanov.cli.output import run_folder, save_figure, say, table_of, write_over_time, write_series
from girsanov.cli.reading import in_lines, times_of
from girsanov.cli.run_folder import copy_input

Estimates = Annotated[
    list[Path],
    typer.Argument(metavar="RUN | MODEL DATA", help="Run folder or .gv; or model, then data."),
]


@app.command()
@with_groups
def simulate(
    model: ModelOptions,
    say_how: SayOptions,
    span: Annotated[tuple[float, float], run_option("Begin and end", metavar="BEGIN END")],
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[MODEL]", help="A model (.toml, .gv or run folder).")
    ] = None,
    n: Annotated[int, run_option("Number of observations, at random times; 40", min=1, metavar="NUMBER")] = 40,
    dt: Annotated[float, run_option("Longest step; 0.001", metavar="NUMBER")] = 0.001,
    seed: Seed = 0,
    out: Out = Path("out/simulate"),
) -> None:
    """Simulate a path and noisy observations of it."""
    import girsanov as gv

    if (out / "data.csv").exists() and not (out / "result.json").exists():
        raise ValueError(f"--out {out} has a data.csv that no run has written; choose another folder")
    with run_folder(out, "simulate") as folder:
        if not span[0] < span[1]:
            raise ValueError(f"--span must be a start and a later end, as in --span 0 10; got {span[0]:g} {span[1]:g}")
        stated = stated_model(_only(files), model)
        times = random_times(np.random.default_rng(seed), span, n)
        path, series = gv.simulate(stated.model, times, key=key(seed), dt=dt, start=span[0])
        data = write_series(folder / "data.csv", series, stated.model.output_names)
        states = stated.model.state_names or report.names("x", stated.model.dim)
        report.write_table(folder / "path.csv", {"t": times} | dict(zip(states, path.T, strict=True)))
        settings = stated.settings | {"n": n, "span": span, "dt": dt}
        if stated.file is not None and stated.file.suffix.lower() == ".toml":
            copy_input(stated.file, folder, out, "model.toml")
        outcome = {"observations": n}
        report.write_result(folder, "simulate", outcome, settings=settings, seeds={"seed": seed}, data=data)
    say(say_how, out, f"{n} observations in {out / 'data.csv'}")


def _only(files: list[Path] | None) -> Path | None:
    """Return the one model that was given, or None."""
    if files and len(files) > 1:
        raise ValueError(f"simulate takes one model, and got {', '.join(map(str, files))}")
    if files and not files[0].exists():
        raise ValueError(f"there is no file {files[0]}")
    return files[0] if files else None


def _estimate(
    files: list[Path], model: ModelOptions, data: DataOptions, grid: tuple, method: str, quiet: bool
) -> tuple[Any, dict[str, Any], str, Path, list[str | None]]:
    """Return a posterior, settings, a name, the file to hash, and lines: read from a run, or inferred from data."""
    import girsanov as gv

    if len(files) == 1 and (is_model(files[0]) or not files[0].exists() or model.drift is None):
        if files[0].suffix.lower() == ".toml":
            raise ValueError(f"{files[0]} is a file of equations: give the file with the data after it")
        if not files[0].exists():
            raise ValueError(f"there is no file {files[0]}")
        if not is_model(files[0]):
            raise ValueError(
                f"{files[0]} is not a Girsanov file (.gv) or a run folder; if it has data, give a model before it"
            )
        loaded = load_result(files[0], model)
        post = getattr(loaded, "posterior", loaded)
        name = files[0].name or str(files[0])
        made = next((files[0] / n for n in ("fit.gv", "posterior.gv") if (files[0] / n).exists()), files[0])
        if hasattr(post, "elbos"):
            raise ValueError(f"{files[0]} has the posteriors of many series: this command takes that of one")
        return post, {}, name, made, []
    if data.id is not None:
        raise ValueError("--id: this command takes a single series; leave it out, or choose rows of one series")
    how = method_of(method)
    task = read_task(files, model, data, grid[0], grid[1], how, not quiet)
    with in_lines(task.read.data):
        post = gv.infer(task.model, task.read.data, dt=task.dt, span=task.span, method=how, progress=not quiet)
    return post, task.settings(), task.read.file.name, task.read.file, [task.read.line, task.line or None]


@app.command()
@with_groups
def forecast(
    files: Estimates,
    model: ModelOptions,
    data: DataOptions,
    say_how: SayOptions,
    until: Annotated[str, run_option("End of the forecast: a time or a date", metavar="TIME")],
    n: Annotated[int, run_option("Number of paths; 1000", min=1, metavar="NUMBER")] = 1000,
    steps: Annotated[int, run_option("Number of equal time steps in the table; 100", min=1, metavar="NUMBER")] = 100,
    dt: Step = None,
    span: Span = None,
    method: Method = "cvi_dp",
    seed: Seed = 0,
    out: Out = Path("out/forecast"),
) -> None:
    """Simulate the state onwards from the end of the data."""
    with run_folder(out, "forecast") as folder:
        post, stated, name, source, lines = _estimate(files, model, data, (dt, span), method, say_how.quiet)
        end = float(post.times[-1])
        last = times_of(post.series, [until], "--until")[0]
        if not last > end:
            raise ValueError(f"--until must lie after the end of the posterior, {end:g}; got {until}")
        times = np.linspace(end, last, steps + 1)
        paths = post.forecast(times, key=key(seed), n=n)
        quantiles = np.quantile(paths, [0.05, 0.5, 0.95], axis=0)
        columns: dict[str, np.ndarray] = {}
        parts = zip(("mean", "sd", "q05_", "q50_", "q95_"), (paths.mean(0), paths.std(0), *quantiles), strict=True)
        for stem, a in parts:
            d = post.model.dim
            columns |= dict(zip(report.names(stem, d) if d > 1 else [stem.rstrip("_")], a.T, strict=True))
        write_over_time(folder / "forecast.csv", post, times, columns)
        save_figure(post, folder / "figure.png", fan=(times, quantiles))
        settings = stated | {"until": last, "n": n, "steps": steps}
        outcome = {"elbo": post.elbo, "status": post.status}
        report.write_result(folder, "forecast", outcome, settings=settings, seeds={"seed": seed}, data=source)
    ends = zip(paths[:, -1].mean(0), paths[:, -1].std(0), strict=True)
    shown = ", ".join(f"{m:.4g} ± {s:.2g}" for m, s in ends)
    say(say_how, out, *lines, table_of(name, {"paths": str(n), f"state at {until}": f"{shown} (mean ± sd)"}))


@app.command()
@with_groups
def diagnose(
    files: Estimates,
    model: ModelOptions,
    data: DataOptions,
    say_how: SayOptions,
    n: Annotated[int, run_option("Number of paths; 2000", min=100, metavar="NUMBER")] = 2000,
    dt: Step = None,
    span: Span = None,
    method: Method = "cvi_dp",
    seed: Seed = 0,
    out: Out = Path("out/diagnose"),
) -> None:
    """Judge how far a posterior can be trusted."""
    with run_folder(out, "diagnose") as folder:
        post, stated, name, source, lines = _estimate(files, model, data, (dt, span), method, say_how.quiet)
        judged = post.diagnose(key=key(seed), n=n)
        kept = ("verdict", "message", "log_evidence", "standard_error", "elbo", "k_hat", "ess", "filter_evidence")
        outcome = {k: getattr(judged, k) for k in (*kept, "filter_error", "missed", "quadrature_error")}
        if judged.where is not None:
            judged.plot().savefig(folder / "diagnosis.png", dpi=150)
        settings = stated | {"n": n}
        report.write_result(folder, "diagnose", outcome, settings=settings, seeds={"seed": seed}, data=source)
    rows = {
        "verdict": judged.verdict,
        "reasons": judged.message,
        "evidence": f"{judged.log_evidence:.4f} ± {judged.standard_error:.4f} nats",
        "bound": f"{judged.elbo:.4f} nats",
        "paths": f"{judged.ess:.0f} of {judged.n} effective, k̂ = {judged.k_hat:.2f}",
    }
    say(say_how, out, *lines, table_of(name, rows))
