"""Sweeps: what is done is not run again, whatever is killed in between."""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from girsanov.evaluation import Result, Task, load_results, sweep
from girsanov.evaluation import tasks as tasks_module
from girsanov.evaluation.executors import on_scheduler

TESTS = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join((str(TESTS), str(Path(__file__).parent)))}
PATIENCE = 300.0  # seconds until a test gives up waiting, on a machine that has much else to do


def work_tasks(folder: Path, n: int, seconds: float = 0.0) -> list[Task]:
    log = str(folder / "log")
    return [
        Task(f"t{i}", "sweep_tasks:work", {"log": log, "label": f"t{i}", "seconds": seconds + 1e-6 * i})
        for i in range(n)
    ]


def logged(folder: Path) -> list[tuple[str, str, int]]:
    """(what, label, process) of every line that the tasks logged."""
    log = folder / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [(what, label, int(pid)) for what, label, pid in (line.split() for line in lines)]


def counts(folder: Path, what: str) -> Counter:
    return Counter(label for w, label, _ in logged(folder) if w == what)


def wait_until(condition, process: subprocess.Popen | None = None) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited too long"
        assert process is None or process.poll() is None, "the process ended early"
        time.sleep(0.01)


def value(result: Result) -> dict:
    assert result.value is not None, result.error
    return result.value


def files(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "tasks").iterdir())


def test_results_in_order_and_resumed(tmp_path):
    tasks = work_tasks(tmp_path, 4)
    first = sweep(tasks[:2], tmp_path / "out", jobs=1)
    results = sweep(tasks[::-1], tmp_path / "out", jobs=1)
    assert [r.task.name for r in results] == ["t3", "t2", "t1", "t0"]
    assert results[2:] == first[::-1]
    assert all(isinstance(r, Result) and r.status == "done" and r.error is None for r in results)
    assert set(counts(tmp_path, "start").values()) == {1}
    assert files(tmp_path / "out") == sorted(f"{t.name}-{t.digest[:12]}.json" for t in tasks)
    assert load_results(tmp_path / "out") == results[::-1]


def test_two_sweeps_at_once(tmp_path):
    """Both want every task; whoever comes second to one waits for it and reads the result."""
    tasks = work_tasks(tmp_path, 4, seconds=0.05)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda order: sweep(tasks[::order], tmp_path / "out", jobs=1), (1, -1))
    assert one == other[::-1]
    assert counts(tmp_path, "start") == {task.name: 1 for task in tasks}


def test_record(tmp_path):
    (result,) = sweep([Task("a", "sweep_tasks:not_finite", {})], tmp_path, jobs=1)
    assert result.value == {"good": 1.0, "bad": None}
    assert set(result.versions) == {"girsanov", "jax", "numpy", "python"}
    assert result.started.startswith("20")
    (slow,) = sweep(work_tasks(tmp_path, 1, seconds=0.2), tmp_path / "slow", jobs=1)
    assert slow.seconds >= 0.2 and result.seconds < slow.seconds
    content = json.loads((tmp_path / "tasks" / files(tmp_path)[0]).read_text())
    assert content["task"] == {"name": "a", "function": "sweep_tasks:not_finite", "settings": {}}


def test_failure_is_recorded_and_retried(tmp_path):
    out, flag = tmp_path / "out", tmp_path / "flag"
    bad = Task("bad", "sweep_tasks:fail_unless", {"log": str(tmp_path / "log"), "label": "bad", "path": str(flag)})
    tasks = [bad, *work_tasks(tmp_path, 2)]
    results = sweep(tasks, out, jobs=1)
    assert [r.status for r in results] == ["failed", "done", "done"]
    assert results[0].value is None and "RuntimeError: no file for bad" in (results[0].error or "")
    assert sweep(tasks, out, jobs=1, retry_failed=False) == results
    assert counts(tmp_path, "start")["bad"] == 1
    flag.touch()
    assert [r.status for r in sweep(tasks, out, jobs=1)] == ["done"] * 3
    assert counts(tmp_path, "start") == {"bad": 2, "t0": 1, "t1": 1}
    assert len(files(out)) == 3


@pytest.mark.parametrize(
    "function, message", [("returns_a_set", r"value\['odd'\] is a set"), ("give", "returned a int")]
)
def test_value_that_json_cannot_hold(tmp_path, function, message):
    settings = {"value": 3} if function == "give" else {}
    (result,) = sweep([Task("a", f"sweep_tasks:{function}", settings)], tmp_path, jobs=1)
    assert result.status == "failed"
    assert re.search(message, result.error or "")


