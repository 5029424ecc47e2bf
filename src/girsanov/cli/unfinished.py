"""What is kept of a run of `girsanov learn` while it goes on, and how `--resume` goes on from it."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from girsanov import report
from girsanov._core import interrupt
from girsanov.cli.run_folder import UNFINISHED

if TYPE_CHECKING:
    import girsanov as gv

_BETWEEN = 1.0  # seconds between two writes
# What a run that goes on may change.
_FREE = ("max_iterations", "tolerance", "dt", "span", "prior", "start_from_data", "model", "method", "objective")


class Unfinished:
    """The best parameters so far of a run of learning, in a file of its folder.

    Args:
        out: the folder.
        settings: the settings of the run.
        data: the file of the data.
    """

    def __init__(self, out: Path, settings: Mapping[str, Any], data: Path):
        self.out, self.file = out, out / UNFINISHED
        kept = {k: v for k, v in settings.items() if k not in _FREE}
        self.made_with = json.loads(json.dumps({**kept, "sha256": report.sha256(data)}, default=_plain))
        self.best, self.last = -np.inf, -np.inf

    def keep(self, parameters: Mapping[str, np.ndarray], objective: float) -> None:
        """Write the parameters, if they are the best so far; at most once a second."""
        if not objective > self.best or time.perf_counter() - self.last < _BETWEEN:
            return
        self.best, self.last = objective, time.perf_counter()
        values = {name: np.asarray(value).tolist() for name, value in parameters.items()}
        content = {"parameters": values, "objective": objective, "made_with": self.made_with}
        temporary = self.out / f".{UNFINISHED}.tmp"
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        temporary.replace(self.file)
        interrupt.note(f"the best parameters so far are in {self.file}: the same command with --resume goes on")

    def resume(self, model: "gv.Model", load: Callable[[Path], Any]) -> tuple["gv.Model", Any]:
        """Return the model with the parameters that an interrupted run left, or the fit of one that was finished."""
        from girsanov.learning.parameters import leaves_by_path, replaced

        if not self.file.exists():
            if not (self.out / "fit.gv").exists():
                raise ValueError(
                    f"--resume: {self.out} has neither {UNFINISHED} nor fit.gv to go on from; leave it out"
                )
            return model, load(self.out)
        content = json.loads(self.file.read_text(encoding="utf-8"))
        for name, value in self.made_with.items():
            if content["made_with"].get(name) != value:
                what = "the data" if name == "sha256" else f"the setting {name!r}"
                raise ValueError(
                    f"--resume: {self.file} was made with another value of {what}; repeat the command as it was, or "
                    "leave --resume out to begin anew"
                )
        values = {name: np.asarray(value, np.float64) for name, value in content["parameters"].items()}
        leaves = leaves_by_path(model)
        for name, value in values.items():
            if name not in leaves or np.shape(leaves[name]) != value.shape:
                raise ValueError(f"--resume: {self.file} has a parameter {name!r} that the model has not")
        return replaced(model, values), None


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)
