"""Folders of runs: one run each, changed in one go; what an interrupted run leaves, and how it goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.cli import main
from girsanov.cli.cache import cache_folder, keep_programs
from girsanov.cli.run_folder import copy_input, run_folder

SOURCE = str(Path(gv.__file__).resolve().parents[1])
PATIENCE = 300.0  # seconds until a test gives up waiting, on a machine that has much else to do
MODEL = """
[states.x]
drift = "4 * x * (well - x^2)"
noise = "s"
start = 1

[outputs.y]
measures = "x"
distribution = "gaussian"
sd = "tau"

[parameters]
well = {start = 0.3, low = 0}
s = {start = 0.5, low = 0}
tau = {start = 0.6, low = 0}
"""


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    return int(end.value.code or 0)


def finish(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    (folder / "result.json").write_text(json.dumps({"command": "learn"}))


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_run_takes_the_place_of_an_earlier_one_in_one_go(tmp_path):
    out = tmp_path / "deep" / "out"
    with run_folder(out, "learn") as stage:
        finish(stage, fit_gv="1", figure_png="1")
    assert names(out) == ["figure.png", "fit.gv", "result.json"]
    (out / "mine.txt").write_text("a note")
    (out / "unfinished.gv").write_text("{}")
    with run_folder(out, "learn") as stage:
        finish(stage, history_csv="2", figure_png="2")
        assert (out / "fit.gv").read_text() == "1" and (out / "figure.png").read_text() == "1"
    assert names(out) == ["figure.png", "history.csv", "mine.txt", "result.json"]
    assert json.loads((out / "result.json").read_text())["files"] == ["figure.png", "history.csv"]


def test_a_run_that_fails_leaves_nothing(tmp_path):
    out = tmp_path / "deep" / "out"
    with pytest.raises(ZeroDivisionError), run_folder(out, "learn") as stage:
        finish(stage, fit_gv="1")
        raise ZeroDivisionError
    assert names(tmp_path) == []
    finish_first = run_folder(out, "learn")
    with finish_first as stage:
        finish(stage, fit_gv="1")
    with pytest.raises(ZeroDivisionError), run_folder(out, "learn") as stage:
        (stage / "fit.gv").write_text("2")
        raise ZeroDivisionError
    assert names(out) == ["fit.gv", "result.json"] and (out / "fit.gv").read_text() == "1"


def test_a_folder_is_of_one_command_and_of_one_run_at_a_time(tmp_path):
    out = tmp_path / "out"
    with run_folder(out, "learn") as stage:
        with pytest.raises(ValueError, match="another run is writing there"), run_folder(out, "learn"):
            pass
        finish(stage)
    other = "holds the results of girsanov learn; give girsanov infer a folder"
    with pytest.raises(ValueError, match=other), run_folder(out, "infer"):
        pass
    (out / ".girsanov-left").mkdir()  # by a run that was killed
    with run_folder(out, "learn") as stage:
        finish(stage)
    assert names(out) == ["result.json"]


def test_files_of_the_user_are_not_replaced_by_copies(tmp_path):
    out, data = tmp_path / "out", tmp_path / "data.csv"
    data.write_text("new")
    out.mkdir()
    (out / "data.csv").write_text("mine")
    with run_folder(out, "learn") as stage:
        copy_input(data, stage, out)
        copy_input(data, stage, out, "model.toml")
        finish(stage)
    assert (out / "data.csv").read_text() == "mine" and (out / "model.toml").read_text() == "new"


@pytest.fixture
def files(tmp_path) -> Path:
    (tmp_path / "model.toml").write_text(MODEL)
    t = np.linspace(0.0, 8.0, 33)
    y = np.where(t < 4.0, 1.0, -1.0) + 0.1 * np.sin(40.0 * t)
    rows = "".join(f"{a!r},{b!r}\n" for a, b in zip(t.tolist(), y.tolist(), strict=True))
    (tmp_path / "data.csv").write_text(f"t,y\n{rows}")
    return tmp_path


def learn(folder: Path, *more: object) -> list[str]:
    command = ["learn", "model.toml", "data.csv", "--dt", 0.02, "--out", "run", *more]
    return [str(a) for a in command]


def start(folder: Path, *more: object) -> subprocess.Popen:
    """`girsanov learn` in a process that hears Ctrl-C, which those that a shell runs in the background do not."""
    hearing = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
        "os.execv(sys.executable, [sys.executable, '-m', 'girsanov.cli', *sys.argv[1:]])"
    )
    command = [sys.executable, "-c", hearing, *learn(folder, *more)]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def stopped(process: subprocess.Popen, folder: Path, number: int) -> str:
    """Send a signal once something is kept, and return what the process says."""
    begun = time.monotonic()
    while not (folder / "run" / "unfinished.gv").exists():
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() - begun < PATIENCE
        time.sleep(0.01)
    process.send_signal(number)
    return process.communicate(timeout=PATIENCE)[1]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="sends signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_learning_goes_on_where_it_was_stopped(files, monkeypatch, capsys, number):
    process = start(files, "--tolerance", 1e-8)
    said = stopped(process, files, number)
    left = gv.load(files / "run" / "unfinished.gv")
    assert left.status == "interrupted" and set(left.parameters) == {"well", "s", "tau"}
    if number == signal.SIGINT:
        assert process.returncode == 130
        last = said.strip().splitlines()[-1]
        assert last.startswith("interrupted; the best parameters so far are in") and "--resume" in last
        assert names(files / "run") == ["unfinished.gv"]
    monkeypatch.chdir(files)
    (files / "run" / "unfinished.gv").rename("left.gv")
    assert run(*learn(files, "--resume")) == 2
    assert "has neither unfinished.gv nor fit.gv" in capsys.readouterr().err
    Path("run").mkdir(exist_ok=True)
    Path("left.gv").rename("run/unfinished.gv")
    rows = Path("data.csv").read_text()
    Path("data.csv").write_text(rows.replace("0.0,1.0", "0.0,2.0"))
    assert run(*learn(files, "--resume")) == 2
    assert "unfinished.gv is of other data" in capsys.readouterr().err
    Path("data.csv").write_text(rows)
    assert run(*learn(files, "--resume")) in (0, 3)
    fit = gv.load("run/fit.gv")
    assert "unfinished.gv" not in names(files / "run") and fit.elbo >= left.elbo
    for name, trace in left.history.parameters.items():  # it went on from there
        np.testing.assert_array_equal(fit.history.parameters[name][: len(trace)], trace)
    fresh = gv.learn(
        gv.Model.from_equations(Path("model.toml")), gv.TimeSeries.from_csv("data.csv"), dt=0.02, progress=False
    )
    assert abs(fit.elbo - fresh.elbo) < TOLERANCES["learnt"]


def test_where_compiled_programs_are_kept(tmp_path, monkeypatch):
    import jax

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GIRSANOV_CACHE", raising=False)
    if sys.platform.startswith("linux"):
        assert cache_folder().parent == tmp_path / "girsanov" and jax.__version__ in cache_folder().name
    monkeypatch.setenv("GIRSANOV_CACHE", "off")
    assert cache_folder() is None and keep_programs() is None
    monkeypatch.setenv("GIRSANOV_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    changed = {}
    monkeypatch.setattr(jax.config, "update", lambda name, value: changed.update({name: value}))
    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", None, raising=False)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GIRSANOV_CACHE", str(tmp_path / "file" / "in it"))
    assert keep_programs() is None and changed == {}
    monkeypatch.setenv("GIRSANOV_CACHE", str(tmp_path / "mine"))
    old = tmp_path / "mine" / "old"
    old.parent.mkdir()
    old.write_text("")
    os.utime(old, (0, 0))
    assert keep_programs() == tmp_path / "mine" and changed["jax_compilation_cache_dir"] == str(tmp_path / "mine")
    assert not old.exists()
