"""Run the cases in processes, those that share a compiled program together."""

import importlib
import sys
import time
import traceback
import warnings
from collections import defaultdict
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

from fuzz.cases import Outcome

_DRIVEN = ("verdicts",)  # families with a driver of their own: `run(cases, seed)`, a list of dictionaries
_MOST = 100  # cases of one task
_QUIET = 2.0  # seconds before the first word of progress
_EVERY = {True: 0.5, False: 10.0}  # seconds between two, on a terminal and in a file

Task = tuple[str, int, tuple[int, ...]]


def execute(counts: dict[str, int], seed: int, jobs: int) -> list[Outcome]:
    """The outcomes of so many cases of every family, in order."""
    tasks = [t for family, cases in counts.items() for t in _tasks(family, cases, seed)]
    tasks.sort(key=lambda t: -len(t[2]))
    progress = _Progress(sum(len(t[2]) for t in tasks))
    done, broken = _pool(tasks, jobs, progress)
    # A process that died takes its task with it, and maybe others: their cases again, each in a process of its own.
    for family, seed, index in [(f, s, i) for f, s, indices in broken for i in indices]:
        alone, dead = _pool([(family, seed, (index,))], 1, progress)
        done += alone or [
            Outcome(f, f"{f}-{s}-{index}", "crashed", float("nan"), "the process died") for f, s, _ in dead
        ]
    progress.end()
    order = {family: k for k, family in enumerate(counts)}
    return sorted(done, key=lambda o: (order.get(o.family, len(order)), _number(o.case)))


def _number(case: str) -> int:
    last = case.rsplit("-", 1)[-1]
    return int(last) if last.isdigit() else 0


def _tasks(family: str, cases: int, seed: int) -> list[Task]:
    module = importlib.import_module(f"fuzz.{family}")
    if family in _DRIVEN:
        return [(family, seed, tuple(range(cases)))]
    groups = defaultdict(list)
    for index in range(cases):
        groups[module.generate(seed, index).shape].append(index)
    return [(family, seed, tuple(g[i : i + _MOST])) for g in groups.values() for i in range(0, len(g), _MOST)]


def run_task(task: Task) -> list[Outcome]:
    """The cases of one task, in this process."""
    family, seed, indices = task
    warnings.simplefilter("ignore")  # what a posterior's status says anyway
    module = importlib.import_module(f"fuzz.{family}")
    if family in _DRIVEN:
        return [from_record(r, seed, k) for k, r in enumerate(module.run(len(indices), seed))]
    outcomes = [_guarded(module, family, seed, index) for index in indices]
    import jax

    jax.clear_caches()  # the next task has another program
    return outcomes


def _guarded(module: Any, family: str, seed: int, index: int) -> Outcome:
    """An error of the oracle or of this package must be seen too, and must not end the run."""
    try:
        return module.run(seed, index)
    except Exception:
        return Outcome(family, f"{family}-{seed}-{index}", "crashed", float("nan"), traceback.format_exc(limit=-3))


def from_record(record: dict[str, Any], seed: int, index: int) -> Outcome:
    """An outcome of a family with a driver of its own; its dictionary is the script where it brings none."""
    case, verdict = record.get("case", ""), str(record.get("verdict", ""))
    script = "" if record["outcome"] == "right" else record.get("script") or f"print({record!r})\n"
    message = str(record.get("message") or case)
    name = f"{record['family']}-{seed}-{index}"
    return Outcome(record["family"], name, record["outcome"], float(record["error"]), message, verdict, script=script)


def _pool(tasks: list[Task], jobs: int, progress: "_Progress") -> tuple[list[Outcome], list[Task]]:
    """Outcomes, and the tasks that a dying process left undone. A fork after JAX has run would hang: spawn."""
    done, broken = [], []
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting: dict[Future, Task] = {pool.submit(run_task, t): t for t in tasks}
        while waiting:
            ready, _ = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in ready:
                task = waiting.pop(future)
                try:
                    done += future.result()
                    progress.add(len(task[2]))
                except BrokenProcessPool:
                    broken.append(task)
            progress.show()
    return done, broken


class _Progress:
    """Cases done so far and time left, on stderr, from two seconds on."""

    def __init__(self, total: int):
        self.total, self.count, self.begun = total, 0, time.perf_counter()
        self.terminal, self.last = sys.stderr.isatty(), -float("inf")

    def add(self, n: int) -> None:
        self.count += n

    def show(self) -> None:
        now = time.perf_counter()
        if now - self.begun < _QUIET or now - self.last < _EVERY[self.terminal]:
            return
        self.last, used = now, now - self.begun
        left = f", about {used * (self.total - self.count) / self.count:.0f} s left" if self.count else ""
        text = f"fuzz: {self.count} of {self.total} cases, {used:.0f} s{left}"
        print(
            f"\r\x1b[K{text}" if self.terminal else text, end="" if self.terminal else "\n", file=sys.stderr, flush=True
        )

    def end(self) -> None:
        if self.terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
