"""The bounds of all series of a panel and their gradients, at parameters that may differ by series."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from girsanov._core.precision import to_numpy
from girsanov.data.on_grid import SeriesOnGrid
from girsanov.inference.conditioning import Loss
from girsanov.inference.cvi_dp import CVIDP, continuous_algorithm, discrete_algorithm
from girsanov.inference.lanes import Setting, Task, run_lanes
from girsanov.inference.loop import Limits, Run
from girsanov.inference.many import groups, padded
from girsanov.inference.objective import Posed
from girsanov.inference.status import Status
from girsanov.learning.parameters import Spec, insert
from girsanov.model.model import Model, with_errors_known
from girsanov.model.quadrature import Rule

_TOLERANCE = 1e-9  # nats: gradients are more exact than with the default of inference
_ITERATIONS = 1000


@dataclasses.dataclass(frozen=True)
class Placed:
    """The function that puts free coordinates into a model; equal for equal parameters, so that programs are shared."""

    spec: Spec

    def __call__(self, psi: Any, model: Any) -> Any:
        return insert(self.spec, psi, model)


class Bounds(NamedTuple):
    """Bounds of some series, in nats, and their gradients in the free coordinates; −inf where a run could not start."""

    value: Float[np.ndarray, " k"]
    grad: Float[np.ndarray, "k n"]


Keep = Callable[[int, Posed, Run, Loss | None], None]


class PanelProblem:
    """The bounds of all series of a panel, as functions of the free coordinates ψ of the parameters `spec`.

    Every series starts from the solution at which its bound was last evaluated. A run that has not met its tolerance
    counts all the same, unless it could not start.
    """

    def __init__(self, spec: Spec, method: CVIDP, model: Model, rule: Rule, datas: Sequence[SeriesOnGrid]):
        self.spec, self.datas = spec, datas
        algorithm = continuous_algorithm(method) if method.time == "continuous" else discrete_algorithm(method)
        tolerance = min(_TOLERANCE, method.tolerance)
        limits = Limits(np.asarray(tolerance), np.asarray(max(_ITERATIONS, method.max_iterations)))
        self._settings: list[Setting] = []
        self._group = np.zeros(len(datas), int)
        self._padded: list[Any] = [None] * len(datas)
        self._starts: list[Any] = [None] * len(datas)
        self.evaluations = self.passes = 0
        for number, members in enumerate(groups(datas, model.dim)):
            stated = with_errors_known(model, datas[members[0]].errors)
            self._settings.append(Setting(algorithm, stated, rule, limits, Placed(spec)))
            self._group[members] = number
            for i, data in zip(members, padded([datas[i] for i in members]), strict=True):
                self._padded[i] = data

    def posed(self, i: int, psi: Float[np.ndarray, " n"]) -> Posed:
        """Return the padded problem of series i at its parameters."""
        return to_numpy(self._settings[self._group[i]].posed(self._padded[i], psi))

    def evaluate(
        self, psi: Float[np.ndarray, "k n"], which: Int[np.ndarray, " k"] | None = None, keep: Keep | None = None
    ) -> Bounds:
        """Evaluate the bounds of some series.

        Args:
            psi: the free coordinates of each of these series.
            which: the numbers of the series; by default all.
            keep: called as `keep(i, problem, run, loss)` with what came out for series i; its arrays are to be copied.

        Returns:
            The bounds and their gradients.
        """
        which = np.arange(len(self.datas)) if which is None else which
        value, grad = np.full(len(which), -np.inf), np.zeros(psi.shape)
        for number, setting in enumerate(self._settings):
            rows = np.flatnonzero(self._group[which] == number)

            def finish(j: int, run: Run, loss: Loss | None, slope: Any, rows=rows) -> None:
                row, i = rows[j], int(which[rows[j]])
                self.passes += run.passes
                if run.status is not Status.BAD_START and np.isfinite(run.elbo) and np.isfinite(slope).all():
                    value[row], grad[row] = run.elbo, slope
                    self._starts[i] = jax.tree.map(np.array, run.sites)
                if keep is not None:
                    keep(i, self.posed(i, psi[row]), run, loss)

            tasks = [Task(self._padded[int(which[r])], self._starts[int(which[r])], psi[r]) for r in rows]
            run_lanes(setting, tasks, finish)
        self.evaluations += 1
        return Bounds(value, grad)
