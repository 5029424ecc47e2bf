"""The command `girsanov compare`: several models, or one model by several methods."""

import sys
import time as clock
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from girsanov import report
from girsanov._core import interrupt
from girsanov.cli.analysis import Task, make_task, method_of, methods
from girsanov.cli.app import app
from girsanov.cli.groups import with_groups
from girsanov.cli.modelling import models_and_data, stated_model
from girsanov.cli.options import DataOptions, ModelOptions, Out, SayOptions, Seed, Span, Step, key, run_option
from girsanov.cli.output import not_converged, run_folder, say, table_of
from girsanov.cli.reading import Read, in_lines, read_data
from girsanov.cli.run_folder import copy_input

Several = Annotated[
    list[Path],
    typer.Argument(metavar="[MODEL]... DATA", help="Models (.toml, .gv, run folder), then data."),
]


@app.command()
@with_groups
def compare(
    files: Several,
    model: ModelOptions,
    data: DataOptions,
    say_how: SayOptions,
    dt: Step = None,
    span: Span = None,
    hold_out: Annotated[float, run_option("Share of the data to score methods on; 0.2", min=0.0, max=0.9)] = 0.2,
    seed: Seed = 0,
    out: Out = Path("out/compare"),
) -> None:
    """Compare models of the same data, or the methods for one model."""
    with run_folder(out, "compare") as folder:
        of_models, file = models_and_data(files)
        if len(of_models) > 1:
            shown, stuck = _models(of_models, file, model, data, (dt, span), say_how, seed, folder, out)
        else:
            shown, stuck = _methods(of_models, file, model, data, (dt, span), hold_out, seed, folder, out)
    say(say_how, out, *shown)
    not_converged(stuck)


def _names(files: list[Path]) -> list[str]:
    """Return a name for every model: that of its file, with its folder where two are alike."""
    names = [file.stem for file in files]
    return [n if names.count(n) == 1 else str(f.with_suffix("")) for n, f in zip(names, files, strict=True)]


def _models(
    files: list[Path], file: Path, options: ModelOptions, data: DataOptions, grid: tuple, say_how: SayOptions,
    seed: int, folder: Path, out: Path,
) -> tuple[list[Any], dict[str, str]]:  # fmt: skip
    """Learn the free parameters of every model, or infer where there are none, and rank the results."""
    import girsanov as gv

    names = _names(files)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"the model {twice!r} was given twice")
    stated = {name: stated_model(path, options) for name, path in zip(names, files, strict=True)}
    reads: list[Read] = [read_data(file, data, one.model) for one in stated.values()]
    how = method_of("cvi_dp")
    tasks = {
        n: make_task(s, r, grid[0], grid[1], how, not say_how.quiet)
        for (n, s), r in zip(stated.items(), reads, strict=True)
    }
    dt = min(task.dt for task in tasks.values())  # evidence is compared on one grid
    fits: dict[str, Any] = {}
    begun = clock.perf_counter()
    for i, (name, task) in enumerate(tasks.items()):
        _say_progress(i, len(tasks), begun, name, say_how.quiet)
        series, progress = task.read.data, not say_how.quiet
        with in_lines(series):
            if task.model.equations is not None and task.model.equations.free:
                fits[name] = gv.learn(task.model, series, dt=dt, span=task.span, progress=progress)
            else:
                fits[name] = gv.infer(task.model, series, dt=dt, span=task.span, progress=progress)
    ranked = gv.compare(fits, key=key(seed), progress=not say_how.quiet)
    stuck = {name: f"{fit.status}: {fit.message}" for name, fit in fits.items() if not fit.converged}
    for name, fit in fits.items():
        fit.save(folder / f"{Path(name).name}.gv")
    settings = {name: task.settings() for name, task in tasks.items()}
    rows = {name: row | {"status": fits[name].status} for name, row in ranked.to_dict().items()}
    outcome = {"models": rows, "notes": ranked.notes}
    report.write_result(
        folder, "compare", outcome, settings={"models": settings, "dt": dt}, seeds={"seed": seed}, data=file
    )
    numbers = [k for k, v in next(iter(rows.values())).items() if isinstance(v, float)]
    labels = {"model": list(rows), "evidence_kind": [str(r["evidence_kind"]) for r in rows.values()]}
    report.write_labelled(
        folder / "comparison.csv", labels, {k: np.array([r[k] for r in rows.values()], float) for k in numbers}
    )
    copy_input(file, folder, out)
    first = next(iter(tasks.values()))
    return [first.read.line, f"dt = {dt:g} for all models", repr(ranked)], stuck


