"""The commands `girsanov infer`, `girsanov learn` and `girsanov compare`, which read observations from a CSV file."""

import time as clock
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from girsanov import report
from girsanov.cli.app import app
from girsanov.cli.options import (
    Data,
    Diffusion,
    Drift,
    Emission,
    File,
    InitialCov,
    InitialMean,
    Noise,
    Out,
    Param,
    Seed,
    Span,
    Step,
    TimeColumn,
    Unit,
    ValueColumns,
    files_of,
    model_in,
    series_of,
)
from girsanov.cli.output import (
    begin,
    check_out,
    console,
    not_converged,
    outcome_of,
    print_table,
    save_figure,
    write_over_time,
)

if TYPE_CHECKING:
    import girsanov as gv


def _methods() -> dict[str, Any]:
    import girsanov as gv

    return {"cvi_dp": gv.CVIDP(), "continuous": gv.CVIDP(time="continuous"), "vdp": gv.VDP()}


def _method(name: str) -> Any:
    methods = _methods()
    if name not in methods:
        raise ValueError(f"unknown --method {name!r}; choose one of {', '.join(methods)}")
    return methods[name]


def _read(
    files: tuple[Path, Path | None], columns: tuple[str, list[str] | None, str | None], parts: tuple
) -> tuple["gv.TimeSeries", "gv.Model", dict[str, Any], Path]:
    """Return series and model from what states them, this as settings for the record, and the file of the data."""
    equations, file = files_of(*files)
    model, settings = model_in(equations, *parts)
    series, of_file = series_of(file, *columns, outputs=model.output_names or ())
    return series, model, settings | of_file, file


def _write_posterior(post: "gv.Posterior", out: Path) -> None:
    columns: dict[str, Any] = {}
    for stem, a in (("mean", post.mean), ("sd", post.std)):
        columns |= dict(zip(report.names(stem, post.model.dim), a.T, strict=True))
    write_over_time(out / "posterior.csv", post, post.times, columns)
    save_figure(post, out / "figure.png")


@app.command()
def infer(
    file: File,
    dt: Step,
    data: Data = None,
    drift: Drift = None,
    noise: Noise = None,
    time: TimeColumn = "t",
    values: ValueColumns = None,
    unit: Unit = None,
    param: Param = None,
    diffusion: Diffusion = "1",
    initial_mean: InitialMean = "0",
    initial_cov: InitialCov = "1",
    emission: Emission = None,
    span: Span = None,
    method: Annotated[str, typer.Option(help="cvi_dp, continuous (CVI-DP in continuous time) or vdp.")] = "cvi_dp",
    out: Out = Path("out/infer"),
) -> None:
    """Infer the path of a latent process from a CSV file of noisy observations."""
    import girsanov as gv

    check_out(out)
    parts = (drift, param, diffusion, noise, initial_mean, initial_cov, emission)
    series, model, settings, source = _read((file, data), (time, values, unit), parts)
    how = _method(method)
    post = gv.infer(model, series, dt=dt, span=span, method=how)

    begin(out)
    _write_posterior(post, out)
    post.save(out / "posterior.gv")
    settings |= {
        "dt": dt,
        "span": [post.times[0], post.times[-1]],
        "method": method,
    }
    settings |= {"tolerance": how.tolerance, "max_iterations": how.max_iterations}
    report.write_result(out, "infer", outcome_of(post), settings=settings, seeds={}, data=source)
    print_table(
        f"{source.name}, {drift or file.name}",
        {
            "ELBO": f"{post.elbo:.6f} nats",
            "status": post.status,
            "iterations": f"{len(post.history) - 1} on {len(post.times)} nodes",
            "time": f"{post.seconds:.2f} s, compilation included",
        },
        out,
    )
    not_converged({} if post.converged else {post.status: post.message})