@pytest.mark.parametrize("content", ["", '{"schema": 1, "ta', "[]", "{}", '{"schema": 1, "task": 3}', "\x00" * 40])
def test_broken_file_counts_as_missing(tmp_path, content):
    (task,) = work_tasks(tmp_path, 1)
    out = tmp_path / "out"
    (out / "tasks").mkdir(parents=True)
    (out / "tasks" / f"{task.name}-{task.digest[:12]}.json").write_text(content)
    assert load_results(out) == []
    (result,) = sweep([task], out, jobs=1)
    assert load_results(out) == [result] and result.status == "done"


def test_digest():
    a = Task("a", "m:f", {"rho": 0.5, "inner": {"x": 1, "y": [1, 2]}})
    b = Task("b", "m:f", {"inner": {"y": (1, 2), "x": 1}, "rho": np.float64(0.5)})
    assert a.digest == b.digest and a.settings == b.settings and len(a.digest) == 64
    assert Task("a", "m:g", a.settings).digest != a.digest
    assert Task("a", "m:f", {"rho": 0.25}).digest != a.digest


def test_settings_are_a_copy():
    settings = {"grid": [1, 2]}
    task = Task("a", "m:f", settings)
    settings["grid"].append(3)
    assert task.settings == {"grid": [1, 2]}


@pytest.mark.parametrize(
    "name, function, settings, message",
    [
        ("a/b", "m:f", {}, "'a/b'.*letters, digits"),
        ("..", "m:f", {}, "letter or digit first"),
        ("", "m:f", {}, "name of a task is ''"),
        ("a", "m.f", {}, "'m.f'; write 'package.module:function'"),
        ("a", "m:f:g", {}, "package.module:function"),
        ("a", "m:f", {"rho": {"low": object()}}, r"settings\['rho'\]\['low'\] is a object"),
        ("a", "m:f", {"rho": [1.0, float("inf")]}, r"settings\['rho'\]\[1\] is inf"),
        ("a", "m:f", {"rho": {3: 1}}, r"settings\['rho'\] has the key 3"),
        ("a", "m:f", [("rho", 1)], "settings must be a dictionary, got list"),
    ],
)
def test_bad_task(as_a_user, name, function, settings, message):
    with pytest.raises(ValueError, match=message):
        Task(name, function, settings)


