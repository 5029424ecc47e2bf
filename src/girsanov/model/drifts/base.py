"""What every drift of the library offers."""

import abc
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Float

from girsanov._core.types import Array


class Drift(eqx.Module):
    """Base class of the library's drifts.

    Attributes:
        constraints: constraints that learning keeps, by parameter: "positive" or "ordered"; the others are free.
    """

    constraints: ClassVar[dict[str, str]] = {}

    @property
    @abc.abstractmethod
    def dim(self) -> int | None:
        """The dimension d of the state if the parameters determine it; None if the drift works for every d."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " d"], t: Float[Array, ""]) -> Float[Array, " d"]:
        """Evaluate the drift. One that takes inputs has them, of shape (m,), as a third argument.

        Args:
            x: the state, shape (d,).
            t: the time, a scalar.

        Returns:
            f(x, t), shape (d,).
        """

    def __add__(self, other: Any) -> "Sum":
        """Add another drift, or any function of state and time, or of state, time and inputs.

        Args:
            other: a callable of a state of shape (d,) and a scalar time that returns shape (d,).

        Returns:
            The sum f(x, t) + other(x, t), which is a drift.
        """
        return Sum((*_parts(self), *_parts(other))) if callable(other) else NotImplemented

    def __radd__(self, other: Any) -> "Sum":
        return Sum((*_parts(other), *_parts(self))) if callable(other) else NotImplemented


class Sum(Drift):
    """The sum of several drifts, as `drift_a + drift_b` makes it.

    Args:
        parts: the drifts. Their parameters are named "drift.parts[0].…", "drift.parts[1].…" in learning.
    """

    parts: tuple[Callable, ...]

    @property
    def dim(self) -> int | None:
        sizes = {size for part in self.parts if isinstance(size := getattr(part, "dim", None), int)}
        if len(sizes) > 1:
            raise ValueError(f"the drifts of a sum are for states of different dimensions: {sorted(sizes)}")
        return sizes.pop() if sizes else None

    @property
    def takes_inputs(self) -> bool:
        """Whether any of the drifts takes inputs; all that do get the same ones."""
        return any(takes_inputs(part) for part in self.parts)

    def __call__(self, x, t, u=None):
        values = [part(x, t, u) if takes_inputs(part) else part(x, t) for part in self.parts]
        return sum(values[1:], values[0])


def takes_inputs(drift: Any) -> bool:
    """Return whether a drift is one of state, time and inputs, f(x, t, u), and not of state and time alone."""
    known = getattr(drift, "takes_inputs", None)
    if isinstance(known, bool):
        return known
    try:
        parameters = inspect.signature(drift).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters) >= 3


def _parts(drift: Callable) -> tuple[Callable, ...]:
    return drift.parts if isinstance(drift, Sum) else (drift,)


def common_size(*parameters: Any) -> int | None:
    sizes = {np.shape(p)[0] for p in parameters if np.ndim(p) == 1}
    if len(sizes) > 1:
        raise ValueError(f"the drift's parameters have different lengths: {sorted(sizes)}")
    return sizes.pop() if sizes else None
