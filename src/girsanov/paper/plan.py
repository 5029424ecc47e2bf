"""The tasks that a table needs, and the table that is made from their results."""

from typing import Any

import numpy as np

from girsanov.evaluation import Result, Task
from girsanov.paper.data import FOLDS
from girsanov.paper.explain import explain
from girsanov.paper.settings import PROCESSES, experiment, printed
from girsanov.paper.tables import Cell, Comparison, make_cell

STEPS = (0.01, 0.005, 0.001)
PARTICLES = {"particles": 100, "chains": 4, "burn_in": 50, "evidence_runs": 8}
_MODULE = "girsanov.paper.tasks"
# Rows that hardly depend on the step of the grid, if at all. They are run at the first step only.
_ONCE = {"table1": ("exact", "particles", "gp_regression"), "table2": ("gp_regression",)}
_METHODS = ("vdp", "cvi_dp")
_LABELS = {
    "exact": "Exact smoother", "particles": "SMC", "gaussian": "Optimal Gaussian", "gp_regression": "GPR (OU kernel)",
    "vdp": "VDP", "cvi_dp": "CVI-DP", "driftless": "Brownian motion", "sparse_gp": "Sparse GP",
    "cvi_dp_ou": "CVI-DP, OU", "cvi_dp_growth": "CVI-DP, constant growth", "cvi_dp_nn": "CVI-DP, network",
    "cvi_dp_relu": "CVI-DP, ReLU network, no prior", "vdp_nn": "VDP, network",
}  # fmt: skip
_PRINTED: dict[str, str] = {"particles": "smc", "gaussian": "optimal_gaussian"}  # names of these rows in the paper
_TITLES = {
    "table1": "Table 1: inference. NLPD of held-out observations in nats, mean ± sd over five folds",
    "table2": "Table 2: inference and learning. NLPD of held-out observations in nats, mean ± sd over five folds",
    "finance": "Finance: held-out bins of the log price of a share, mean ± sd over five folds",
    "gps": "GPS: held-out chunks of a vehicle's track, mean ± sd over ten folds, a coordinate",
}


def synthetic_tasks(table: str, options: dict[str, Any]) -> list[Task]:
    """Return the tasks of Table 1 or 2; `options` has data, steps, processes, rows, particles and changes."""
    tasks = []
    wanted = options["rows"]
    for process in options["processes"]:
        rows = [(row, options["steps"][0]) for row in _ONCE[table] if not (row == "exact" and process == "van_der_pol")]
        rows += [(row, dt) for dt in options["steps"] for row in _METHODS]
        for row, dt in rows:
            if wanted is not None and row not in wanted:
                continue
            for fold in range(FOLDS):
                settings = {"data": options["data"], "process": process, "fold": fold, "row": row, "dt": dt}
                settings["changes"] = options["changes"].get(process, {})
                if row == "particles":
                    draws = experiment(process, settings["changes"])["inference"]["draws"]
                    settings["particles"] = {"samples": draws, **options["particles"]}
                name = f"{table}-{process}-{row}-{dt:g}-{fold}"
                tasks.append(Task(name, f"{_MODULE}:{table}", settings))
    return tasks


def real_tasks(name: str, options: dict[str, Any]) -> list[Task]:
    """Return the tasks of "finance" or "gps"; `options` has data, rows (None for all) and changes."""
    changes = options["changes"].get(name, {})
    how = experiment(name, changes)
    rows = [r for r in how["rows"] if options["rows"] is None or r in options["rows"]]
    return [
        Task(
            f"{name}-{row}-{fold}",
            f"{_MODULE}:real",
            {"data": options["data"], "experiment": name, "fold": fold, "row": row, "changes": changes},
        )
        for row in rows
        for fold in range(how["folds"])
    ]


def synthetic_table(table: str, results: list[Result], simulated: bool) -> Comparison:
    """Make Table 1 or 2, with a row for each method and step and a column for each process."""
    answers = _grouped(results, lambda s: (s["row"], s["dt"], s["process"]))
    stated: dict[str, Any] = {} if simulated else printed(table)
    rows: dict[str, dict[str, Cell]] = {}
    for (row, dt, process), values in answers.items():
        exact = answers.get(("exact", dt, process), [])
        shown_as: list[tuple[str, str]] = [(row, "nlpd")]
        if row == "particles":
            shown_as.append(("gaussian", "gaussian_nlpd"))
        for shown, metric in shown_as:
            once = shown not in _METHODS
            name = _PRINTED.get(shown, shown) if once else f"{shown}@{dt:g}"
            cell = make_cell(values, metric, stated.get(name, {}).get(process))
            kind = f"learnt {shown}" if table == "table2" and not once else shown
            note = explain(kind, cell, _ended(values), _ended(exact))
            label = _LABELS[shown] if once else f"{_LABELS[shown]}, Δt = {dt:g}"
            rows.setdefault(label, {})[experiment(process)["title"]] = _noted(cell, note)
    return Comparison(table, _TITLES[table], rows)


def real_table(name: str, results: list[Result], simulated: bool) -> Comparison:
    """Make the table of "finance" or "gps", with a row for each model and the columns NLPD and RMSE."""
    stated = {} if simulated else printed(name)
    rows: dict[str, dict[str, Cell]] = {}
    remarks = []
    for row, values in _grouped(results, lambda s: s["row"]).items():
        remarks += _starts(_LABELS[row], _ended(values))
        for metric in ("nlpd", "rmse"):
            cell = make_cell(values, metric, stated.get(row, {}).get(metric))
            note = explain(row, cell, _ended(values), metric=metric)
            rows.setdefault(_LABELS[row], {})[metric.upper()] = _noted(cell, note)
    return Comparison(name, _TITLES[name], rows, tuple(remarks))


def _starts(label: str, values: list[dict[str, Any]]) -> list[str]:
    """Say how many starts the networks of a row had, and how much the bounds of one fold's starts differ."""
    bounds = [b for v in values for b in v["restarts"] if len(b) > 1]
    if not bounds:
        return []
    apart = np.array([max(b) - min(b) for b in bounds])
    return [
        f"{label}: {len(bounds[0])} starts for each fold, of which the one with the highest bound plus log prior on "
        f"the training data counts. The bounds of a fold's starts differ by {np.median(apart):.2g} nats in the median "
        f"and {apart.max():.2g} at the most."
    ]


def _noted(cell: Cell, note: str) -> Cell:
    return Cell(cell.mean, cell.sd, cell.folds, cell.failed, cell.paper, note)


def _ended(values: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
    return [v for v in values if v is not None]


def _grouped(results: list[Result], key: Any) -> dict[Any, list[dict[str, Any] | None]]:
    """Group the results of the folds by `key` of their settings; a result that failed is None."""
    out: dict[Any, list[dict[str, Any] | None]] = {}
    for result in results:
        value = result.value if result.status == "done" else None
        out.setdefault(key(result.task.settings), []).append(value)
    return out


def check_processes(names: list[str] | None) -> list[str]:
    """Return the processes of these names, all for None; raise a ValueError for an unknown name."""
    for name in names or []:
        if name not in PROCESSES:
            raise ValueError(f"unknown process {name!r}; choose from {', '.join(PROCESSES)}")
    return list(names or PROCESSES)
