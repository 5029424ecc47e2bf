"""The command line: what it writes, that it agrees with the library, and how it fails."""

import csv
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from tolerances import TOLERANCES

import girsanov as gv
from girsanov import report
from girsanov.cli import main

WELL = ["--drift", "double_well", "--param", "scale=4", "--param", "well=1", "--noise", "0.01"]
WELL += ["--initial-mean", "1", "--initial-cov", "1e-4"]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    return int(end.value.code or 0)


def result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def table(path: Path) -> dict[str, np.ndarray]:
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = list(csv.reader(file))
    return dict(zip(header, np.array(rows, np.float64).T, strict=True))


def model() -> gv.Model:
    noise = gv.likelihoods.Gaussian(0.01)
    return gv.Model(gv.DoubleWell(4.0, 1.0), 1.0, gv.GaussianState(1.0, 1e-4), noise)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A simulated series, a posterior and a forecast."""
    folder = tmp_path_factory.mktemp("runs")
    assert run("simulate", *WELL, "--n", 12, "--span", 0, 4, "--seed", 1, "--out", folder / "simulate") == 0
    data = folder / "simulate" / "data.csv"
    assert run("infer", data, *WELL, "--dt", 0.05, "--span", 0, 4, "--out", folder / "infer") == 0
    forecast = ["--until", 5, "--n", 50, "--steps", 10, "--seed", 2, "--out", folder / "forecast"]
    assert run("forecast", folder / "infer" / "posterior.gv", *forecast) == 0
    return folder


def test_learn_writes_estimates_their_errors_and_a_fit_to_go_on_from(runs, tmp_path, capsys):
    data = runs / "simulate" / "data.csv"
    options = ["--dt", 0.1, "--span", 0, 4, "--trainable", "drift.well", "--trainable", "likelihood.variance"]
    code = run("learn", data, *WELL, *options, "--out", tmp_path)
    said, history = result(tmp_path), table(tmp_path / "history.csv")
    fit = gv.load(tmp_path / "fit.gv")
    assert code == (0 if fit.converged else 3)
    assert list(said["parameters"]) == ["drift.well", "likelihood.variance"] == list(fit.trainable)
    assert said["elbo"] == fit.elbo == history["elbo"][-1] and history["elbo"][-1] > history["elbo"][0]
    assert said["parameters"]["drift.well"] == history["drift.well"][-1]
    assert "drift.well" in capsys.readouterr().out
    assert (tmp_path / "learning.png").stat().st_size > 1000 and (tmp_path / "posterior.csv").exists()


@pytest.mark.slow
def test_learn_by_the_evidence_writes_the_bias_of_the_bound(runs, tmp_path):
    data = runs / "simulate" / "data.csv"
    options = ["--dt", 0.1, "--span", 0, 4, "--trainable", "drift.well", "--objective", "exact"]
    assert run("learn", data, *WELL, *options, "--out", tmp_path) in (0, 3)
    found = result(tmp_path)["evidence"]
    assert found["objective"] == "exact" and found["value"] > result(tmp_path)["elbo"]
    assert set(found["bias"]) == {"drift.well"} and gv.load(tmp_path / "fit.gv").evidence.bias == found["bias"]


@pytest.mark.slow
def test_learn_takes_a_model_with_singular_noise(tmp_path):
    """Its objective is another one than that of regular noise, and the command takes the one that suits."""
    times = np.linspace(0.0, 2.0, 9)
    report.write_table(tmp_path / "data.csv", {"t": times, "y": np.sin(2.0 * times)})
    options = ["--drift", "integrated_ou", "--diffusion", "0,1", "--emission", "1,0", "--noise", 0.01, "--dt", 0.25]
    options += ["--trainable", "likelihood.variance", "--max-iterations", 3]
    assert run("learn", tmp_path / "data.csv", *options, "--out", tmp_path / "out") in (0, 3)
    assert result(tmp_path / "out")["parameters"]["likelihood.variance"] != 0.01


@pytest.mark.slow
def test_compare_scores_every_method_on_the_same_observations(runs, tmp_path):
    data = runs / "simulate" / "data.csv"
    assert run("compare", data, *WELL, "--dt", 0.05, "--span", 0, 4, "--hold-out", 0.25, "--out", tmp_path) == 0
    methods = result(tmp_path)["methods"]
    assert list(methods) == ["cvi_dp", "continuous", "vdp", "exact"]
    assert methods["vdp"]["nats"] < methods["cvi_dp"]["nats"] < methods["exact"]["nats"]
    assert all(np.isfinite([m["nlpd"], m["rmse"]]).all() for m in methods.values())
    lines = (tmp_path / "comparison.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "method,nats,nlpd,rmse,seconds" and len(lines) == 5


def test_infer_by_another_method(runs, tmp_path):
    data = runs / "simulate" / "data.csv"
    assert run("infer", data, *WELL, "--dt", 0.05, "--method", "vdp", "--out", tmp_path) == 0
    assert result(tmp_path)["settings"]["method"] == "vdp"
    assert run("infer", data, *WELL, "--dt", 0.05, "--method", "kalman", "--out", tmp_path) == 2


def test_simulate_writes_data_and_path(runs):
    data, path = table(runs / "simulate" / "data.csv"), table(runs / "simulate" / "path.csv")
    assert list(data) == ["t", "y"] and list(path) == ["t", "x"]
    assert len(data["t"]) == 12 and data["t"].min() >= 0 and data["t"].max() <= 4
    assert np.array_equal(data["t"], path["t"])
    noise = (data["y"] - path["x"]) / 0.1  # of a variance of 0.01
    assert abs(np.mean(noise**2) - 1.0) < TOLERANCES["standard_errors"] * np.sqrt(2 / 12)


def test_simulate_is_repeatable(runs, tmp_path):
    assert run("simulate", *WELL, "--n", 12, "--span", 0, 4, "--seed", 1, "--out", tmp_path) == 0
    assert (tmp_path / "data.csv").read_bytes() == (runs / "simulate" / "data.csv").read_bytes()


def test_infer_equals_the_library(runs):
    data = table(runs / "simulate" / "data.csv")
    post = gv.infer(model(), gv.TimeSeries(data["t"], data["y"]), dt=0.05, span=(0.0, 4.0))
    columns = table(runs / "infer" / "posterior.csv")
    assert list(columns) == ["time", "mean", "sd"]
    for name, expected in (("time", post.times), ("mean", post.mean[:, 0]), ("sd", post.std[:, 0])):
        np.testing.assert_allclose(columns[name], expected, rtol=0, atol=TOLERANCES["exact"])
    loaded = gv.load(runs / "infer" / "posterior.gv")
    assert np.array_equal(loaded.mean[:, 0], columns["mean"])
    assert abs(result(runs / "infer")["elbo"] - post.elbo) < TOLERANCES["evidence"]


def test_forecast_equals_the_library(runs):
    post = gv.load(runs / "infer" / "posterior.gv")
    columns = table(runs / "forecast" / "forecast.csv")
    assert list(columns) == ["time", "mean", "sd", "q05", "q50", "q95"]
    np.testing.assert_allclose(columns["time"], np.linspace(4.0, 5.0, 11))
    paths = post.forecast(np.linspace(4.0, 5.0, 11), key=jax.random.key(2), n=50)[..., 0]
    np.testing.assert_allclose(columns["mean"], paths.mean(0), atol=TOLERANCES["exact"])
    np.testing.assert_allclose(columns["q95"], np.quantile(paths, 0.95, axis=0), atol=TOLERANCES["exact"])


@pytest.mark.parametrize("command", ["simulate", "infer", "forecast"])
def test_every_folder_says_how_it_was_made(runs, command):
    content = result(runs / command)
    assert content["command"] == command
    assert content["versions"]["girsanov"] == gv.__version__ and content["versions"]["jax"] == jax.__version__
    assert content["versions"]["python"].startswith("3.")
    source = {"infer": "simulate/data.csv", "forecast": "infer/posterior.gv", "simulate": "simulate/data.csv"}[command]
    assert content["data"]["sha256"] == hashlib.sha256((runs / source).read_bytes()).hexdigest()
    assert content["seeds"] == {"simulate": {"seed": 1}, "infer": {}, "forecast": {"seed": 2}}[command]


def test_infer_records_settings_and_outcome(runs):
    content = result(runs / "infer")
    assert content["status"] == "converged" and content["converged"] is True
    assert content["iterations"] >= 1 and content["seconds"] > 0 and content["observations"] == 12
    settings = content["settings"]
    assert settings["drift"] == "double_well" and settings["params"] == {"scale": 4.0, "well": 1.0}
    assert settings["span"] == [0.0, 4.0] and settings["noise"] == 0.01 and settings["dt"] == 0.05


@pytest.mark.parametrize("command", ["infer", "forecast"])
def test_figures_are_pictures(runs, command):
    assert (runs / command / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_matrix_an_emission_and_chosen_columns(tmp_path):
    drift = ["--drift", "linear", "--param", "A=-1,0.5;0,-1", "--noise", "0.01", "--emission", "1,0"]
    file = tmp_path / "data.csv"
    file.write_text("when,other,seen\n0.5,9,0.1\n1.0,9,\n1.5,9,0.3\n", encoding="utf-8")
    out = tmp_path / "out"
    options = ["--time", "when", "--values", "seen", "--dt", 0.25, "--out", out]
    assert run("infer", file, *drift, *options) == 0
    assert list(table(out / "posterior.csv")) == ["time", "mean1", "mean2", "sd1", "sd2"]
    linear = gv.Model(
        gv.Linear([[-1.0, 0.5], [0.0, -1.0]]), likelihood=gv.likelihoods.Gaussian(0.01), emission=[[1.0, 0.0]]
    )
    post = gv.infer(linear, gv.TimeSeries([0.5, 1.0, 1.5], [0.1, np.nan, 0.3]), dt=0.25)
    assert abs(result(out)["elbo"] - post.elbo) < TOLERANCES["evidence"]
    assert result(out)["settings"]["emission"] == [[1.0, 0.0]]


def test_dates(tmp_path):
    file, out = tmp_path / "days.csv", tmp_path / "out"
    file.write_text("t,y\n2024-03-01,0.1\n2024-03-02,0.4\n2024-03-02T12:00,0.3\n", encoding="utf-8")
    model = ["--drift", "ornstein_uhlenbeck", "--param", "decay=0.5", "--noise", "0.01"]
    assert run("infer", file, *model, "--dt", 0.5, "--unit", "D", "--out", out) == 0
    assert run("forecast", out / "posterior.gv", "--until", 2, "--steps", 1, "--out", out / "later") == 0
    rows = (out / "posterior.csv").read_text().splitlines()
    assert rows[0] == "date,time,mean,sd" and rows[2].startswith("2024-03-01T12:00:00.000000000,0.5,")
    assert (out / "later" / "forecast.csv").read_text().splitlines()[2].startswith("2024-03-03T00:00:00.000000000,2.0,")
    assert result(out)["settings"]["unit"] == "D"


def test_demo(tmp_path, capsys):
    assert run("demo", "--out", tmp_path) == 0
    shown = capsys.readouterr().out
    for word in ("ELBO", "exactness", "iterations", "compile", "run", "NLPD", "RMSE", "passed"):
        assert word in shown
    content = result(tmp_path)
    assert content["converged"] and content["observations"] == 32 and content["settings"]["held_out"] == 8
    exactness = content["exactness"]
    assert exactness["difference"] < TOLERANCES["evidence"]
    assert exactness["difference"] == abs(exactness["elbo"] - exactness["log_evidence"])
    assert content["run_seconds"] > 0 and np.isfinite(content["compile_seconds"])
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    train = gv.TimeSeries.from_csv(tmp_path / "data.csv")
    test = gv.TimeSeries.from_csv(tmp_path / "held_out.csv")
    assert len(train) == 32 and len(test) == 8
    post = gv.infer(model(), train, dt=0.01, span=(0.0, 20.0))
    assert abs(post.elbo - content["elbo"]) < TOLERANCES["evidence"]
    assert abs(post.nlpd(test) - content["nlpd"]) < TOLERANCES["evidence"]


BAD = {
    "drift": (["--drift", "triple_well", "--noise", "1", "--dt", "0.1"], "unknown drift 'triple_well'"),
    "parameter": (["--drift", "sine", "--param", "size=1", "--noise", "1", "--dt", "0.1"], "no parameter 'size'"),
    "no value": (["--drift", "sine", "--param", "scale", "--noise", "1", "--dt", "0.1"], "not of the form name=value"),
    "missing": (["--drift", "ornstein_uhlenbeck", "--noise", "1", "--dt", "0.1"], "needs a value for 'decay'"),
    "number": (["--drift", "sine", "--noise", "loud", "--dt", "0.1"], "--noise 'loud' is not a number"),
    "ragged": (["--drift", "sine", "--noise", "1", "--diffusion", "1,2;3", "--dt", "0.1"], "--diffusion '1,2;3'"),
    "variance": (["--drift", "sine", "--noise", "-1", "--dt", "0.1"], "variance must be positive"),
    "step": (["--drift", "sine", "--noise", "1", "--dt", "0"], "dt must be positive"),
    "column": (["--drift", "sine", "--noise", "1", "--dt", "0.1", "--values", "z"], "no column 'z'"),
    "span": (["--drift", "sine", "--noise", "1", "--dt", "0.1", "--span", "3", "4"], "outside span"),
    "dimension": (["--drift", "van_der_pol", "--noise", "1", "--dt", "0.1"], "the model observes 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(runs, tmp_path, capsys, name):
    options, message = BAD[name]
    assert run("infer", runs / "simulate" / "data.csv", *options, "--out", tmp_path / "out") == 2
    shown = capsys.readouterr()
    assert shown.out == "" and len(shown.err.splitlines()) == 1
    assert shown.err.startswith("error: ") and message in shown.err
    assert not (tmp_path / "out").exists()


def test_bad_input_of_the_other_commands(runs, tmp_path, capsys):
    posterior, data = runs / "infer" / "posterior.gv", runs / "simulate" / "data.csv"
    for arguments, message in (
        (["forecast", posterior, "--until", 3], "--until must lie after"),
        (["forecast", data, "--until", 9], "is not a Girsanov file"),
        (["simulate", "--drift", "sine", "--noise", 1, "--span", 2, 1], "--span must be a start and a later end"),
    ):
        assert run(*arguments, "--out", tmp_path / "out") == 2
        error = capsys.readouterr().err
        assert message in error and len(error.splitlines()) == 1


def test_no_traceback_and_colour_from_a_fresh_process(tmp_path):
    file = tmp_path / "data.csv"
    file.write_text("t,y\n1,2\n0,3\n", encoding="utf-8")
    command = [sys.executable, "-m", "girsanov.cli", "infer", str(file), "--drift", "sine", "--noise", "1", "--dt", "1"]
    source = str(Path(gv.__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "FORCE_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300)
    assert done.returncode == 2 and done.stdout == ""
    assert "\x1b[31m" in done.stderr and "times must increase" in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_version_and_help(capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out == f"girsanov {gv.__version__}\n"
    assert run("--help") == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in ("demo", "infer", "simulate", "forecast"))


def test_tables_read_back_exactly_and_json_has_no_nan(tmp_path):
    numbers = np.random.default_rng(0).normal(size=1000) * 10.0 ** np.arange(-10, 10).repeat(50)
    path = report.write_table(tmp_path / "t.csv", {"a": numbers, "b": -numbers})
    assert np.array_equal(table(path)["a"], numbers)
    report.write_result(tmp_path, "x", {"nlpd": np.inf, "a": np.eye(2)}, settings={}, seeds={}, data=None)
    content = result(tmp_path)
    assert content["nlpd"] is None and content["a"] == [[1.0, 0.0], [0.0, 1.0]] and content["data"] is None


EQUATIONS = """
[states.position]
drift = "4 * position * (1 - position^2)"
noise = "s"
start = 1
start_sd = 0.1

