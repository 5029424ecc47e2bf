"""What the scenarios share: a figure with its target, interleaved timing, and fresh processes."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax

import girsanov

_ROOT = Path(__file__).resolve().parents[1]
Name = TypeVar("Name")


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measured number. `at_most` and `at_least` are its target; a figure without one is there for information.

    `detail` is what the number summarises, a fold after the other for instance.
    """

    scenario: str
    name: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    detail: str = ""

    @property
    def met(self) -> bool | None:
        if self.at_most is None and self.at_least is None:
            return None
        low = -float("inf") if self.at_least is None else self.at_least
        high = float("inf") if self.at_most is None else self.at_most
        return low <= self.value <= high


def interleaved(calls: Mapping[Name, Callable[[], Any]], repeats: int) -> dict[Name, float]:
    """Shortest time of each call in seconds. The calls take turns, so that a busy spell of the machine hits all."""
    for call in calls.values():
        jax.block_until_ready(call())
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            begun = time.perf_counter()
            jax.block_until_ready(call())
            best[name] = min(best[name], time.perf_counter() - begun)
    return best


def fresh_process(module: str, *arguments: Any) -> dict[str, Any]:
    """Run `python -m module arguments…` and return the JSON object that it prints."""
    package = Path(girsanov.__file__).resolve().parents[1]
    paths = [str(_ROOT), str(package), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{module} failed:\n{done.stderr}")
    return json.loads(done.stdout)