@pytest.mark.parametrize(
    "tasks, options, message",
    [
        ([Task("a", "no_such_module:f", {})], {}, "'no_such_module'.* cannot be imported"),
        ([Task("a", "sweep_tasks:absent", {})], {}, "no function 'absent'"),
        ([Task("a", "__main__:f", {})], {}, "move it to a module"),
        ([Task("a", "sweep_tasks:give", {"value": 1})] * 2, {}, r"tasks\[0\] and tasks\[1\] are the same"),
        ([("a", "sweep_tasks:give", {})], {}, r"tasks\[0\] is a tuple"),
        ([], {"scheduler": "tcp://127.0.0.1:1", "workers": 2}, "exclude each other"),
        ([], {"jobs": 2, "workers": 2}, "jobs=2 and workers=2 exclude"),
        ([], {"jobs": 0}, "jobs is 0"),
        ([], {"workers": -1}, "workers is -1"),
    ],
)
def test_bad_sweep(as_a_user, tmp_path, tasks, options, message):
    with pytest.raises(ValueError, match=message):
        sweep(tasks, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_load_results_of_another_folder(tmp_path):
    with pytest.raises(ValueError, match="no folder 'tasks'"):
        load_results(tmp_path)


def test_processes(tmp_path):
    """Two processes share the tasks, with one thread each where there are two cores; one that dies stops no other."""
    kill = Task("kill", "sweep_tasks:kill_worker", {"log": str(tmp_path / "log")})
    tasks = [kill, Task("env", "sweep_tasks:environment", {}), *work_tasks(tmp_path, 5, seconds=0.1)]
    results = sweep(tasks, tmp_path / "out", jobs=2)
    assert [r.status for r in results] == ["failed"] + ["done"] * 6
    assert "worker processes died" in (results[0].error or "")
    assert "--xla_cpu_multi_thread_eigen=false" in value(results[1])["XLA_FLAGS"]
    assert int(value(results[1])["OMP_NUM_THREADS"]) >= 1
    # The death of one takes the call of the other along, which may have ended but not been filed: it is run again.
    assert set(counts(tmp_path, "end")) == {f"t{i}" for i in range(5)}
    assert files(tmp_path / "out") == sorted(f"{t.stem}.json" for t in tasks)
    assert os.getpid() not in {pid for _, _, pid in logged(tmp_path)}


def test_a_task_is_not_given_up_for_the_fault_of_another(tmp_path):
    """One kills its process whenever the other has begun: alone, the other completes."""
    log = str(tmp_path / "log")
    kill = Task("kill", "sweep_tasks:kill_beside", {"log": log, "label": "good"})
    good = Task("good", "sweep_tasks:work", {"log": log, "label": "good", "seconds": 1.0})
    results = sweep([kill, good], tmp_path / "out", jobs=2)
    assert [r.status for r in results] == ["failed", "done"]
    assert "worker processes died" in (results[0].error or "")


def test_what_a_dead_writer_left_is_removed(tmp_path):
    """A file that was being written when its process died goes with the next sweep; that of a live process stays."""
    tasks, out = work_tasks(tmp_path, 2), tmp_path / "out"
    sweep(tasks, out, jobs=1)
    wanted = files(out)
    host = tasks_module._host()
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    of_dead = f".{tasks[0].stem}.{host}.{int(dead.stdout)}.0123abcd.tmp"
    of_live = f".{tasks[0].stem}.{host}.{os.getpid()}.0123abcd.tmp"
    elsewhere = f".{tasks[1].stem}.another-machine.{int(dead.stdout)}.0123abcd.tmp"
    for name in (of_dead, of_live, elsewhere):
        (out / "tasks" / name).touch()
    sweep(tasks, out, jobs=1)  # everything is done: nothing is run
    assert files(out) == sorted([*wanted, of_live, elsewhere])
    # Whoever runs a task holds its lock: then nobody else is writing its file.
    (out / "tasks" / f"{tasks[1].stem}.json").unlink()
    sweep(tasks, out, jobs=1)
    assert files(out) == sorted([*wanted, of_live])


def gated(folder: Path, names: range) -> list[Task]:
    """Tasks that end when there is a file `go`."""
    settings = {"log": str(folder / "log"), "path": str(folder / "go")}
    return [Task(f"t{i}", "sweep_tasks:wait_for", settings | {"label": f"t{i}"}) for i in names]


def killed_parent_tasks(folder: Path) -> list[Task]:
    return [*work_tasks(folder, 3), *gated(folder, range(3, 8))]


SCRIPT = """
import sys
from pathlib import Path
from test_sweep import killed_parent_tasks
from girsanov.evaluation import sweep

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    sweep(killed_parent_tasks(folder), folder / "out", jobs=2)
"""


def test_parent_killed(tmp_path):
    """Kill the process that started the sweep: what had finished is there, and a second start does the rest."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    parent = subprocess.Popen(command, env=ENVIRONMENT)
    out = tmp_path / "out"
    try:  # three tasks are done, and both workers wait in the next
        wait_until(lambda: len(counts(tmp_path, "start")) == 5 and len(load_results(out)) == 3, parent)
    finally:
        parent.kill()
        parent.wait()
        (tmp_path / "go").touch()
    orphans = {pid for _, _, pid in logged(tmp_path)}
    subprocess.run(command, env=ENVIRONMENT, check=True, timeout=PATIENCE)
    tasks = killed_parent_tasks(tmp_path)
    assert counts(tmp_path, "start") == counts(tmp_path, "end") == {task.name: 1 for task in tasks}
    assert [r.status for r in sweep(tasks, out, jobs=1)] == ["done"] * 8
    assert counts(tmp_path, "end") == {task.name: 1 for task in tasks}
    assert files(out) == sorted(f"{t.stem}.json" for t in tasks)
    wait_until(lambda: not any(alive(pid) for pid in orphans))


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@contextmanager
def dask(folder: Path, workers: int) -> Iterator[tuple[str, list[subprocess.Popen]]]:
    """A Dask scheduler that knows its workers, each a process of its own: the address, and the workers."""
    from distributed import Client

    where = folder / "scheduler.json"
    local = ["--scheduler-file", str(where), "--host", "127.0.0.1", "--no-dashboard"]
    running: list[subprocess.Popen] = []

    def start(program: str, *options: str) -> None:
        command = [sys.executable, "-m", f"distributed.cli.{program}", *local, *options]
        running.append(subprocess.Popen(command, env=ENVIRONMENT, cwd=folder, stderr=subprocess.DEVNULL))

    try:
        start("dask_scheduler", "--port", "0")
        for _ in range(workers):
            # Without a nanny the process is the worker itself, and nothing replaces it.
            start("dask_worker", "--nthreads", "1", "--no-nanny", "--local-directory", str(folder / "scratch"))
        wait_until(lambda: where.exists() and is_json(where.read_text()), running[0])  # it may be half written
        address = json.loads(where.read_text())["address"]
        with Client(address, timeout=PATIENCE, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=PATIENCE)
        yield address, running[1:]
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_dask_worker_killed(tmp_path):
    """Kill one of two workers in the middle of a task: the other does that task too, and none is completed twice."""
    tasks = gated(tmp_path, range(6))

    def kill() -> None:
        wait_until(lambda: workers[0].pid in {pid for _, _, pid in logged(tmp_path)})
        workers[0].kill()
        workers[0].wait()
        (tmp_path / "go").touch()

    with dask(tmp_path, workers=2) as (address, workers), ThreadPoolExecutor(1) as pool:
        killer = pool.submit(kill)
        results = sweep(tasks, tmp_path / "out", scheduler=address)
        killer.result(PATIENCE)
        other = workers[1].pid
    names = [task.name for task in tasks]
    assert [(r.task.name, r.status) for r in results] == [(name, "done") for name in names]
    assert counts(tmp_path, "end") == dict.fromkeys(names, 1)
    assert sorted(counts(tmp_path, "start").values()) == [1] * 5 + [2], "no task was interrupted"
    assert files(tmp_path / "out") == sorted(f"{t.stem}.json" for t in tasks)
    assert {value(r)["pid"] for r in results} == {other}
    assert sweep(tasks, tmp_path / "out", jobs=1) == results


def test_dask_cluster(tmp_path):
    tasks = [Task("env", "sweep_tasks:environment", {}), *work_tasks(tmp_path, 3)]
    results = sweep(tasks, tmp_path / "out", workers=1)
    assert [r.status for r in results] == ["done"] * 4
    assert "--xla_cpu_multi_thread_eigen=false" in value(results[0])["XLA_FLAGS"]
    assert value(results[0])["OMP_NUM_THREADS"] == "1"


@pytest.mark.slow
def test_dask_gives_up_a_task_that_kills_its_workers(tmp_path):
    tasks = [Task("kill", "sweep_tasks:kill_worker", {"log": str(tmp_path / "log")}), *work_tasks(tmp_path, 2)]
    results = sweep(tasks, tmp_path / "out", workers=2)
    assert [r.status for r in results] == ["failed", "done", "done"]
    assert "Dask gave up the task" in (results[0].error or "")
    assert load_results(tmp_path / "out") == results


def test_no_dask_scheduler(tmp_path, monkeypatch):
    monkeypatch.setattr("girsanov.evaluation.executors._CONNECT", 0.5)
    with pytest.raises(ValueError, match=r"no Dask scheduler answers at 'tcp://127.0.0.1:1'.*dask scheduler"):
        sweep(work_tasks(tmp_path, 1), tmp_path / "out", scheduler="tcp://127.0.0.1:1")


def test_a_scheduler_without_workers_is_said_to_be_waited_for():
    from distributed import LocalCluster

    with LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        address = cluster.scheduler_address
        with pytest.warns(UserWarning, match=rf"no workers yet.*dask worker {address}"):
            assert list(on_scheduler(len, {}, address)) == []


def test_progress(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("girsanov._core.progress._AFTER", -1.0)
    monkeypatch.setattr("girsanov._core.progress._BETWEEN", -1.0)
    bad = Task("bad", "sweep_tasks:returns_a_set", {})
    sweep([bad, *work_tasks(tmp_path, 1)], tmp_path / "out", jobs=1)
    assert "sweep, 2 of 2 tasks, 1 failed" in capsys.readouterr().err
    sweep([bad], tmp_path / "other", jobs=1, progress=False)
    assert capsys.readouterr().err == ""
