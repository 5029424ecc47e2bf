"""The command line: every command reads its options, calls the library, and writes a run folder.

Heavy imports are inside the commands, so that the help is quick. A `ValueError` is the user's to mend: one line, exit
code 2.
"""

import inspect
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from girsanov import report

if TYPE_CHECKING:
    import girsanov as gv

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Bayesian inference in latent diffusion processes dx = f(x, t) dt + L dβ.",
)
_console = Console(highlight=False)

_NUMBERS = "a number, a list 1,2 or a matrix 1,2;3,4"
Drift = Annotated[str, typer.Option(help="Name of the drift f, such as double_well.")]
Param = Annotated[list[str] | None, typer.Option(help="Parameter of the drift, name=value; may be repeated.")]
Diffusion = Annotated[str, typer.Option(help=f"Spectral density Q: {_NUMBERS}.")]
Noise = Annotated[str, typer.Option(help=f"Variance of the Gaussian observation noise: {_NUMBERS}.")]
InitialMean = Annotated[str, typer.Option(help="Mean of the state at the start of the span: a number or a list.")]
InitialCov = Annotated[str, typer.Option(help=f"Covariance of that state: {_NUMBERS}.")]
Emission = Annotated[str | None, typer.Option(help="Matrix H, where H x is observed and not x: rows 1,0;0,1.")]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.")]
Out = Annotated[Path, typer.Option(help="Folder for the results; made if missing.", file_okay=False)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the command `girsanov`."""
    try:
        app(args=arguments)
    except ValueError as error:
        message = " ".join(str(error).split())
        Console(stderr=True).print(f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        print(f"girsanov {report.versions()['girsanov']}")
        raise typer.Exit


@app.command()
def demo(out: Out = Path("out/demo"), seed: Seed = 3) -> None:
    """Infer a double-well path from 32 noisy observations, score 8 held-out ones, and check the engine."""
    import girsanov as gv

    span, dt, variance = (0.0, 20.0), 0.01, 0.01
    model = gv.Model(
        drift=gv.DoubleWell(scale=4.0, well=1.0),
        diffusion=1.0,
        initial=gv.GaussianState(mean=1.0, cov=1e-4),
        likelihood=gv.likelihoods.Gaussian(variance=variance),
    )
    rng = np.random.default_rng(seed)
    observed = _random_times(rng, span, 40)
    times = np.union1d(np.arange(2001) * dt, observed)
    path, series = gv.simulate(model, times, key=_key(seed), dt=dt)
    series = series.subset(np.searchsorted(times, observed))
    held_out = np.isin(np.arange(40), rng.choice(40, 8, replace=False))
    train, test = series.subset(~held_out), series.subset(held_out)

    seconds = []
    for _ in range(2):  # the second run finds everything compiled
        begun = time.perf_counter()
        post = gv.infer(model, train, dt=dt, span=span)
        seconds.append(time.perf_counter() - begun)
    compile_seconds, run_seconds = seconds[0] - seconds[1], seconds[1]
    exactness = _exactness(train, span, variance)
    nlpd, rmse = post.nlpd(test), post.rmse(test)

    out.mkdir(parents=True, exist_ok=True)
    data = _write_series(out / "data.csv", train)
    _write_series(out / "held_out.csv", test)
    _save_figure(post, out / "demo.png", test=test, truth=(times, path))
    outcome = _outcome(post) | {
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
    _print_table(
        "Double well, 32 observations, 8 held out",
        {
            "ELBO": f"{post.elbo:.6f} nats, {post.status}",
            "exactness check": f"{difference:.1e} nats from dense algebra, {'passed' if good else 'FAILED'}",
            "iterations": f"{len(post.history) - 1} on {len(post.times)} nodes",
            "compile": f"{compile_seconds:.2f} s",
            "run": f"{run_seconds:.3f} s",
            "held-out NLPD": f"{nlpd:.4f} nats a point",
            "held-out RMSE": f"{rmse:.4f}",
        },
        out,
    )
    if not good:
        raise typer.Exit(1)


@app.command()
def infer(
    file: Annotated[Path, typer.Argument(help="CSV file with a header.", exists=True, dir_okay=False)],
    drift: Drift,
    noise: Noise,
    dt: Annotated[float, typer.Option(help="Step of the time grid; the observation times are added to it.")],
    time: Annotated[str, typer.Option(help="Column of the times.")] = "t",
    values: Annotated[
        list[str] | None, typer.Option(help="Column of values; may be repeated. By default all but the time.")
    ] = None,
    param: Param = None,
    diffusion: Diffusion = "1",
    initial_mean: InitialMean = "0",
    initial_cov: InitialCov = "1",
    emission: Emission = None,
    span: Annotated[
        tuple[float, float] | None,
        typer.Option(help="Time of the initial state and end of the horizon. By default first and last observation."),
    ] = None,
    out: Out = Path("out/infer"),
) -> None:
    """Infer the path behind a CSV file of noisy observations."""
    import girsanov as gv

    series = gv.TimeSeries.from_csv(file, time=time, values=values or None)
    model, settings = _model(drift, param, diffusion, noise, initial_mean, initial_cov, emission)
    method = gv.CVIDP()
    post = gv.infer(model, series, dt=dt, span=span, method=method)

    out.mkdir(parents=True, exist_ok=True)
    columns = {"time": post.times}
    for stem, a in (("mean", post.mean), ("sd", post.std)):
        columns |= dict(zip(report.names(stem, model.dim), a.T, strict=True))
    report.write_table(out / "posterior.csv", columns)
    post.save(out / "posterior.gv")
    _save_figure(post, out / "figure.png")
    settings |= {"time": time, "values": values, "dt": dt, "span": [post.times[0], post.times[-1]]}
    settings |= {"tolerance": method.tolerance, "max_iterations": method.max_iterations}
    report.write_result(out, "infer", _outcome(post), settings=settings, seeds={}, data=file)
    _print_table(
        f"{file.name}, {drift}",
        {
            "ELBO": f"{post.elbo:.6f} nats",
            "status": post.status,
            "iterations": f"{len(post.history) - 1} on {len(post.times)} nodes",
            "time": f"{post.seconds:.2f} s, compilation included",
        },
        out,
    )
    if not post.converged:
        _console.print(f"not converged: {post.message}", style="yellow", markup=False)


@app.command()
def simulate(
    drift: Drift,
    noise: Noise,
    span: Annotated[tuple[float, float], typer.Option(help="Time of the initial state and end of the horizon.")],
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
    """Simulate a path and noisy observations of it: data.csv, and the path at the same times, path.csv."""
    import girsanov as gv

    if not span[0] < span[1]:
        raise ValueError(f"--span must be a start and a later end, got {span[0]:g} {span[1]:g}")
    model, settings = _model(drift, param, diffusion, noise, initial_mean, initial_cov, emission)
    times = _random_times(np.random.default_rng(seed), span, n)
    path, series = gv.simulate(model, times, key=_key(seed), dt=dt, start=span[0])

    out.mkdir(parents=True, exist_ok=True)
    data = _write_series(out / "data.csv", series)
    report.write_table(out / "path.csv", {"t": times} | dict(zip(report.names("x", model.dim), path.T, strict=True)))
    settings |= {"n": n, "span": span, "dt": dt}
    report.write_result(out, "simulate", {"observations": n}, settings=settings, seeds={"seed": seed}, data=data)
    _console.print(f"{n} observations in {data}", markup=False, soft_wrap=True)


@app.command()
def forecast(
    file: Annotated[Path, typer.Argument(help="A posterior.gv of `girsanov infer`.", exists=True, dir_okay=False)],
    until: Annotated[float, typer.Option(help="End of the forecast.")],
    n: Annotated[int, typer.Option(help="Number of paths.", min=1)] = 1000,
    steps: Annotated[int, typer.Option(help="Number of even steps in the table.", min=1)] = 100,
    seed: Seed = 0,
    out: Out = Path("out/forecast"),
) -> None:
    """Simulate the state onwards from the end of a posterior: mean, sd and quantiles of the paths."""
    import girsanov as gv

    post = gv.load(file)
    end = float(post.times[-1])
    if not until > end:
        raise ValueError(f"--until must lie after the end of the posterior, {end:g}; got {until:g}")
    times = np.linspace(end, until, steps + 1)
    paths = post.forecast(times, key=_key(seed), n=n)

    out.mkdir(parents=True, exist_ok=True)
    quantiles = np.quantile(paths, [0.05, 0.5, 0.95], axis=0)
    columns = {"time": times}
    for stem, a in zip(("mean", "sd", "q05_", "q50_", "q95_"), (paths.mean(0), paths.std(0), *quantiles), strict=True):
        d = post.model.dim
        stems = report.names(stem, d) if d > 1 else [stem.rstrip("_")]
        columns |= dict(zip(stems, a.T, strict=True))
    report.write_table(out / "forecast.csv", columns)
    _save_figure(post, out / "figure.png", fan=(times, quantiles))
    settings = {"until": until, "n": n, "steps": steps}
    outcome = {"elbo": post.elbo, "status": post.status}
    report.write_result(out, "forecast", outcome, settings=settings, seeds={"seed": seed}, data=file)
    last = ", ".join(f"{m:.4g} ± {s:.2g}" for m, s in zip(paths[:, -1].mean(0), paths[:, -1].std(0), strict=True))
    _print_table(file.name, {"paths": str(n), f"state at {until:g}": f"{last} (mean ± sd)"}, out)


def _key(seed: int) -> Any:
    import jax

    return jax.random.key(seed)


def _random_times(rng: np.random.Generator, span: tuple[float, float], n: int) -> np.ndarray:
    return np.sort(rng.uniform(*span, n))


def _drift_kinds() -> dict[str, type]:
    """The library's drifts by their names in snake case; a network's weights are no option of a command."""
    from girsanov.drifts import DRIFTS

    kinds = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in DRIFTS}
    return {name: kind for name, kind in kinds.items() if "key" not in inspect.signature(kind).parameters}


def _numbers(option: str, text: str) -> Any:
    """4 is a number, 1,2 a list and 1,2;3,4 a matrix."""
    try:
        rows = [[float(v) for v in row.split(",")] for row in text.split(";")]
        return np.array(rows) if ";" in text else np.array(rows[0]) if "," in text else rows[0][0]
    except ValueError:
        raise ValueError(f"{option} {text!r} is not {_NUMBERS}") from None


def _drift(name: str, params: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """The drift of this name, and its parameters as they were read."""
    kinds = _drift_kinds()
    if name not in kinds:
        raise ValueError(f"unknown drift {name!r}; choose one of {', '.join(kinds)}")
    known = inspect.signature(kinds[name]).parameters
    values: dict[str, Any] = {}
    for text in params:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--param {text!r} is not name=value")
        if key not in known:
            raise ValueError(f"drift {name} has no parameter {key!r}; its parameters are {', '.join(known)}")
        values[key] = _numbers(f"--param {key}", value)
    missing = [k for k, p in known.items() if p.default is p.empty and k not in values]
    if missing:
        raise ValueError(f"drift {name} needs a value for {missing[0]!r}: give --param {missing[0]}=…")
    return kinds[name](**values), values


def _model(
    drift: str, param: list[str] | None, diffusion: str, noise: str, mean: str, cov: str, emission: str | None
) -> tuple["gv.Model", dict[str, Any]]:
    """The model that the options state, and the options for result.json."""
    import girsanov as gv

    f, params = _drift(drift, param or [])
    texts = {"diffusion": diffusion, "noise": noise, "initial-mean": mean, "initial-cov": cov}
    value = {k.replace("-", "_"): _numbers(f"--{k}", v) for k, v in texts.items()}
    H = None if emission is None else np.atleast_2d(_numbers("--emission", emission))
    model = gv.Model(
        drift=f,
        diffusion=value["diffusion"],
        initial=gv.GaussianState(mean=value["initial_mean"], cov=value["initial_cov"]),
        likelihood=gv.likelihoods.Gaussian(variance=value["noise"]),
        emission=H,
    )
    return model, {"drift": drift, "params": params, **value, "emission": H}


def _exactness(series: "gv.TimeSeries", span: tuple[float, float], variance: float) -> dict[str, float]:
    """The ELBO after one full step and the log evidence by dense algebra, for the double well linearised at x = 1.

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


def _outcome(post: "gv.Posterior") -> dict[str, Any]:
    return {
        "elbo": post.elbo,
        "status": post.status,
        "message": post.message,
        "converged": post.converged,
        "iterations": len(post.history) - 1,
        "seconds": post.seconds,
        "nodes": len(post.times),
        "observations": len(post.series),
    }


def _write_series(path: Path, series: "gv.TimeSeries") -> Path:
    columns = dict(zip(report.names("y", series.dim), series.values.T, strict=True))
    return report.write_table(path, {"t": series.times} | columns)


def _save_figure(post: "gv.Posterior", path: Path, *, test: Any = None, truth: Any = None, fan: Any = None) -> None:
    """The posterior, over the true path where it is known, and the 5, 50 and 95 % quantiles of a forecast."""
    os.environ.setdefault("MPLBACKEND", "Agg")  # no window is wanted
    figure = post.plot(test=test, truth=truth)
    figure.set_size_inches(8.0, 1.2 + 2.0 * post.model.dim)
    for i, ax in enumerate(figure.axes):
        for line in ax.lines:
            if line.get_label() == "true path":
                line.set(zorder=1.5, color="0.65", linewidth=0.6)
        if fan is not None:
            times, (low, middle, high) = fan
            ax.fill_between(times, low[:, i], high[:, i], color="#b5651d", alpha=0.2, lw=0)
            ax.plot(times, middle[:, i], color="#b5651d", lw=1.2, label="forecast median, 90 %")
    figure.axes[0].legend(loc="upper right", frameon=False, fontsize=8, ncols=4)
    figure.savefig(path, dpi=150)


def _print_table(title: str, rows: dict[str, str], out: Path) -> None:
    table = Table(title=title, title_justify="left", show_header=False, title_style="bold")
    for name, value in rows.items():
        table.add_row(name, value)
    _console.print(table)
    _console.print(f"written to {out}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
