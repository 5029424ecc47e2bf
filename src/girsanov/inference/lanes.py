"""Many runs of an algorithm side by side: a compiled program makes passes over the chains of a few series at a time.

The series that a program works on are its lanes. A pass takes all lanes one step further, those that have ended too,
so when some lanes have ended, the program returns, and the next series of the queue take their places. Each thread has
lanes of its own, few enough that their chains stay in the cache.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov._core.threads import threads
from girsanov.data.on_grid import SeriesOnGrid
from girsanov.inference.conditioning import Loss, traced_loss
from girsanov.inference.envelope import bound_at, value_and_grad_at
from girsanov.inference.loop import Algorithm, Carry, Limits, Record, Run
from girsanov.inference.objective import Posed
from girsanov.inference.sites import Sites
from girsanov.inference.status import Status
from girsanov.model.quadrature import Rule

_MOST = 16  # lanes of a thread
_VALUES = 200_000  # values of the drift at the quadrature nodes of all lanes, beyond which they leave the cache
_PASSES = 64  # largest number of passes of one call
_REFILL = 2  # a call returns when one lane in so many has ended, as long as there are series left


class Task(NamedTuple):
    """One run: the series on a grid, all of one size, a start or None, and parameters of its own or None."""

    data: SeriesOnGrid
    start: Any = None
    own: Any = None


class Setting(NamedTuple):
    """What all runs share: the algorithm, the model, the rule of quadrature and the limits.

    Where series have parameters of their own, `place(own, model)` returns the model of a series.
    """

    algorithm: Algorithm
    model: Any
    rule: Rule
    limits: Limits
    place: Callable[[Any, Any], Any] | None = None

    def posed(self, data: SeriesOnGrid, own: Any) -> Posed:
        """Return the problem of one run."""
        return Posed(self.model if self.place is None else self.place(own, self.model), data, self.rule)


@compiled
def _begin(setting: Setting, data: SeriesOnGrid, start: Any, given: Any, own: Any):
    def begin(data, start, given, own):
        return setting.algorithm.begin(setting.posed(data, own), start, given)

    begun = jax.vmap(begin)(data, start, given, own)
    # Without weak types, so that the first call of `_advance` and the later ones are of one program.
    return jax.tree.map(lambda a: jax.lax.convert_element_type(a, a.dtype), begun)


@compiled
def _advance(setting: Setting, data: SeriesOnGrid, own: Any, live, fresh, begun: Any, carry: Any, least):
    """Make passes until at most `least` of the `live` lanes run, or for _PASSES; `fresh` lanes start from `begun`."""
    common, lanes = setting.algorithm.common, fresh.shape[0]

    def chosen(mask, yes, no):
        return jax.tree.map(lambda y, n: jnp.where(mask.reshape((lanes,) + (1,) * (y.ndim - 1)), y, n), yes, no)

    def step(data, own, carry):
        return setting.algorithm.step(setting.posed(data, own), carry, setting.limits)

    def runs(carry):
        return live & (common(carry).status == int(Status.RUNNING))

    def unfinished(loop):
        carry, _, passes = loop
        return (passes < _PASSES) & (jnp.sum(runs(carry)) > least)

    def body(loop):
        carry, records, passes = loop
        running = runs(carry)
        new, record = jax.vmap(step)(data, own, carry)
        record = eqx.tree_at(lambda r: r.complete, record, record.complete & running)
        records = jax.tree.map(lambda all_, one: all_.at[passes].set(one), records, record)
        return chosen(running, new, carry), records, passes + 1

    blank = Record(*(jnp.zeros((_PASSES, lanes), t) for t in (bool, float, float, float)))
    carry, records, passes = jax.lax.while_loop(unfinished, body, (chosen(fresh, begun, carry), blank, jnp.asarray(0)))
    loss = slope = None
    if isinstance(common(carry).sites, Sites):
        loss = jax.vmap(lambda data, own, carry: traced_loss(setting.posed(data, own), carry))(data, own, common(carry))
    if setting.place is not None:
        slope = jax.vmap(lambda data, own, carry: _slope(setting, data, own, carry))(data, own, common(carry))
    return carry, records, passes, (loss, slope)


def _slope(setting: Setting, data: SeriesOnGrid, own: Any, carry: Carry) -> Any:
    """Return the gradient of the bound in the parameters of a series, by the envelope theorem."""
    q = carry.moments if isinstance(carry.sites, Sites) else carry.sites
    return value_and_grad_at(lambda own: bound_at(setting.posed(data, own), q), own, q)[1]


def run_lanes(
    setting: Setting,
    tasks: Sequence[Task],
    finish: Callable[[int, Run, Loss | None, Any], None],
) -> None:
    """Run an algorithm on every task.

    Args:
        setting: what the runs share.
        tasks: the series, padded to one size, with their starts and their own parameters. Either all or none of them
            have parameters of their own.
        finish: called as `finish(i, run, loss, slope)` when task i has ended, from several threads. Its arrays are
            padded like the task, and copies are to be kept, because they share the memory of all lanes. The loss is
            None in continuous time. The slope is the gradient of the bound in the task's own parameters, if any.
    """
    if not tasks:
        return
    workers = threads(len(tasks))
    share = -(-len(tasks) // workers)
    values = setting.rule.nodes.size * len(tasks[0].data.times)
    fits = 1 << max(_VALUES // values, 1).bit_length() - 1
    lanes = min(_MOST, max(fits, 2), 1 << (share - 1).bit_length())
    queue = _Queue(len(tasks), share)
    blocks = [_Block(setting, tasks, finish, queue, lanes) for _ in range(workers)]
    if workers == 1:
        return blocks[0].work()
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(block.work) for block in blocks]
        try:
            for future in futures:
                future.result()
        finally:
            queue.stop()


class _Queue:
    """The numbers of the tasks that no lane has taken yet."""

    def __init__(self, count: int, share: int):
        self._next, self._count, self._share, self._lock = 0, count, share, threading.Lock()

    def take(self, most: int) -> list[int]:
        """Return the next few numbers, at most `most` of them."""
        with self._lock:
            first = self._next
            self._next = min(first + min(most, self._share), self._count)
            return list(range(first, self._next))

    def stop(self) -> None:
        """Leave the rest undone."""
        with self._lock:
            self._next = self._count

    @property
    def is_empty(self) -> bool:
        """Whether every task has been taken."""
        return self._next >= self._count


class _Block:
    """The lanes of one thread, and what each of them is working on."""

    def __init__(self, setting: Setting, tasks: Sequence[Task], finish: Callable, queue: _Queue, lanes: int):
        self.setting, self.tasks, self.finish, self.queue, self.lanes = setting, tasks, finish, queue, lanes
        self.blank = setting.algorithm.blank_start(setting.posed(tasks[0].data, tasks[0].own))
        self.task: list[int | None] = [None] * lanes
        self.records: list[list[tuple[Record, int]]] = [[] for _ in range(lanes)]
        self.begun = [0.0] * lanes

    @float64
    def work(self) -> None:
        """Take tasks until none is left."""
        carry = None
        held = [self.tasks[0]] * self.lanes  # lanes without a task repeat one, and what comes out is not used
        while True:
            free = [i for i, task in enumerate(self.task) if task is None]
            fresh = np.zeros(self.lanes, bool)
            for lane, number in zip(free, self.queue.take(len(free)), strict=False):
                self.task[lane], held[lane], fresh[lane] = number, self.tasks[number], True
                self.records[lane], self.begun[lane] = [], time.perf_counter()
            active = [i for i, task in enumerate(self.task) if task is not None]
            if not active:
                return
            live = np.array([task is not None for task in self.task])
            data, own = (_stacked(part) for part in ([t.data for t in held], [t.own for t in held]))
            begun = carry
            if fresh.any():
                given = np.array([t.start is not None for t in held])
                start = _stacked([self.blank if t.start is None else t.start for t in held])
                begun = _begin(self.setting, data, start, given, own)
            carry = begun if carry is None else carry
            ends = max(1, self.lanes // _REFILL)
            least = np.asarray(0 if self.queue.is_empty else max(len(active) - ends, 0))
            carry, records, passes, more = _advance(self.setting, data, own, live, fresh, begun, carry, least)
            self._harvest(carry, jax.tree.map(np.asarray, records), int(passes), jax.tree.map(np.asarray, more), active)

    def _harvest(self, carry: Any, records: Record, passes: int, more: tuple, active: list[int]) -> None:
        """Give away the results of the lanes that have ended, and keep the records of this call for the others."""
        leaves, form = jax.tree.flatten(self.setting.algorithm.common(carry))
        leaves = [np.asarray(leaf) for leaf in leaves]
        status = form.unflatten(leaves).status.tolist()
        loss, slope = more
        for lane in active:
            self.records[lane].append((records, passes))
            if status[lane] != Status.RUNNING:
                ended = form.unflatten([leaf[lane] for leaf in leaves])
                run = _as_run(ended, self.records[lane], lane, time.perf_counter() - self.begun[lane])
                number, self.task[lane] = self.task[lane], None
                spoilt = None if loss is None else Loss(*loss[lane].tolist())
                self.finish(number, run, spoilt, None if slope is None else slope[lane].copy())


def _stacked(parts: Sequence[Any]) -> Any:
    """Return pytrees of arrays as one, with the lanes as the first axis."""
    return jax.tree.map(lambda *a: np.stack(a), *parts)


def _as_run(ended: Carry, records: list[tuple[Record, int]], lane: int, seconds: float) -> Run:
    """Return the result of a lane, as NumPy arrays that share the memory of all lanes."""

    def column(name: str) -> np.ndarray:
        return np.concatenate([getattr(record, name)[:passes, lane] for record, passes in records])

    complete = column("complete")
    trace = {name: column(name)[complete] for name in ("elbo", "step", "decrement")}
    status = Status(int(ended.status))
    return Run(
        ended.eta,
        ended.moments,
        ended.sites,
        float(ended.elbo),
        status,
        trace,
        len(complete),
        seconds,
        ended.steps,
    )
