"""Where float64 is decided: every public verb runs inside `float64`, and the user's own JAX settings stay as they are.

Parameters and results are NumPy float64 arrays at the boundary, since a float64 JAX array would be truncated by the
first JAX operation outside this context.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

from girsanov import _fork
from girsanov._checks import as_floats

P = ParamSpec("P")
R = TypeVar("R")


def float64(fn: Callable[P, R]) -> Callable[P, R]:
    """Run `fn` with 64-bit JAX types, whatever the caller's default is."""

    @functools.wraps(fn)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        _fork.check()
        with jax.enable_x64(True):
            return fn(*args, **kwargs)

    return wrapped


def parameter(value: Any) -> Any:
    """A float64 array that JAX can trace: a changed value does not compile again. Tracers pass through.

    It is a copy that cannot be written: what the user does to an array later does not change the model.
    """
    return value if isinstance(value, jax.Array) else frozen(as_floats("parameters", value))


def frozen(a: np.ndarray) -> np.ndarray:
    """The same array, which can no longer be written."""
    a.flags.writeable = False
    return a


def to_numpy(tree: Any) -> Any:
    """The same tree with NumPy arrays in place of JAX arrays."""
    return jax.tree.map(lambda a: np.asarray(a) if isinstance(a, jax.Array) else a, tree)
