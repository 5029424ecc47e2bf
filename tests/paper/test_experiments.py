"""The paper's experiments: settings, data in both layouts or simulated, tables, and a reproduction from end to end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close

import girsanov as gv
from girsanov.evaluation import Result
from girsanov.paper import plan
from girsanov.paper.data import FOLDS, inference_model, learning_model, load_fold, load_real, real_model
from girsanov.paper.explain import explain
from girsanov.paper.reproduce import rebuild, reproduce
from girsanov.paper.settings import PROCESSES, experiment, parse_changes, printed
from girsanov.paper.tables import Comparison, make_cell

# --- settings


def test_every_experiment_has_settings_and_printed_values():
    for name in PROCESSES:
        assert {"inference", "learning", "simulation"} <= experiment(name).keys()
        for table in ("table1", "table2"):
            assert printed(table) and all(name in row for row in printed(table).values())
    assert set(printed("finance")) < set(experiment("finance")["rows"])
    assert set(printed("gps")) < set(experiment("gps")["rows"])


def test_changes_reach_the_model_and_leave_the_settings_alone():
    changes = parse_changes(
        ["double_well.inference.parameters.well=0.5", "gps.inference.dt = 0.05"], (*PROCESSES, "gps")
    )
    fold = load_fold(None, "double_well", 0)
    assert float(inference_model("double_well", fold, changes["double_well"]).drift.well) == 0.5
    assert float(inference_model("double_well", fold).drift.well) == 1.0
    assert experiment("gps", changes["gps"])["inference"]["dt"] == 0.05


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("double_well", "--set must be experiment.path=value"),
        ("triple_well.inference.rho=1", "unknown experiment 'triple_well'"),
        ("ou.inference.roh=1", "ou has no setting 'inference.roh'; it has .*inference.rho"),
        ("ou.inference=1", "cannot replace it"),
    ],
)
def test_bad_changes_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_changes([text], PROCESSES)


# --- data


@pytest.mark.parametrize("process", PROCESSES)
def test_simulated_folds_deal_the_observations_out(process):
    folds = [load_fold(None, process, i) for i in range(FOLDS)]
    held = np.concatenate([f.test.times for f in folds])
    assert len(np.unique(held)) == len(held) == len(folds[0].train) + len(folds[0].test)
    for fold in folds:
        assert not set(fold.train.times) & set(fold.test.times)
        assert inference_model(process, fold).dim == len(fold.x0) == fold.train.dim
    model, trainable = learning_model(process, folds[0])
    assert trainable[0].startswith("drift")
    assert model.drift != inference_model(process, folds[0]).drift


def write_fold(path: Path) -> None:
    path.parent.mkdir(parents=True)
    arrays = {"time_grid": np.linspace(0.0, 1.0, 11), "observation_grid": [0.2, 0.4], "observations": [[0.1], [0.3]]}
    arrays |= {"test_grid": [0.6], "test_observations": [[0.2]], "sigma": 0.1, "Q": [[1.0]], "x0": [0.0]}
    np.savez(path, **arrays)


@pytest.mark.parametrize("folder", ["double_well", "dw/3"])
def test_both_layouts_of_the_authors_data_are_read(tmp_path, folder):
    write_fold(tmp_path / folder / "2.npz")
    fold = load_fold(tmp_path, "double_well", 2)
    assert_close(fold.train.values[:, 0], np.array([0.1, 0.3]), "exact")
    assert fold.span == (0.0, 1.0)


def test_finance_and_gps_files_are_read(tmp_path):
    (tmp_path / "apple_stock").mkdir()
    rows = np.array([[7.0e5, 0.5, 0.01], [7.0e5 + 1, 0.6, 0.02]])
    np.savez(tmp_path / "apple_stock" / "1_data.npz", train_data=rows, test_data=rows + np.array([3, 0.1, 0.05]))
    fold = load_real(tmp_path, "finance", 1)
    assert_close(fold.train.values[:, 0], rows[:, 1], "exact")
    assert fold.span == (0.01, 0.07)
    (tmp_path / "gps").mkdir()
    parts = {f"{p}_data_{c}": np.array([[0.1], [0.2]]) + i for i, p in enumerate(("train", "test")) for c in "txy"}
    np.savez(tmp_path / "gps" / "9_data.npz", **parts)
    track = load_real(tmp_path, "gps", 9)
    assert track.train.dim == 2
    assert_close(track.column(1).test.values, np.array([[1.1], [1.2]]), "exact")


def test_a_wrong_folder_says_what_was_looked_for(tmp_path):
    with pytest.raises(ValueError, match=r"fold 0 of ou: there is neither .*ou/0\.npz nor .*linear/15/0\.npz"):
        load_fold(tmp_path, "ou", 0)
    with pytest.raises(ValueError, match=r"is not a folder; there is no .*apple_stock/0_data\.npz"):
        reproduce("finance", tmp_path / "out", tmp_path / "absent")


def test_simulated_real_data_have_the_paper_s_kind_of_folds():
    for name, dim in (("finance", 1), ("gps", 2)):
        folds = [load_real(None, name, i) for i in range(experiment(name)["folds"])]
        assert folds[0].train.dim == dim
        assert sum(len(f.test) for f in folds) == len(folds[0].train) + len(folds[0].test)
    blocks = load_real(None, "finance", 2).test.times
    inside = load_real(None, "finance", 2).train.times
    assert not ((inside > blocks[0]) & (inside < blocks[-1])).any()


class Separable(eqx.Module):
    """One drift for every coordinate."""

    parts: tuple

    def __call__(self, x, t):
        return jnp.concatenate([p(x[i : i + 1], t) for i, p in enumerate(self.parts)])


@pytest.mark.slow
def test_a_track_s_bound_is_the_sum_of_its_coordinates():
    """What the GPS experiment relies on when it takes the coordinates one by one."""
    fold = load_real(None, "gps", 0)
    short = fold.train.times < 1.0
    series = fold.train.subset(short)
    drifts = (gv.Sine(1.0, 0.2), gv.DoubleWell(0.5, 1.0))
    how = experiment("gps")["model"]
    noise = gv.likelihoods.Gaussian(how["noise_variance"])
    joint = gv.Model(Separable(drifts), np.full(2, how["diffusion"]), gv.GaussianState(**how["initial"]), noise, dim=2)
    both = gv.infer(joint, series, dt=0.05)
    parts = [gv.infer(real_model("gps", f), gv.TimeSeries(series.times, series.values[:, i]), dt=0.05)
             for i, f in enumerate(drifts)]  # fmt: skip
    assert_close(both.elbo, sum(p.elbo for p in parts), "converged", "bound")


# --- tables


def test_cells_compare_in_units_of_the_printed_spread():
    cell = make_cell([{"nlpd": 0.1}, {"nlpd": 0.3}, None], "nlpd", [0.0, 0.1])
    assert cell.mean == pytest.approx(0.2)
    assert cell.sd == pytest.approx(0.1)  # over the population
    assert (cell.folds, cell.failed) == (2, 1)
    assert cell.apart == pytest.approx(2.0)
    assert "1 failed" in str(cell)
    assert make_cell([None], "nlpd", [0.0, 0.1]).apart is None


def test_only_what_is_far_from_the_paper_is_explained():
    values = [{"nlpd": 0.05, "status": "converged", "plain_nlpd": 0.5, "plain_status": "diverged"}]
    near, far = (make_cell(values, "nlpd", [m, 0.1]) for m in (0.1, 0.5))
    assert explain("vdp", near, values) == ""
    assert "published iteration with the paper's ω gives 0.500" in explain("vdp", far, values)
    assert "printed sd" in explain("cvi_dp", far, values)


def test_tables_are_written_in_three_formats():
    cell = make_cell([{"nlpd": 0.1}], "nlpd", [0.0, 0.05])
    table = Comparison("t", "Title", {"A_b": {"Beneš": cell}})
    assert table.csv().splitlines()[1].startswith("A_b,Beneš,0.100000,0.000000,0.0,0.05,2.0000,1,0")
    assert "| A_b | 0.100 ± 0.000<br>0.000 ± 0.050 (+2.00) |" in table.markdown()
    assert r"A\_b & 0.100 $\pm$ 0.000 \\" in table.latex()


def test_rows_and_columns_of_table_one():
    options = {"data": None, "steps": [0.1, 0.05], "processes": ["ou", "van_der_pol"], "rows": None}
    options |= {"particles": {}, "changes": {}}
    tasks = plan.synthetic_tasks("table1", options)
    assert len({t.name for t in tasks}) == len(tasks) == 5 * ((3 + 4) + (2 + 4))
    results = [
        Result(t, "done", {"nlpd": 1.0, "gaussian_nlpd": 2.0, "rhat": 1.0, "status": "exact"}, None, 0.1, {}, "")
        for t in tasks
    ]
    table = plan.synthetic_table("table1", results, simulated=True)
    assert list(table.rows) == [
        "Exact smoother", "SMC", "Optimal Gaussian", "GPR (OU kernel)", "VDP, Δt = 0.1", "CVI-DP, Δt = 0.1",
        "VDP, Δt = 0.05", "CVI-DP, Δt = 0.05",
    ]  # fmt: skip
    assert table.rows["Optimal Gaussian"]["van der Pol"].mean == 2.0
    assert "van der Pol" not in table.rows["Exact smoother"]


def test_restarts_of_networks_are_reported():
    options = {"data": None, "rows": ["driftless", "cvi_dp_nn"], "changes": {}}
    answer = {"nlpd": 1.0, "rmse": 0.5, "status": "converged"}
    results = [
        Result(t, "done", {**answer, "restarts": [[-3.0, -3.5 - i]] if "nn" in t.name else []}, None, 0.1, {}, "")
        for i, t in enumerate(plan.real_tasks("finance", options))
    ]
    table = plan.real_table("finance", results, simulated=False)
    assert len(table.remarks) == 1 and table.remarks[0] == table.notes[0]
    assert "CVI-DP, network: 2 starts for each fold" in table.remarks[0]
    assert "differ by 7.5 nats in the median and 9.5 at the most" in table.remarks[0]
    assert table.remarks[0] in table.markdown()


# --- end to end

SMALL = {"steps": [0.1], "processes": ["ou"], "rows": ["cvi_dp", "gp_regression"], "jobs": 1, "progress": False}
FILES = ("table1.csv", "table1.md", "table1.tex", "index.html")


def test_a_reproduction_from_simulated_series(tmp_path):
    first = reproduce("table1", tmp_path, **SMALL)
    assert not first.failed
    rows = first.comparisons[0].rows
    ours, gp = rows["CVI-DP, Δt = 0.1"]["Ornstein–Uhlenbeck"], rows["GPR (OU kernel)"]["Ornstein–Uhlenbeck"]
    assert abs(ours.mean - gp.mean) < 0.02  # the same model but for the step
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["failed"] == []
    assert result["tasks"] == 10
    before = {name: (tmp_path / name).read_bytes() for name in FILES}
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "tasks").iterdir()}
    reproduce("table1", tmp_path, **SMALL)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "tasks").iterdir()} == stamps
    reproduce("table1", tmp_path, changes={"ou": {"inference.gp_decay": 3.0}}, **SMALL)  # more results in the folder
    reproduce("table1", tmp_path, **SMALL)
    (tmp_path / "table1.csv").unlink()
    rebuild(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == before


def test_a_failed_task_is_shown_and_stops_nothing(tmp_path):
    changes = {"ou": {"inference.gp_decay": -1.0}}
    result = reproduce("table1", tmp_path, changes=changes, **SMALL)
    assert len(result.failed) == FOLDS
    cell = result.comparisons[0].rows["GPR (OU kernel)"]["Ornstein–Uhlenbeck"]
    assert (cell.folds, cell.failed) == (0, FOLDS)
    assert "decay" in (tmp_path / "index.html").read_text()
    assert result.comparisons[0].rows["CVI-DP, Δt = 0.1"]["Ornstein–Uhlenbeck"].folds == FOLDS


# The command with a process that is killed just before it puts the next result after so many in its place.
KILLED = """
import os, signal, sys
from girsanov.cli import main

