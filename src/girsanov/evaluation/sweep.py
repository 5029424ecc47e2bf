"""Sweeps: many tasks, each run once, on one machine or several; a sweep that was interrupted can be continued."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from girsanov._core.extras import check_extra
from girsanov._core.progress import reporter
from girsanov.evaluation import executors
from girsanov.evaluation.executors import Calls, Lost
from girsanov.evaluation.tasks import (
    Result,
    Task,
    clear_abandoned,
    find_function,
    parse_result,
    read_result,
    record_lost,
    result_path,
    run_task,
    write_result,
)


def sweep(
    tasks: Sequence[Task],
    out: str | Path,
    *,
    jobs: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    retry_failed: bool = True,
    progress: bool = True,
) -> list[Result]:
    """Run every task that is not done yet, and return the results of all tasks.

    Each result is a file in the folder `out`/tasks, written by the process that ran the task. After an interruption,
    call `sweep` again: results that are there are read, and their tasks are not run again. If this process is killed,
    its workers finish their current task and end. A task that raises an exception is recorded as failed, with its
    traceback; the others go on.

    Give at most one of `jobs`, `workers` and `scheduler`.

    Args:
        tasks: the tasks; no two may have the same name, function and settings.
        out: folder for the results; it is made if it does not exist.
        jobs: number of processes on this machine; by default the number of processors. With 1, the tasks run in this
            process. Other numbers need the extra `parallel`.
        workers: number of workers of a Dask cluster that is started on this machine. Its workers import the calling
            script, which must keep its work under `if __name__ == "__main__":`.
        scheduler: address of a running Dask scheduler, "tcp://host:port". Its workers, on any machines, must see the
            folder `out` under the same path, must find the functions of the tasks, and should have one thread each.
        retry_failed: whether to run tasks again that failed in an earlier call; default True.
        progress: whether to show the progress; default True.

    Returns:
        One result for each task, in the order of `tasks`.
    """
    tasks = list(tasks)
    _check_tasks(tasks)
    execute = _executor(jobs, workers, scheduler)
    folder = str(Path(out).resolve())
    (Path(folder) / "tasks").mkdir(parents=True, exist_ok=True)

    results: dict[str, Result] = {}
    for task in tasks:
        earlier = read_result(task, folder)
        if earlier is not None and (earlier.status == "done" or not retry_failed):
            results[_key(task, folder)] = earlier
    calls = {key: (task, folder) for task in tasks if (key := _key(task, folder)) not in results}
    clear_abandoned(folder)
    try:
        with reporter(progress) as say:
            for key, answer in execute(run_task, calls) if calls else ():
                results[key] = _received(calls[key][0], folder, answer)
                if say is not None:
                    say(_summary(results, len(tasks)))
    finally:
        clear_abandoned(folder)  # unfinished files of workers that died
    return [results[_key(task, folder)] for task in tasks]


def load_results(out: str | Path) -> list[Result]:
    """Read every result in the folder of a sweep.

    Args:
        out: the folder that was given to `sweep`.

    Returns:
        The results, sorted by the names of their files. Files that cannot be read are left out.
    """
    folder = Path(out) / "tasks"
    if not folder.is_dir():
        raise ValueError(f"{out} has no folder 'tasks'; give the folder that was `out` of a sweep")
    results = (parse_result(path) for path in sorted(folder.glob("*.json")))
    return [result for result in results if result is not None]


def _received(task: Task, out: str, answer: Result | Lost) -> Result:
    if isinstance(answer, Lost):
        return record_lost(task, out, answer.reason)
    if read_result(task, out) is None:  # the worker is on another machine that does not share this folder
        write_result(answer, out)
    return answer


def _key(task: Task, out: str) -> str:
    """Return the key of a task's call. Dask runs one call for each key, so it must differ between folders."""
    return str(result_path(task, out))


def _summary(results: dict[str, Result], total: int) -> str:
    failed = sum(result.status == "failed" for result in results.values())
    return f"sweep, {len(results)} of {total} tasks" + (f", {failed} failed" if failed else "")


def _check_tasks(tasks: Sequence[Task]) -> None:
    seen: dict[tuple[str, str], int] = {}
    for i, task in enumerate(tasks):
        if not isinstance(task, Task):
            raise ValueError(f"tasks[{i}] is a {type(task).__name__}; make it a Task(name, function, settings)")
        first = seen.setdefault((task.name, task.digest), i)
        if first != i:
            raise ValueError(
                f"tasks[{first}] and tasks[{i}] are the same: name {task.name!r}, {task.function} with "
                f"{task.settings}; drop one, or give it another name or seed"
            )
    for task in {task.function: task for task in tasks}.values():
        find_function(task)


def _executor(
    jobs: int | None, workers: int | None, scheduler: str | None
) -> Callable[[Callable, Calls], Iterator[tuple[str, Any]]]:
    places = {"jobs": jobs, "workers": workers, "scheduler": scheduler}
    given = [f"{name}={value!r}" for name, value in places.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} exclude each other: tasks run in one place, give only one of them")
    if scheduler is not None:
        check_extra("distributed", "sweep(scheduler=...)")
        return partial(executors.on_scheduler, address=scheduler)
    for name, number in (("jobs", jobs), ("workers", workers)):
        if number is not None and number < 1:
            raise ValueError(f"{name} is {number}; give a number of processes, at least 1")
    if workers is not None:
        check_extra("distributed", "sweep(workers=...)")
        return partial(executors.on_cluster, workers=workers)
    if jobs != 1:
        check_extra("joblib", "sweep with jobs other than 1")
    if jobs is None:
        jobs = executors.processors()
    return executors.in_turn if jobs == 1 else partial(executors.in_processes, workers=jobs)
