"""64-bit types: every public function runs inside `float64`, and the user's own JAX settings stay unchanged.

Parameters that come in and results that go out are NumPy float64 arrays, because the first JAX operation outside this
context would truncate a float64 JAX array.

As long as any program holds a NumPy array object, JAX keeps a single converted form of it, in 32 or in 64 bits. An
array that a user's 32-bit program closes over would therefore be truncated in our programs, and an array that ours
close over would be too wide in the user's. `own` gives our programs array objects that no other program holds.
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
    """Decorate `fn` to run with 64-bit types and the JAX settings that our code needs, whatever the caller's are."""

    @functools.wraps(fn)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        fork.check()
        with _settings():
            return fn(*args, **kwargs)

    return wrapped


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """Set 64-bit types and JAX's default settings for this thread within the `with` block.

    Transfers are allowed because our arrays are NumPy arrays. Debugging of NaN is off because our functions report a
    number that is not finite as a status, not as an exception.
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
    """Decorate `fn` to run inside a JAX program of the user's, with the other JAX settings that our code needs.

    A program has a single width of types. If the user's program has 32-bit types, a ValueError asks for 64 bits; `fn`
    is never computed in float32.
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


def parameter(value: Any, name: str = "parameters") -> Any:
    """Copy a value to a read-only float64 array; a tracer of JAX is returned unchanged. Errors call it `name`.

    JAX traces such an array, so a changed value does not lead to a new compilation. Because it is a copy, the model
    does not change when the user writes to the original array.
    """
    return value if isinstance(value, Tracer) else frozen(as_floats(name, value))


def traceable(drift: Any) -> Any:
    """Convert the numbers inside a drift or another callable to read-only float64 NumPy arrays.

    They are parameters, so that a changed value does not lead to a new compilation. Arrays are copied, so that the
    model does not change when the user writes to them. Arrays of whole numbers and of truth values keep their type.
    """

    def traced(leaf: Any) -> Any:
        if (
            isinstance(leaf, jax.Array)
            and not isinstance(leaf, Tracer)
            and jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)
        ):
            return parameter(leaf)
        if isinstance(leaf, np.ndarray):
            if leaf.dtype in (np.float32, np.float16):
                return parameter(leaf)
            return frozen(leaf.copy()) if leaf.flags.writeable else leaf
        number = isinstance(leaf, int | float) and not isinstance(leaf, bool)
        return parameter(leaf) if number else leaf

    return jax.tree.map(traced, drift)


def frozen(a: np.ndarray) -> np.ndarray:
    """Make the array read-only and return it."""
    a.flags.writeable = False
    return a


def to_numpy(tree: Any) -> Any:
    """Replace the JAX arrays of a pytree by NumPy arrays."""
    return jax.tree.map(lambda a: np.asarray(a) if isinstance(a, jax.Array) else a, tree)


def own(tree: Any) -> Any:
    """Replace the arrays of a pytree by new array objects that share the memory of the old ones.

    Functions and other callables in the pytree are rebuilt, with new objects for the arrays that they refer to.
    """
    return jax.tree.map(_own_leaf, tree)


def _own_leaf(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf.view()
    return _own_callable(leaf) if callable(leaf) and not isinstance(leaf, jax.Array | type) else leaf


# The rebuilt callable for each of the user's. It is kept, because JAX caches compiled programs by function object.
_CALLABLES: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


_LOCK = threading.RLock()


def _own_callable(fn: Any) -> Any:
    with _LOCK:
        try:
            known = _CALLABLES.get(fn)
        except TypeError:  # the object has no hash or allows no weak references
            return fn
        if known is not None:
            return known() if isinstance(known, weakref.ref) else known
        # This entry stays if fn refers to no arrays, and it ends the search if functions refer to each other.
        _CALLABLES[fn] = weakref.ref(fn)
        ours = _own_function(fn) if isinstance(fn, types.FunctionType) else _own_object(fn)
        if ours is not fn:
            _CALLABLES[fn] = ours
        return ours


def _own_function(fn: types.FunctionType) -> types.FunctionType:
    """Rebuild a function with new objects for the arrays in its closure, its defaults and its module's globals.

    Functions of the same module that it refers to are rebuilt too. A function without such arrays is returned as it is.
    """

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
    except ValueError:  # the cell is still empty
        return None


def _names(code: types.CodeType) -> set[str]:
    """Return the names of globals and attributes used by the code and by the functions defined inside it."""
    inner = (_names(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*inner)


def _own_object(fn: Any) -> Any:
    """Copy a callable object that is not a pytree, with new array objects; without array attributes return it as is."""
    arrays = {k: v.view() for k, v in getattr(fn, "__dict__", {}).items() if isinstance(v, np.ndarray)}
    if not arrays:
        return fn
    ours = copy.copy(fn)
    for name, a in arrays.items():
        object.__setattr__(ours, name, a)
    return ours