replace, filed = os.replace, []

def replace_or_die(source, target, **options):
    if os.path.basename(os.path.dirname(target)) == "tasks":
        if len(filed) == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        filed.append(target)
    return replace(source, target, **options)

os.replace = replace_or_die
main(sys.argv[2:])
"""


@pytest.mark.parametrize("filed", [pytest.param(n, marks=pytest.mark.slow) for n in (4, 0)])
def test_killed_after_some_results_it_gives_the_same_files(tmp_path, filed):
    """What was filed is not done again, and what was being written is."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    arguments = ["reproduce", "table1", "--process", "ou", "--dt", "0.1", "--row", "gp_regression", "--row", "cvi_dp"]
    arguments += ["--jobs", "1", "--out"]
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(filed), *arguments, str(broken)], env=environment, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    kept = {path: path.stat().st_mtime_ns for path in (broken / "tasks").glob("*.json")}
    assert len(kept) == filed
    command = [sys.executable, "-m", "girsanov.cli", *arguments]
    for out in (broken, whole):
        done = subprocess.run([*command, str(out)], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())
    for name in FILES:
        assert (broken / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
def test_a_cluster_of_two_workers_writes_what_one_process_does(tmp_path):
    arguments = ["reproduce", "table1", "--process", "ou", "--dt", "0.1", "--row", "gp_regression"]
    for name, where in (("one", "--jobs=1"), ("two", "--workers=2")):
        command = [sys.executable, "-m", "girsanov.cli", *arguments, where, "--out", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    for name in FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize("options", [{"what": "table3"}, {"processes": ["well"]}, {"rows": ["none"]}, {"steps": [0.0]}])
def test_bad_calls_are_refused(tmp_path, options, as_a_user):
    call = {"what": "table1", **SMALL, **options}
    with pytest.raises(ValueError, match=r"unknown part|unknown process|nothing to do|must be positive"):
        reproduce(call.pop("what"), tmp_path, **call)


@pytest.mark.slow
def test_figures_and_the_real_experiments_from_simulated_series(tmp_path):
    changes = {
        "finance": {"simulation.observations": 120, "rows.cvi_dp_nn.restarts": 1, "rows.vdp_nn.restarts": 1,
                    "inference.dt": 0.2, "rows.sparse_gp.inducing": 40},
        "gps": {"simulation.observations": 120, "simulation.end": 6.0, "rows.cvi_dp_nn.restarts": 1,
                "inference.dt": 0.1},
    }  # fmt: skip
    options = {"changes": changes, "jobs": 1, "progress": False}
    for what in ("finance", "gps"):
        result = reproduce(what, tmp_path / what, **options)
        assert not result.failed, result.failed[0].error
    for what in ("table1", "table2"):
        small = {"steps": [0.1], "processes": ["sine"], "particles": {"samples": 40, "particles": 20, "burn_in": 5}}
        result = reproduce(what, tmp_path / what, **small, **options)
        assert not result.failed, result.failed[0].error
    result = reproduce(
        "figures", tmp_path / "figures", changes=changes, steps=[0.05], processes=["ou"], jobs=1, progress=False
    )
    assert not result.failed, result.failed[0].error
    assert {p.name for p in (tmp_path / "figures" / "figures").glob("*.png")} == {"ou.png", "finance.png", "gps.png"}
