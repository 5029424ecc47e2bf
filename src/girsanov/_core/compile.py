"""The compiler options of the library.

XLA compiles a loop to a single function only if its body touches less than 1 kB. The operations of a larger body are
dispatched one by one, which is ten times slower for blocks of a few states. The limit can be raised only through the
environment variable XLA_FLAGS, before JAX runs its first operation. Importing the library raises it, unless XLA_FLAGS
already sets this limit.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from girsanov._core.collection import no_collection
from girsanov._core.precision import own

_SMALL_LOOP = "xla_cpu_small_while_loop_byte_threshold"
_SMALL_LOOP_BYTES = 98_304  # far below the size at which a second core or a matrix library would help

if _SMALL_LOOP not in os.environ.get("XLA_FLAGS", ""):
    _ours = f"--xla_backend_extra_options={_SMALL_LOOP}={_SMALL_LOOP_BYTES}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_ours}".lstrip()

# XLA's newer fusion emitters take 50 % longer to compile our programs, and the programs run no faster. The option
# exists in the releases before 0.11; later releases use the compiler's default.
_KNOWN = jax.__version_info__ < (0, 11)
OPTIONS: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False} if _KNOWN else {}


def compiled(fn: Callable) -> Callable:
    """Compile `fn` by `eqx.filter_jit` with our options: arrays are traced, everything else is a static constant.

    The arguments are passed on as new array objects (see `precision.own`), so that none is shared with the user's
    programs.
    """
    program = eqx.filter_jit(fn, compiler_options=OPTIONS)  # pyright: ignore[reportCallIssue]

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = own((args, kwargs))
        with no_collection():
            return program(*args, **kwargs)

    return run


@functools.cache
def small_loops_are_functions() -> bool:
    """Return whether XLA compiles a loop with a body of a few kB to one function, found by compiling such a loop.

    The answer is False if JAX was used before this library was imported, because our limit then came too late.
    """

    def body(x, _):
        return x[::-1] + jnp.tanh(x), None

    loop = jax.jit(lambda x: jax.lax.scan(body, x, None, length=9)[0])
    program = loop.lower(jax.ShapeDtypeStruct((256,), jnp.float32)).compile()
    return "xla_cpu_small_call" in (program.as_text() or "")
