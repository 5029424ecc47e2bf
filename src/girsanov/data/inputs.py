"""The public type for inputs u(t): what is known to act on the state, such as doses, stimuli or the weather."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from girsanov._core.checks import as_floats, is_finite, shown
from girsanov._core.precision import frozen
from girsanov.data.dates import are_dates
from girsanov.data.grid import locate, rounding
from girsanov.data.instants import InputsOnGrid

KINDS = ("linear", "previous", "impulse")


@dataclasses.dataclass(frozen=True)
class Part:
    """Inputs of one kind, one of KINDS or "constant": times (k,), and values or amounts (k, m).

    `until` ends the last value of "previous".
    """

    kind: str
    times: np.ndarray
    values: np.ndarray
    until: float = np.inf

    def at(self, t: np.ndarray, side: Any = "right") -> np.ndarray:
        """Return the values at times t, (n, m): from each time on, or with side="left" up to it. Impulses are zero."""
        if self.kind == "impulse":
            return np.zeros((len(t), self.values.shape[1]))
        if self.kind == "linear":
            return np.stack([np.interp(t, self.times, column) for column in self.values.T], 1)
        return self.values[np.maximum(np.searchsorted(self.times, t, side=side) - 1, 0)]

    def given(self, t: np.ndarray) -> np.ndarray:
        """Return the sum of all impulses up to and including each time, (n, m)."""
        if self.kind != "impulse":
            return np.zeros((len(t), self.values.shape[1]))
        total = np.concatenate([np.zeros((1, self.values.shape[1])), np.cumsum(self.values, 0)])
        return total[np.searchsorted(self.times, t, side="right")]

    @property
    def jumps(self) -> bool:
        """Whether the inputs have steps or impulses, which must lie on nodes."""
        return self.kind in ("previous", "impulse")


class Inputs:
    """Inputs u(t) with m components, which a drift f(x, t, u) receives.

    Args:
        times: strictly increasing times, (k,): numbers, or dates if the series has dates.
        values: values at these times, (k,) or (k, m).
        kind: "linear": interpolated between the times. "previous": a value holds from its time on, up to the next one.
            "impulse": the values are amounts a that are given at once, u(t) = Σ a δ(t − t_k), such as doses: at that
            time the state jumps by ∂f/∂u · a, so the drift must be of the form g(x, t) + G u in that component.
        until: for "previous", the time at which the last value ends; by default it holds on.
        names: names of the components, which equations match with the names of their inputs.

    A time of an impulse or a step belongs to what comes after it: an observation at the time of an impulse sees the
    state after it. An impulse at the start of the span adds to the initial state.

    Attributes:
        names: the names of the components, or None.

    Raises:
        ValueError: if the times do not increase, a value is not finite, or the shapes do not fit.
    """

    parts: tuple[Part, ...]
    names: tuple[str, ...] | None

    def __init__(self, times: Any, values: Any, kind: str = "linear", *, until: float | None = None, names: Any = None):
        if kind not in KINDS:
            raise ValueError(f"kind must be 'linear', 'previous' or 'impulse', got {kind!r}")
        if until is not None and (kind != "previous" or not is_finite(until)):
            raise ValueError(f"until= is a finite time, and for kind='previous' only; got {until!r} with kind={kind!r}")
        t = np.asarray(times) if are_dates(times) else as_floats("the times of the inputs", times)
        v = as_floats("the values of the inputs", values)
        v = v[:, None] if v.ndim == 1 else v
        if t.ndim != 1 or v.ndim != 2 or len(t) != len(v) or not v.size:
            raise ValueError(
                f"inputs need times of shape (k,) and values of shape (k,) or (k, m), got {t.shape} and "
                f"{np.shape(values)}"
            )
        if not np.isfinite(v).all():
            i, j = (int(n) for n in np.argwhere(~np.isfinite(v))[0])
            raise ValueError(
                f"values[{i}, {j}] of the inputs is {v[i, j]} at time {t[i]}: inputs must be known; leave that time "
                "out, or fill it in"
            )
        if t.dtype.kind == "f":
            _check_times(t)
            if until is not None and until < t[-1]:
                raise ValueError(f"until={shown(until)} comes before the last time of the inputs, {shown(t[-1])}")
        self.parts = (Part(kind, frozen(t.copy()), frozen(v), np.inf if until is None else float(until)),)
        self.names = _as_names(names, v.shape[1])

    @classmethod
    def constant(cls, values: Any, *, names: Any = None) -> "Inputs":
        """Make inputs that do not change.

        Args:
            values: a scalar or shape (m,).
            names: names of the components.

        Returns:
            The inputs.
        """
        v = np.atleast_1d(as_floats("the values of the inputs", values))
        if v.ndim != 1 or not v.size or not np.isfinite(v).all():
            raise ValueError(f"constant inputs must be finite numbers, a scalar or of shape (m,), got {values!r}")
        return cls.of_parts((Part("constant", frozen(np.zeros(1)), frozen(v[None])),), _as_names(names, len(v)))

    @classmethod
    def impulses(cls, times: Any, amounts: Any, *, names: Any = None) -> "Inputs":
        """Make impulses, such as doses: the state jumps by ∂f/∂u · amount at each time.

        Args:
            times: strictly increasing times, (k,).
            amounts: the amounts, (k,) or (k, m).
            names: names of the components.

        Returns:
            The inputs, whose values between the times are zero.
        """
        return cls(times, amounts, "impulse", names=names)

    @classmethod
    def joined(cls, given: Any) -> "Inputs":
        """Join inputs of different kinds into one: the components of the first come first, and so on.

        Args:
            given: an `Inputs`, or a sequence of them.

        Returns:
            The inputs.

        Raises:
            ValueError: if something else is given.
        """
        if isinstance(given, Inputs):
            return given
        several: list[Any] = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
        if not several or not all(isinstance(one, Inputs) for one in several):
            raise ValueError(
                f"inputs must be a gv.Inputs(times, values), or a list of those, got {type(given).__name__}; write "
                "gv.Inputs.constant(values) for inputs that do not change"
            )
        names = None
        if all(one.names is not None for one in several):
            names = _as_names([name for one in several for name in one.names or ()], sum(one.dim for one in several))
        return cls.of_parts(tuple(part for one in several for part in one.parts), names)

    @classmethod
    def of_parts(cls, parts: Sequence[Part], names: Sequence[str] | None) -> "Inputs":
        """Make inputs from parts that have been checked already.

        Args:
            parts: the parts, in the order of their components.
            names: the names of all components, or None.

        Returns:
            The inputs.
        """
        new = object.__new__(cls)
        new.parts, new.names = tuple(parts), None if names is None else tuple(names)
        return new

    @property
    def dim(self) -> int:
        """m, the number of components."""
        return sum(part.values.shape[1] for part in self.parts)

    @property
    def events(self) -> np.ndarray:
        """The times of all steps and impulses, (k,), increasing. They are nodes of every grid."""
        times = [part.times for part in self.parts if part.jumps]
        return np.unique(np.concatenate(times)) if times else np.empty(0)

    @property
    def knots(self) -> np.ndarray:
        """The times of all values and amounts, (k,), increasing; between two of them the inputs are linear."""
        return np.unique(np.concatenate([part.times for part in self.parts if part.kind != "constant"] or [[]]))

    def after(self, time: float) -> "Inputs":
        """Return the inputs without the impulses up to and including a time.

        Args:
            time: the time.

        Returns:
            The inputs that are left.
        """
        parts = []
        for part in self.parts:
            later = part.times > time
            if part.kind == "impulse":
                empty = Part("constant", np.zeros(1), np.zeros((1, part.values.shape[1])))
                part = Part("impulse", part.times[later], part.values[later]) if later.any() else empty
            parts.append(part)
        return self.of_parts(tuple(parts), self.names)

    @property
    def has_impulses(self) -> bool:
        """Whether any component consists of impulses."""
        return any(part.kind == "impulse" for part in self.parts)

    @property
    def is_impulse(self) -> np.ndarray:
        """Mask of the components that consist of impulses, (m,)."""
        return np.concatenate([np.full(part.values.shape[1], part.kind == "impulse") for part in self.parts])

    def values(self, times: Any) -> np.ndarray:
        """Return u at some times: at a step the value after it, for impulses zero.

        Args:
            times: numbers, (n,) or a scalar.

        Returns:
            The values, (n, m).
        """
        t = np.atleast_1d(as_floats("times", times))
        return np.concatenate([part.at(t) for part in self.parts], 1)

    def counted(self, numbers: Callable[[Any, str], np.ndarray]) -> "Inputs":
        """Return the inputs with dates as numbers.

        Args:
            numbers: a function of dates, and of what an error calls them, that converts them as those of the series.

        Returns:
            The inputs, whose times are numbers.
        """
        if all(part.times.dtype.kind == "f" for part in self.parts):
            return self
        parts = []
        for part in self.parts:
            t = part.times if part.times.dtype.kind == "f" else numbers(part.times, "the times of the inputs")
            _check_times(t)
            parts.append(dataclasses.replace(part, times=frozen(np.array(t))))
        return self.of_parts(tuple(parts), self.names)

    def check_reach(self, first: float, last: float, past: bool = False) -> None:
        """Raise a ValueError unless the inputs are known from `first` to `last`.

        Args:
            first: the first time.
            last: the last time.
            past: whether impulses before `first` are known. If not, they are an error, because the initial state would
                have to know of them.
        """
        slack = rounding(first, last)
        for part in self.parts:
            begin, end = float(part.times[0]), float(part.times[-1]) if part.kind == "linear" else part.until
            if part.kind in ("linear", "previous") and (begin > first + slack or end < last - slack):
                reach = f"from {shown(begin)} on" if end == np.inf else f"from {shown(begin)} to {shown(end)}"
                raise ValueError(
                    f"the inputs are known {reach}, but they are needed from {shown(first)} to {shown(last)}: give "
                    "inputs that reach that far, or a span= inside of theirs"
                )
            if part.kind == "impulse" and not past and begin < first - slack:
                raise ValueError(
                    f"the impulse at time {shown(begin)} comes before the span, which begins at {shown(first)}: begin "
                    f"the span earlier, such as span=({shown(begin)}, {shown(last)}), or leave the impulse out if the "
                    "initial state has it in it"
                )

    def on(self, nodes: np.ndarray) -> InputsOnGrid:
        """Return the inputs on the nodes of a grid.

        Args:
            nodes: times of the nodes, (N,), increasing.

        Returns:
            The values on either side of each node, and the sum of the impulses.

        Raises:
            ValueError: if a step or an impulse inside the grid is no node.
        """
        parts = [self._snapped(part, nodes) for part in self.parts]
        before, after = (np.concatenate([part.at(nodes, side) for part in parts], 1).T for side in ("left", "right"))
        dosed = np.concatenate([part.given(nodes) for part in parts], 1).T if self.has_impulses else None
        return InputsOnGrid(np.array(nodes), before, after, dosed)

    @staticmethod
    def _snapped(part: Part, nodes: np.ndarray) -> Part:
        """Return the part with its steps and impulses at the nodes that equal them up to rounding."""
        if not part.jumps:
            return part
        t, slack = part.times, rounding(nodes)
        inside = (t >= nodes[0] - slack) & (t <= nodes[-1] + slack)
        node, on = locate(nodes, t[inside])
        if not on.all():
            i = int(np.argmin(on))
            raise ValueError(
                f"the grid misses the step or impulse of the inputs at time {float(t[inside][i])!r}; its nearest node "
                f"is {float(nodes[node[i]])!r}. Use np.union1d(grid, inputs.events)"
            )
        times = t.copy()
        times[inside] = nodes[node]
        return dataclasses.replace(part, times=times)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{part.values.shape[1]} {part.kind}" for part in self.parts)
        return f"Inputs(m={self.dim}: {kinds})"


def input_names(inputs: Sequence[str] | str | None) -> list[str]:
    """Return the names of columns of inputs as a list."""
    return [] if inputs is None else [inputs] if isinstance(inputs, str) else list(inputs)


def sampled(times: np.ndarray, columns: np.ndarray, names: list[str], kind: Any) -> Inputs:
    """Return inputs from the columns of a table, (n, m), with the times of its rows.

    An empty cell is no sample; empty cells and zeros are no impulses. The last value of "previous" ends with the last
    row. `kind` is one for all columns, or a sequence with one for each.
    """
    kinds = [kind] * len(names) if isinstance(kind, str) else list(kind)
    if len(kinds) != len(names):
        raise ValueError(f"input_kind= has {len(kinds)} entries for the {len(names)} columns inputs={names}")
    parts = []
    for name, column, one in zip(names, columns.T, kinds, strict=True):
        given = ~np.isnan(column) & ((column != 0.0) if one == "impulse" else True)
        if not given.any() and one == "impulse":
            parts.append(Inputs.constant(0.0))
            continue
        if not given.any():
            raise ValueError(f"the column {name!r} of the inputs is empty: inputs must be known")
        until = float(times[-1]) if one == "previous" else None
        parts.append(Inputs(times[given], column[given], one, until=until))
    joined = Inputs.joined(parts)
    return Inputs.of_parts(joined.parts, _as_names(names, len(names)))


def _check_times(t: np.ndarray) -> None:
    if not np.isfinite(t).all():
        i = int(np.argmin(np.isfinite(t)))
        raise ValueError(f"times[{i}] of the inputs is {t[i]}; every time must be finite")
    if (np.diff(t) <= 0).any():
        i = int(np.argmax(np.diff(t) <= 0))
        raise ValueError(
            f"the times of the inputs must increase: times[{i + 1}] = {shown(t[i + 1])} follows times[{i}] = "
            f"{shown(t[i])}; sort them with order = np.argsort(times), and add up amounts of the same time"
        )


def _as_names(names: Any, count: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    several = (names,) if isinstance(names, str) else tuple(names)
    if len(several) != count or len(set(several)) != count or not all(isinstance(n, str) for n in several):
        raise ValueError(f"the names of the inputs must be {count} different texts, got {names!r}")
    return several
