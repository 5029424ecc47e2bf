"""Inference in many series of one model: what `Method.solve` does for one series, in the lanes of `lanes`.

Series are padded to a common size, so that a panel needs one program. Where the longest series are far longer than the
others, and many, they get a program of their own.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from girsanov._core.precision import float64
from girsanov._core.threads import threads
from girsanov.data.on_grid import SeriesOnGrid
from girsanov.inference.careful import Careful
from girsanov.inference.conditioning import Loss, explained, flagged
from girsanov.inference.continuous_bound import ContinuousSites, from_discrete
from girsanov.inference.cvi_dp import (
    COARSE_ITERATIONS,
    COARSE_TOLERANCE,
    CVIDP,
    as_careful_result,
    continuous_algorithm,
    discrete_algorithm,
    discrete_method,
)
from girsanov.inference.lanes import Setting, Task, run_lanes
from girsanov.inference.levels import SHARED_PROGRAM, coarser_grids, prolong
from girsanov.inference.loop import Algorithm, Limits, Run
from girsanov.inference.method import Method
from girsanov.inference.objective import Posed
from girsanov.inference.sites import Sites
from girsanov.inference.status import Status
from girsanov.model.model import Model, with_errors_known
from girsanov.model.quadrature import Rule

Counts = list[tuple[int, int]]  # iterations and passes of the runs that made a start, in their order
Finish = Callable[[int, Posed, Run, Counts], None]
_WORTH = 3e6  # a program of its own is compiled in the time of so many nodes of series, times d²


def solve_many(method: Method, model: Model, rule: Rule, datas: Sequence[SeriesOnGrid], finish: Finish) -> None:
    """Solve the problems of many series.

    Args:
        method: the method, the same for all.
        model: the model of all series.
        rule: the quadrature rule.
        datas: the series on their grids, not padded.
        finish: called as `finish(i, problem, run, counts)` when series i is solved, from several threads. The problem
            and the run are padded, and copies of their arrays are to be kept.
    """
    for members in groups(datas, model.dim):
        stated = with_errors_known(model, datas[members[0]].errors)
        _Bucket(method, stated, rule, [datas[i] for i in members], members, finish).solve()


def groups(datas: Sequence[SeriesOnGrid], d: int) -> Iterator[list[int]]:
    """Yield the numbers of the series that share a program."""
    for known in (False, True):
        alike = [i for i, data in enumerate(datas) if (data.errors is not None) == known]
        for bucket in buckets([len(datas[i].times) for i in alike], d):
            yield [alike[k] for k in bucket]


def padded(datas: Sequence[SeriesOnGrid]) -> list[SeriesOnGrid]:
    """Return series padded to a common size."""
    rows = capacity(max(len(data.node) for data in datas), 4)
    nodes = capacity(max(len(data.times) for data in datas) + 1)
    return [data.padded(nodes, rows) for data in datas]


def buckets(sizes: Sequence[int], d: int) -> list[list[int]]:
    """Return the places of the sizes in groups that are padded to one size each, the largest sizes first."""
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    groups = []
    while order:
        padded = np.array([capacity(sizes[i]) for i in order])
        saved = (padded[0] - padded) * np.arange(len(order), 0, -1) * d**2
        cut = int(np.argmax(saved)) if saved.max() > _WORTH else len(order)
        groups.append(sorted(order[:cut]))
        order = order[cut:]
    return groups


def capacity(size: int, finest: int = 16) -> int:
    """Return the size to which arrays of `size` are padded, so that similar panels share a program."""
    step = max(finest, 1 << max(size.bit_length() - 3, 0))
    return -(-size // step) * step


class _Bucket:
    """Series that are padded to one size: what they share, and the methods that solve them."""

    def __init__(self, method: Any, model: Model, rule: Rule, datas: list, members: list[int], finish: Finish):
        self.method, self.model, self.rule, self.datas = method, model, rule, datas
        self.members, self.finish = members, finish
        self.padded = padded(datas)
        self.nodes, self.rows = len(self.padded[0].times), len(self.padded[0].node)
        self.counts: list[Counts] = [[] for _ in datas]

    def solve(self) -> None:
        """Solve all problems."""
        if not isinstance(self.method, CVIDP):
            self._one_by_one()
        elif self.method.time == "continuous":
            self._continuous()
        else:
            self._discrete(self.method, self._ended)

    def problem(self, k: int) -> Posed:
        """Return the problem of a series, padded."""
        return Posed(self.model, self.padded[k], self.rule)

    def _ended(self, k: int, run: Run) -> None:
        self.finish(self.members[k], self.problem(k), run, self.counts[k])

    def _lanes(self, algorithm: Algorithm, ended: Callable, which: Sequence[int], starts: Any, **changed: Any) -> None:
        """Run an algorithm on some of the series; `ended` is called with the number of the series."""
        limits = {"tolerance": self.method.tolerance, "max_iterations": self.method.max_iterations, **changed}
        datas = limits.pop("datas", self.padded)
        setting = Setting(
            algorithm,
            self.model,
            self.rule,
            Limits(np.asarray(float(limits["tolerance"])), np.asarray(int(limits["max_iterations"]))),
        )
        run_lanes(
            setting, [Task(datas[k], starts[k]) for k in which], lambda j, run, loss, _: ended(which[j], run, loss)
        )

    def _discrete(self, method: CVIDP, ended: Callable[[int, Run], None]) -> None:
        """Solve in discrete time, from coarser grids, and again with the careful algorithm where rounding matters."""
        everyone, algorithm = range(len(self.datas)), discrete_algorithm(method)
        starts = self._coarse_starts(method) if method.coarse_to_fine and method.rho is None else [None] * len(everyone)
        limits = {"tolerance": method.tolerance, "max_iterations": method.max_iterations}
        again: list[int] = []
        careful: list[int] = []

        def first(k: int, run: Run, loss: Loss) -> None:
            if run.status is Status.BAD_START and starts[k] is not None:
                again.append(k)  # the coarse solution does not fit the fine grid
            else:
                second(k, run, loss)

        def second(k: int, run: Run, loss: Loss) -> None:
            if method.rho is not None:
                ended(k, flagged(self.problem(k), run))
            elif loss.asks_for_care(run.status):
                careful.append(k)
            else:
                ended(k, run)

        nothing: list[Any] = [None] * len(everyone)
        self._lanes(algorithm, first, everyone, starts, **limits)
        self._lanes(algorithm, second, sorted(again), nothing, **limits)
        last: Callable = lambda k, run, _: ended(k, as_careful_result(self.problem(k), run))  # noqa: E731
        self._lanes(Careful(), last, sorted(careful), nothing, **limits)

    def _coarse_starts(self, method: CVIDP) -> list[Any]:
        """Return starts from solutions on coarser grids, or None where there are none."""
        d, starts = self.model.dim, [None] * len(self.datas)
        levels = [coarser_grids(data.grid, d)[::-1] for data in self.datas]
        hopeless: set[int] = set()
        previous: dict[int, tuple[Any, np.ndarray]] = {}
        for level in reversed(range(max(map(len, levels)))):
            which = [k for k, grids in enumerate(levels) if len(grids) > level and k not in hopeless]
            size = capacity(max(len(levels[k][level][0].times) for k in which) + 1)
            size = self.nodes if self.nodes * d**2 <= SHARED_PROGRAM else size
            here = {k: self.datas[k].on(levels[k][level][0], len(levels[k][level][0].times)) for k in which}
            wide = {k: data.padded(size, self.rows) for k, data in here.items()}
            begun = {k: self._prolonged(previous.get(k), wide[k]) for k in which}
            failed: list[int] = []

            def ended(k: int, run: Run, _: Any, begun=begun, here=here, failed=failed) -> None:
                if run.status is not Status.BAD_START:
                    previous[k] = jax.tree.map(np.array, run.sites), here[k].times
                elif begun[k] is not None:
                    failed.append(k)
                else:
                    hopeless.add(k)
                    previous.pop(k, None)
                    return
                self.counts[k].append((len(run.trace["elbo"]) - 1, run.passes))

            limits = {"tolerance": max(COARSE_TOLERANCE, method.tolerance), "max_iterations": COARSE_ITERATIONS}
            self._lanes(discrete_algorithm(method), ended, which, begun, datas=wide, **limits)
            nothing = dict.fromkeys(failed)
            begun.update(nothing)
            self._lanes(discrete_algorithm(method), ended, sorted(failed), nothing, datas=wide, **limits)
        for k, before in previous.items():
            starts[k] = self._prolonged(before, self.padded[k])
        return starts

    def _prolonged(self, before: tuple[Any, np.ndarray] | None, data: SeriesOnGrid) -> Any:
        return None if before is None else prolong(*before, Posed(self.model, data, self.rule))

    def _continuous(self) -> None:
        """Solve in continuous time, from the solutions in discrete time where the noise allows them."""
        method = self.method
        starts: list[Any] = [None] * len(self.datas)

        def begin(k: int, run: Run) -> None:
            self.counts[k].append((len(run.trace["elbo"]) - 1, run.passes))
            if run.status is not Status.BAD_START:
                starts[k] = self._at_nodes(run.sites, len(self.datas[k].times))

        if not self.model.latent.noise.is_singular:
            self._discrete(discrete_method(method), begin)
        last: Callable = lambda k, run, _: self._ended(k, explained(self.problem(k), run))  # noqa: E731
        self._lanes(continuous_algorithm(method), last, range(len(self.datas)), starts)

    def _at_nodes(self, sites: Sites, size: int) -> ContinuousSites:
        """Return discrete sites as sites of the SDE; the base at the last node is that of the last step."""
        last = max(size - 2, 0)
        sites = jax.tree.map(np.array, sites)
        for base in (sites.base.A, sites.base.b):
            base[..., last + 1 :] = base[..., last, None]
        return from_discrete(sites, self.datas[0].inputs is not None)

    def _one_by_one(self) -> None:
        """Solve one problem after the other in each thread, for methods that do not run in lanes."""

        @float64
        def solve(k: int) -> None:
            run, before = self.method.solve(self.problem(k))
            self.counts[k] = [(len(r.trace["elbo"]) - 1, r.passes) for r in before]
            self._ended(k, run)

        with ThreadPoolExecutor(threads(len(self.datas))) as pool:
            list(pool.map(solve, range(len(self.datas))))
