"""The command and the library as processes: interrupted, forked, with nowhere to write, or not converged."""

import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import girsanov as gv
from girsanov.cli import main

SOURCE = str(Path(gv.__file__).resolve().parents[1])
ENVIRONMENT = os.environ | {"PYTHONPATH": SOURCE}
PATIENCE = 300.0  # seconds until a test gives up waiting, on a machine that has much else to do
MODEL = ["--drift", "double_well", "--noise", "0.01"]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    return int(end.value.code or 0)


@pytest.fixture
def data(tmp_path) -> Path:
    path = tmp_path / "data.csv"
    path.write_text("t,y\n0,0.9\n0.5,1.1\n1,0.8\n1.5,1.2\n")
    return path


@pytest.fixture(scope="module")
def posterior() -> gv.Posterior:
    return gv.infer(gv.Model(gv.OrnsteinUhlenbeck(1.0)), gv.TimeSeries([0.0, 1.0], [0.1, 0.2]), dt=0.5)


# --- Ctrl-C


# Tests that a shell runs in the background ignore Ctrl-C, and so would what they start.
HEARING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "girsanov.cli", *sys.argv[1:]])
"""


def interrupt(data: Path, out: Path, moment: float) -> tuple[int, str]:
    """Exit code and standard error of `girsanov learn`, interrupted this many seconds after it began to import."""
    command = [sys.executable, "-c", HEARING, "learn", str(data), *MODEL, "--dt", "0.01", "--out", str(out)]
    command += ["--trainable", "drift", "--trainable", "likelihood"]
    for _ in range(8):
        process = subprocess.Popen(
            command, env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        try:
            # Before the interpreter runs the command's first lines nothing can be said; then a second thread is there.
            end = time.monotonic() + PATIENCE
            while len(os.listdir(f"/proc/{process.pid}/task")) < 2:
                assert time.monotonic() < end and process.poll() is None
                time.sleep(0.001)
            time.sleep(moment)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        if process.returncode not in (0, 3):  # its own ends, done or not converged
            return process.returncode, said
        shutil.rmtree(out, ignore_errors=True)
        moment /= 2.0  # it was quicker than that: earlier, then, and without what it wrote
    raise AssertionError("the command ends before it can be interrupted, or does not hear")


def check_interrupts(data: Path, folder: Path, moments: list[float]) -> None:
    for i, moment in enumerate(moments):
        code, said = interrupt(data, folder / str(i), moment)
        lines = [line for line in said.splitlines() if not re.match(r"girsanov: \d+ s, ", line)]  # progress
        assert code == 130, f"after {moment:.2f} s: exit code {code}: {said}"
        assert len(lines) == 1 and lines[0].startswith("interrupted; "), f"after {moment:.2f} s: {said}"
        assert (folder / str(i) / "result.json").exists() == ("is complete" in lines[0])


on_linux = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at the threads of a process in /proc")


@on_linux
def test_ctrl_c_is_one_line_and_exit_code_130(data, tmp_path):
    """During the import, and while the first programs are traced and compiled."""
    check_interrupts(data, tmp_path, [0.0, 0.7, 2.5, 4.0])


@on_linux
@pytest.mark.slow
def test_ctrl_c_at_any_moment(tmp_path):
    """Of `girsanov learn`, from its first lines to its end."""
    data = tmp_path / "data.csv"
    assert run("simulate", *MODEL, "--n", 40, "--span", 0, 10, "--out", tmp_path / "simulated") == 0
    (tmp_path / "simulated" / "data.csv").rename(data)
    rng = random.Random(8)
    check_interrupts(data, tmp_path, [rng.uniform(0.0, 12.0) for _ in range(30)])


def test_the_library_leaves_ctrl_c_to_its_user():
    script = "import signal; before = signal.getsignal(2); import girsanov; assert signal.getsignal(2) is before"
    subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, check=True, timeout=PATIENCE)


# --- processes that were forked

FORK = """
import os, signal, sys
import girsanov as gv

model = gv.Model(gv.OrnsteinUhlenbeck(1.0))  # JAX has not run yet: forking is fine