@app.command()
def learn(
    file: File,
    dt: Step,
    data: Data = None,
    drift: Drift = None,
    noise: Noise = None,
    trainable: Annotated[
        list[str] | None,
        typer.Option(
            help="Parameter to learn, such as drift; may be repeated. By default all that equations leave free."
        ),
    ] = None,
    time: TimeColumn = "t",
    values: ValueColumns = None,
    unit: Unit = None,
    param: Param = None,
    diffusion: Diffusion = "1",
    initial_mean: InitialMean = "0",
    initial_cov: InitialCov = "1",
    emission: Emission = None,
    span: Span = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="What is maximised: the bound by modified, standard or profile, by default the one that suits the "
            "method; or the evidence, by exact for scalar states or by particles.",
            show_default=False,
        ),
    ] = None,
    max_iterations: Annotated[int, typer.Option(help="Largest number of iterations of learning.", min=1)] = 100,
    seed: Seed = 0,
    out: Out = Path("out/learn"),
) -> None:
    """Learn parameters from a CSV file, with standard errors; the parameters given are the starting values."""
    import jax

    import girsanov as gv

    check_out(out)
    parts = (drift, param, diffusion, noise, initial_mean, initial_cov, emission)
    series, model, settings, source = _read((file, data), (time, values, unit), parts)
    options = {"objective": objective, "max_iterations": max_iterations}
    key = jax.random.key(seed) if objective == "particles" else None
    fit = gv.learn(model, series, dt=dt, span=span, trainable=trainable or None, key=key, **options)

    begin(out)
    _write_posterior(fit.posterior, out)
    fit.save(out / "fit.gv")
    fit.plot().savefig(out / "learning.png", dpi=150)
    columns = {"elbo": fit.history.elbo, "seconds": fit.history.seconds}
    for path, trace in fit.history.parameters.items():
        flat = trace.reshape(len(trace), -1)
        columns |= dict(zip(report.names(path, flat.shape[1]), flat.T, strict=True))
    report.write_table(out / "history.csv", columns)
    horizon = [fit.posterior.times[0], fit.posterior.times[-1]]
    settings |= {
        "dt": dt,
        "span": horizon,
        "trainable": trainable or list(fit.trainable),
        **options,
    }
    outcome = outcome_of(fit.posterior) | {"status": fit.status, "message": fit.message, "converged": fit.converged}
    outcome |= {"iterations": len(fit.history) - 1, "seconds": float(fit.history.seconds[-1])}
    outcome |= {"parameters": fit.parameters, "standard_errors": fit.standard_errors}
    if fit.evidence is not None:
        outcome["evidence"] = fit.evidence.stored()
    seeds = {} if key is None else {"seed": seed}
    report.write_result(out, "learn", outcome, settings=settings, seeds=seeds, data=source)
    console.print(fit.summary(), markup=False)
    console.print(f"written to {out}", markup=False, soft_wrap=True)
    not_converged({} if fit.converged else {fit.status: fit.message})


@app.command()
def compare(
    file: File,
    dt: Step,
    data: Data = None,
    drift: Drift = None,
    noise: Noise = None,
    time: TimeColumn = "t",
    values: ValueColumns = None,
    unit: Unit = None,
    param: Param = None,
    diffusion: Diffusion = "1",
    initial_mean: InitialMean = "0",
    initial_cov: InitialCov = "1",
    emission: Emission = None,
    span: Span = None,
    hold_out: Annotated[float, typer.Option(help="Share of the observations to score on.", min=0.0, max=0.9)] = 0.2,
    seed: Seed = 0,
    out: Out = Path("out/compare"),
) -> None:
    """Compare all methods on a CSV file: evidence or its bound, scores on held-out observations, and run time."""
    import girsanov as gv
    from girsanov.baselines import exact_smoother

    check_out(out)
    parts = (drift, param, diffusion, noise, initial_mean, initial_cov, emission)
    series, model, settings, source = _read((file, data), (time, values, unit), parts)
    count = round(hold_out * len(series))
    held = np.isin(np.arange(len(series)), np.random.default_rng(seed).choice(len(series), count, replace=False))
    train, test = series.subset(~held), series.subset(held) if count else None
    span = span or (float(series.times[0]), float(series.times[-1]))
    runs: dict[str, Any] = {
        name: lambda m=m: gv.infer(model, train, dt=dt, span=span, method=m) for name, m in _methods().items()
    }
    if model.dim == 1:
        scored = None if test is None else test.times
        runs["exact"] = lambda: exact_smoother(model, train, dt=dt, span=span, at=scored)

    rows: dict[str, dict[str, Any]] = {}
    stuck: dict[str, str] = {}
    for name, run in runs.items():
        begun = clock.perf_counter()
        result = run()
        row: dict[str, Any] = {"seconds": clock.perf_counter() - begun}
        exact = name == "exact"
        row |= {"nats": result.log_evidence if exact else result.elbo, "status": "exact" if exact else result.status}
        row |= {"nlpd": result.nlpd(test), "rmse": result.rmse(test)} if test else {"nlpd": None, "rmse": None}
        rows[name] = row
        if not exact and not result.converged:
            stuck[name] = f"{result.status}: {result.message}"

    begin(out)
    settings |= {"dt": dt, "span": list(span), "hold_out": hold_out}
    report.write_result(out, "compare", {"methods": rows}, settings=settings, seeds={"seed": seed}, data=source)
    names = ("nats", "nlpd", "rmse", "seconds")
    columns = {n: np.array([np.nan if r[n] is None else r[n] for r in rows.values()], float) for n in names}
    report.write_labelled(out / "comparison.csv", {"method": list(rows)}, columns)
    score = {n: f"NLPD {r['nlpd']:.4f}, RMSE {r['rmse']:.4f}, " if test else "" for n, r in rows.items()}
    lines = {n: f"{r['nats']:.4f} nats, {score[n]}{r['seconds']:.2f} s, {r['status']}" for n, r in rows.items()}
    print_table(f"{source.name}, {drift or file.name}: {len(train)} observations, {count} held out", lines, out)
    not_converged(stuck)