[outputs.seen]
measures = "position"
distribution = "gaussian"
sd = 0.1

[parameters]
s = {start = 1.0, low = 0}
"""


def test_a_file_of_equations_states_the_model(tmp_path):
    """From simulation to a fit, with the same result as options that mean the same."""
    model = tmp_path / "model.toml"
    model.write_text(EQUATIONS)
    assert run("simulate", model, "--span", 0, 4, "--n", 12, "--out", tmp_path / "simulated") == 0
    data = tmp_path / "simulated" / "data.csv"
    assert data.read_text().splitlines()[0] == "t,seen"
    span = ["--dt", 0.05, "--span", 0, 4]
    assert run("infer", model, data, *span, "--out", tmp_path / "infer") == 0
    options = ["--drift", "double_well", "--param", "scale=4", "--param", "well=1", "--noise", 0.01]
    options += ["--initial-mean", 1, "--initial-cov", 0.01]
    assert run("infer", data, *options, *span, "--out", tmp_path / "other") == 0
    one, other = (result(tmp_path / name) for name in ("infer", "other"))
    assert abs(one["elbo"] - other["elbo"]) < TOLERANCES["optimum"]
    assert one["settings"]["equations"]["states"]["position"]["noise"] == "s"
    assert run("learn", model, data, *span, "--out", tmp_path / "learn") == 0
    assert list(result(tmp_path / "learn")["parameters"]) == ["s"]


def test_files_of_equations_and_options_do_not_mix(tmp_path, capsys):
    model, data = tmp_path / "model.toml", tmp_path / "data.csv"
    model.write_text(EQUATIONS)
    report.write_table(data, {"t": np.arange(3.0), "seen": np.zeros(3)})
    for arguments, said in [
        ((model, data, "--drift", "double_well"), "--drift and the equations in"),
        ((model, data, "--noise", "0.1"), "--noise and the equations in"),
        ((model,), "give the file with the data after it"),
        ((data, data), "the last has the data, and"),
        ((data,), "--drift is missing"),
        ((data, "--drift", "double_well"), "--noise is missing"),
    ]:
        assert run("infer", *arguments, "--dt", 0.5, "--out", tmp_path / "out") == 2
        assert said in " ".join(capsys.readouterr().err.split())
    model.write_text(EQUATIONS.replace("4 * position", "rate * position"))
    assert run("infer", model, data, "--dt", 0.5, "--out", tmp_path / "out") == 2
    assert "states.position.drift: 'rate' is not defined" in " ".join(capsys.readouterr().err.split())


def test_data_without_a_column_for_every_output_are_not_guessed(tmp_path, capsys):
    """Otherwise a column of something else would be taken for the output that is missing."""
    two = EQUATIONS.replace(
        "[parameters]", '[outputs.other]\nmeasures = "exp(position)"\ndistribution = "poisson"\n[parameters]'
    )
    model, data = tmp_path / "model.toml", tmp_path / "data.csv"
    model.write_text(two)
    report.write_table(data, {"t": np.arange(3.0), "seen": np.zeros(3), "temperature": np.ones(3)})
    assert run("infer", model, data, "--dt", 0.5, "--out", tmp_path / "out") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "has no column 'other'" in said and "--values" in said
    named = ["--values", "seen", "--values", "temperature"]
    assert run("infer", model, data, *named, "--dt", 0.5, "--out", tmp_path / "out") == 0
    assert result(tmp_path / "out")["settings"]["values"] == ["seen", "temperature"]