def in_child(wanted):
    def infer():
        return gv.infer(model, gv.TimeSeries([0.0, 1.0], [0.1, 0.2]), dt=0.5)
    child = os.fork()
    if child == 0:
        signal.alarm(200)  # a child that hangs is killed
        try:
            said = infer().status
        except RuntimeError as error:
            said = str(error)
        os._exit(0 if wanted in said else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, wanted
    return infer

infer = in_child("converged")
infer()
in_child("get_context('spawn') or 'forkserver'")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fork_after_jax_has_run_says_what_to_do():
    subprocess.run([sys.executable, "-c", FORK], env=ENVIRONMENT, check=True, timeout=PATIENCE)


# --- what is written


@pytest.mark.parametrize("command", ["infer", "learn", "compare", "simulate", "demo", "reproduce"])
def test_a_folder_that_cannot_be_written_is_said_before_the_work(data, tmp_path, capsys, monkeypatch, command):
    def work(*_, **__):
        raise AssertionError("the work was begun")

    for name in ("infer", "simulate"):
        monkeypatch.setattr(gv, name, work)
    monkeypatch.setattr("girsanov.learning.learn.learn", work)
    monkeypatch.setattr("girsanov.paper.reproduce.reproduce", work)
    options = {
        "infer": [data, *MODEL, "--dt", 0.1],
        "learn": [data, *MODEL, "--dt", 0.1, "--trainable", "drift"],
        "compare": [data, *MODEL, "--dt", 0.1],
        "simulate": [*MODEL, "--span", 0, 1],
        "demo": [],
        "reproduce": ["table1"],
    }[command]
    assert run(command, *options, "--out", data / "folder") == 2  # inside a file
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1
    assert said.err.startswith(f"error: --out {data / 'folder'} cannot be written: Not a directory")


def test_a_disk_that_fills_up_leaves_the_earlier_run_as_it_was(data, tmp_path, capsys, monkeypatch, posterior):
    """A run over an older one, which nothing of the new one is mixed with."""

    def full(*_):
        raise OSError(28, "No space left on device")

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "result.json").write_text("{}")
    (tmp_path / "out" / "posterior.csv").write_text("old")
    monkeypatch.setattr(gv, "infer", lambda *_, **__: posterior)
    monkeypatch.setattr(gv.Posterior, "save", full)
    assert run("infer", data, *MODEL, "--dt", 0.5, "--out", tmp_path / "out") == 2
    assert capsys.readouterr().err == "error: [Errno 28] No space left on device\n"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["posterior.csv", "result.json"]
    assert (tmp_path / "out" / "posterior.csv").read_text() == "old"


@pytest.mark.parametrize("command", ["infer", "compare"])
def test_a_run_that_has_not_converged_is_written_and_its_exit_code_is_3(
    data, tmp_path, capsys, monkeypatch, posterior, command
):
    stalled = dataclasses.replace(posterior, status="stalled", message="no step raises the bound")
    monkeypatch.setattr(gv, "infer", lambda *_, **__: stalled)
    monkeypatch.setattr("girsanov.baselines.exact_smoother", lambda *_, **__: SimpleNamespace(log_evidence=-1.0))
    options = [] if command == "infer" else ["--hold-out", 0]
    assert run(command, data, *MODEL, "--dt", 0.5, *options, "--out", tmp_path) == 3
    said = capsys.readouterr().err.splitlines()
    methods = [""] if command == "infer" else ["cvi_dp: ", "continuous: ", "vdp: "]
    assert said == [f"{method}stalled: no step raises the bound" for method in methods]
    assert json.loads((tmp_path / "result.json").read_text())["command"] == command


def test_learning_that_was_cut_short_has_exit_code_3(data, tmp_path, capsys):
    learn = ["--dt", 0.5, "--trainable", "likelihood", "--objective", "standard", "--max-iterations", 1]
    assert run("learn", data, *MODEL, *learn, "--out", tmp_path / "out") == 3
    assert "max_iterations: " in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "result.json").read_text())["converged"] is False