def _say_progress(done: int, count: int, begun: float, name: str, quiet: bool) -> None:
    """Set what Ctrl-C says, and print which model comes next, with the time left where it is known."""
    interrupt.note(f"{done} of {count} models were done; nothing was written")
    passed = clock.perf_counter() - begun
    if quiet or (done and passed < 2.0) or not sys.stderr.isatty():
        return
    left = f", about {passed / done * (count - done):.0f} s left" if done else ""
    print(f"girsanov: model {done + 1} of {count}, {name}{left}", file=sys.stderr, flush=True)


def _methods(
    files: list[Path], file: Path, options: ModelOptions, data: DataOptions, grid: tuple, hold_out: float, seed: int,
    folder: Path, out: Path,
) -> tuple[list[Any], dict[str, str]]:  # fmt: skip
    """Run every method on part of the data, and score it on the others."""
    if data.id is not None:
        raise ValueError("--id: methods are compared for a single series; leave it out, or choose rows of one series")
    stated = stated_model(files[0] if files else None, options)
    read = read_data(file, data, stated.model)
    task = make_task(stated, read, grid[0], grid[1], method_of("cvi_dp"))
    series = read.data
    count = round(hold_out * len(series))
    held = np.isin(np.arange(len(series)), np.random.default_rng(seed).choice(len(series), count, replace=False))
    train, test = series.subset(~held), series.subset(held) if count else None
    span = task.span or (float(series.times[0]), float(series.times[-1]))
    rows: dict[str, dict[str, Any]] = {}
    stuck: dict[str, str] = {}
    for name, run in _runs(task, train, test, span).items():
        begun = clock.perf_counter()
        with in_lines(series):
            result = run()
        row: dict[str, Any] = {"seconds": clock.perf_counter() - begun}
        exact = name == "exact"
        row |= {"nats": result.log_evidence if exact else result.elbo, "status": "exact" if exact else result.status}
        row |= {"nlpd": result.nlpd(test), "rmse": result.rmse(test)} if test else {"nlpd": None, "rmse": None}
        rows[name] = row
        if not exact and not result.converged:
            stuck[name] = f"{result.status}: {result.message}"

    settings = task.settings() | {"span": list(span), "hold_out": hold_out}
    report.write_result(folder, "compare", {"methods": rows}, settings=settings, seeds={"seed": seed}, data=file)
    names = ("nats", "nlpd", "rmse", "seconds")
    columns = {n: np.array([np.nan if r[n] is None else r[n] for r in rows.values()], float) for n in names}
    report.write_labelled(folder / "comparison.csv", {"method": list(rows)}, columns)
    task.copy_files(folder, out)
    score = {n: f"NLPD {r['nlpd']:.4f}, RMSE {r['rmse']:.4f}, " if test else "" for n, r in rows.items()}
    lines = {n: f"{r['nats']:.4f} nats, {score[n]}{r['seconds']:.2f} s, {r['status']}" for n, r in rows.items()}
    title = f"{file.name}, {stated.name}: {len(train)} observations, {count} held out"
    return [read.line, task.line or None, table_of(title, lines)], stuck


def _runs(task: Task, train: Any, test: Any, span: tuple[float, float]) -> dict[str, Any]:
    """Return what has to be run for every method that suits the model."""
    import girsanov as gv
    from girsanov.baselines import exact_smoother

    model, dt = task.model, task.dt
    runs: dict[str, Any] = {
        name: lambda m=m: gv.infer(model, train, dt=dt, span=span, method=m) for name, m in methods().items()
    }
    if model.dim == 1:
        scored = None if test is None else test.times
        runs["exact"] = lambda: exact_smoother(model, train, dt=dt, span=span, at=scored)
    return runs
