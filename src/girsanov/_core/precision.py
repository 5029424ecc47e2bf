"""Where float64 is decided: every public verb runs inside `float64`, and the user's own JAX settings stay as they are.

Parameters and results are NumPy float64 arrays at the boundary, since a float64 JAX array would be truncated by the
first JAX operation outside this context. JAX has one form, in 32 or in 64 bits, for a NumPy array object as long as any
program holds it: an array that a user's 32-bit program closes over would be truncated in ours, and one that ours closes
over would be too wide for the user's. `own` gives our programs array objects of their own.
"""

import contextlib
import copy
import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.core import Tracer

from girsanov._core import fork
from girsanov._core.checks import as_floats

P = ParamSpec("P")
R = TypeVar("R")


def float64(fn: Callable[P, R]) -> Callable[P, R]:
    """Run `fn` with 64-bit JAX types and the settings that our code is written for, whatever the caller's are."""

    @functools.wraps(fn)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        fork.check()
        with _settings():
            return fn(*args, **kwargs)

    return wrapped


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """64-bit types and JAX's defaults, for this thread and this call.

    Our arrays are NumPy's, so transfers are ours to make; a number that is not finite is a status, not an exception.
    """
    with (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.default_matmul_precision(None),
        jax.transfer_guard("allow"),
        jax.disable_jit(False),
        jax.debug_nans(False),
        jax.debug_infs(False),
    ):
        yield


def in_a_users_program(fn: Callable[P, R]) -> Callable[P, R]:
    """Run `fn` inside a program of the user's: their 64-bit types, and for the rest the settings of our code.

    A program has one width of types: where theirs is 32 bits we say so, instead of computing in float32.
    """

    @functools.wraps(fn)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        if jax.numpy.result_type(float) != np.float64:
            raise ValueError(
                f"girsanov.{fn.__name__.lstrip('_')} runs inside your own JAX program and needs its 64-bit types: call "
                "jax.config.update('jax_enable_x64', True) at the start of the program, or use it inside "
                "jax.enable_x64(True)"
            )
        with (
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
            jax.default_matmul_precision(None),
        ):
            return fn(*args, **kwargs)

    return wrapped


def parameter(value: Any) -> Any:
    """A float64 array that JAX can trace: a changed value does not compile again. Tracers pass through.

    It is a copy that cannot be written: what the user does to an array later does not change the model.
    """
    return value if isinstance(value, Tracer) else frozen(as_floats("parameters", value))


def frozen(a: np.ndarray) -> np.ndarray:
    """The same array, which can no longer be written."""
    a.flags.writeable = False
    return a


def to_numpy(tree: Any) -> Any:
    """The same tree with NumPy arrays in place of JAX arrays."""
    return jax.tree.map(lambda a: np.asarray(a) if isinstance(a, jax.Array) else a, tree)


def own(tree: Any) -> Any:
    """The same tree with array objects that nobody else has; they share the memory of those given.

    Functions and other callables in it are rebuilt with such objects for the arrays that they refer to.
    """
    return jax.tree.map(_own_leaf, tree)


def _own_leaf(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf.view()
    return _own_callable(leaf) if callable(leaf) and not isinstance(leaf, jax.Array | type) else leaf


# One of ours for each of the user's, since a compiled program belongs to the function object that it was made from.
_CALLABLES: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


_LOCK = threading.RLock()


def _own_callable(fn: Any) -> Any:
    with _LOCK:
        try:
            known = _CALLABLES.get(fn)
        except TypeError:  # no hash or no weak references
            return fn
        if known is not None:
            return known() if isinstance(known, weakref.ref) else known
        _CALLABLES[fn] = weakref.ref(
            fn
        )  # stays where there are no arrays; ends the search where functions are recursive
        ours = _own_function(fn) if isinstance(fn, types.FunctionType) else _own_object(fn)
        if ours is not fn:
            _CALLABLES[fn] = ours
        return ours


def _own_function(fn: types.FunctionType) -> types.FunctionType:
    """The same code with other objects for arrays in its closure, defaults and module, and for functions beside it."""

    def changed(values: dict[Any, Any]) -> dict[Any, Any]:
        ours = {
            key: _own_leaf(v)
            for key, v in values.items()
            if isinstance(v, np.ndarray) or (isinstance(v, types.FunctionType) and v.__module__ == fn.__module__)
        }
        return {key: v for key, v in ours.items() if v is not values[key]}

    cells = fn.__closure__ or ()
    names = _names(fn.__code__)
    closure = changed({i: _contents(c) for i, c in enumerate(cells)})
    defaults = changed(dict(enumerate(fn.__defaults__ or ())))
    keywords = changed(fn.__kwdefaults__ or {})
    scope = changed({name: fn.__globals__[name] for name in names if name in fn.__globals__})
    if not (closure or defaults or keywords or scope):
        return fn
    ours = types.FunctionType(
        fn.__code__,
        {**fn.__globals__, **scope} if scope else fn.__globals__,
        fn.__name__,
        tuple(defaults.get(i, v) for i, v in enumerate(fn.__defaults__ or ())),
        tuple(types.CellType(closure[i]) if i in closure else c for i, c in enumerate(cells)),
    )
    ours.__kwdefaults__ = {**(fn.__kwdefaults__ or {}), **keywords}
    ours.__module__, ours.__qualname__ = fn.__module__, fn.__qualname__
    return ours


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _names(code: types.CodeType) -> set[str]:
    """Names of globals and attributes in the code and in the functions defined in it."""
    inner = (_names(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*inner)


def _own_object(fn: Any) -> Any:
    """A copy of a callable object that is no pytree, where its attributes are arrays."""
    arrays = {k: v.view() for k, v in getattr(fn, "__dict__", {}).items() if isinstance(v, np.ndarray)}
    if not arrays:
        return fn
    ours = copy.copy(fn)
    for name, a in arrays.items():
        object.__setattr__(ours, name, a)
    return ours
