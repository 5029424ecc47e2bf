"""Reproduce the paper in one call: plan the tasks, run them as a sweep, and write tables, figures and a page."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from girsanov import report
from girsanov._core.checks import check_positive
from girsanov.evaluation import Result, Task, load_results, sweep
from girsanov.paper import figures, plan
from girsanov.paper.data import load_fold, load_real
from girsanov.paper.page import write_page
from girsanov.paper.settings import REAL
from girsanov.paper.tables import Comparison

PARTS = ("table1", "table2", "figures", "finance", "gps")


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """The outcome of a reproduction.

    Attributes:
        out: the folder that was written to.
        comparisons: the tables.
        failed: results of the tasks that failed.
        seconds: duration of the call.
    """

    out: Path
    comparisons: list[Comparison]
    failed: list[Result]
    seconds: float


def reproduce(
    what: str,
    out: str | Path,
    data: str | Path | None = None,
    *,
    steps: list[float] | None = None,
    processes: list[str] | None = None,
    rows: list[str] | None = None,
    particles: dict[str, int] | None = None,
    changes: dict[str, dict[str, Any]] | None = None,
    jobs: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> Reproduction:
    """Reproduce a part of the paper; a call that was interrupted can be repeated and continues where it stopped.

    Args:
        what: "table1", "table2", "figures", "finance", "gps" or "all".
        out: folder for the results.
        data: folder with the authors' data; None simulates series with the paper's settings.
        steps: steps of the time grid; by default 0.01, 0.005 and 0.001.
        processes: names of the processes; by default all.
        rows: names of the rows, such as "cvi_dp"; by default all.
        particles: settings of the particle smoother that replace the defaults.
        changes: changes of the settings, by experiment and dotted path: {"ou": {"inference.rho": 0.5}}.
        jobs, workers, scheduler: where the tasks run, see `girsanov.evaluation.sweep`.
        progress: whether to show the progress; default True.

    Returns:
        The tables and the tasks that failed.
    """
    begun = time.perf_counter()
    if what not in (*PARTS, "all"):
        raise ValueError(f"unknown part {what!r}; choose one of {', '.join((*PARTS, 'all'))}")
    parts: list[str] = list(PARTS) if what == "all" else [what]
    options = _options(data, steps, processes, rows, particles, changes)
    _check_data(options["data"], parts, options["processes"])
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    tasks = {part: _tasks(part, options, folder) for part in parts}
    every = [task for part in parts for task in tasks[part]]
    if not every:
        raise ValueError(f"there is nothing to do: {what} has none of the rows {rows}")
    results = sweep(every, folder, jobs=jobs, workers=workers, scheduler=scheduler, progress=progress)
    by_part = _split(results, tasks)
    comparisons = write_tables(folder, by_part, options["data"] is None)
    write_index(folder, comparisons, by_part, options)
    failed = [r for r in results if r.status == "failed"]
    seconds = time.perf_counter() - begun
    outcome = {"what": what, "seconds": seconds, "tasks": len(results), "failed": [r.task.name for r in failed]}
    stored = {k: v for k, v in options.items() if k != "data"} | {"data": None if data is None else Path(data).name}
    report.write_result(folder, "reproduce", outcome, settings=stored, seeds={}, data=None)
    return Reproduction(folder, comparisons, failed, seconds)


def _options(data, steps, processes, rows, particles, changes) -> dict[str, Any]:
    for dt in steps or []:
        check_positive(dt=dt)
    return {
        "data": None if data is None else str(Path(data).expanduser().resolve()),
        "steps": list(steps or plan.STEPS),
        "processes": plan.check_processes(processes),
        "rows": rows,
        "particles": {**plan.PARTICLES, **(particles or {})},
        "changes": changes or {},
    }


def _check_data(data: str | None, parts: list[str], processes: list[str]) -> None:
    """Raise a ValueError if a data set that will be needed is missing, before any task is run."""
    if data is None:
        return
    if {"table1", "table2", "figures"} & set(parts):
        for process in processes:
            load_fold(data, process, 0)
    for name in REAL:
        if name in parts:
            load_real(data, name, 0)


def _tasks(part: str, options: dict[str, Any], folder: Path) -> list[Task]:
    if part == "figures":
        return figures.tasks(options, folder)
    return plan.real_tasks(part, options) if part in REAL else plan.synthetic_tasks(part, options)


def _split(results: list[Result], tasks: dict[str, list[Task]]) -> dict[str, list[Result]]:
    out, begin = {}, 0
    for part, own in tasks.items():
        out[part] = results[begin : begin + len(own)]
        begin += len(own)
    return out


def write_tables(folder: Path, by_part: dict[str, list[Result]], simulated: bool) -> list[Comparison]:
    """Write the tables as CSV, Markdown and LaTeX, and return them; simulated data have no printed values."""
    comparisons = []
    for part, results in by_part.items():
        if part == "figures":
            continue
        make = plan.real_table if part in REAL else plan.synthetic_table
        comparison = make(part, results, simulated)
        comparisons.append(comparison)
        for suffix, text in (("csv", comparison.csv()), ("md", comparison.markdown()), ("tex", comparison.latex())):
            (folder / f"{part}.{suffix}").write_text(text, encoding="utf-8")
    return comparisons


def write_index(folder: Path, comparisons: list[Comparison], by_part: dict[str, list[Result]], options) -> Path:
    """Write the page, and `plan.json`, from which `rebuild` finds the results again; return the page's path."""
    shown = [
        (r.value["caption"], folder / r.value["png"])
        for r in by_part.get("figures", [])
        if r.status == "done" and r.value is not None
    ]
    source = "series simulated with the paper's settings" if options["data"] is None else "the authors' data"
    versions = ", ".join(f"{k} {v}" for k, v in report.versions().items())
    facts = [f"Made from {source}; {versions}.", *(_failed(r) for rs in by_part.values() for r in rs if r.error)]
    state = {"parts": {p: [r.task.stem for r in rs] for p, rs in by_part.items()}, "simulated": options["data"] is None}
    (folder / "plan.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    return write_page(folder, comparisons, shown, facts)


def _failed(result: Result) -> str:
    last = (result.error or "").strip().splitlines()[-1]
    return f"Task {result.task.name} failed: {last}"


def rebuild(out: str | Path) -> Reproduction:
    """Write tables and page again from the results in the folder of an earlier reproduction; no task is run."""
    begun, folder = time.perf_counter(), Path(out)
    path = folder / "plan.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not the folder of a finished reproduction: there is no {path}")
    state = json.loads(path.read_text("utf-8"))
    results = {r.task.stem: r for r in load_results(folder)}
    by_part = {part: [results[s] for s in stems if s in results] for part, stems in state["parts"].items()}
    comparisons = write_tables(folder, by_part, state["simulated"])
    write_index(folder, comparisons, by_part, {"data": None if state["simulated"] else ""})
    failed = [r for rs in by_part.values() for r in rs if r.status == "failed"]
    return Reproduction(folder, comparisons, failed, time.perf_counter() - begun)
