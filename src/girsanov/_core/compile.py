"""How the library compiles: one place for the options of the compiler.

XLA makes one function of a loop only where its body touches less than 1 kB; a larger body is dispatched operation by
operation, ten times slower for blocks of a few states. The limit can be set in the environment alone, before JAX runs
its first operation: importing the library does so, unless the variable already says something about it.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from girsanov._core.precision import own

_SMALL_LOOP = "xla_cpu_small_while_loop_byte_threshold"
_SMALL_LOOP_BYTES = 98_304  # far below what a second core or a matrix library would be of use for

if _SMALL_LOOP not in os.environ.get("XLA_FLAGS", ""):
    _ours = f"--xla_backend_extra_options={_SMALL_LOOP}={_SMALL_LOOP_BYTES}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_ours}".lstrip()

# XLA's newer fusion emitters take half as long again to compile our programs and run them no faster. The option
# belongs to the releases named here; a later one gets the compiler's own choice.
_KNOWN = jax.__version_info__ < (0, 11)
OPTIONS: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False} if _KNOWN else {}


def compiled(fn: Callable) -> Callable:
    """`eqx.filter_jit` with these options: arrays are traced, everything else is part of the program.

    The program sees array objects of its own, so that it shares none with programs of the user.
    """
    program = eqx.filter_jit(fn, compiler_options=OPTIONS)  # pyright: ignore[reportCallIssue]

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = own((args, kwargs))
        return program(*args, **kwargs)

    return run


@functools.cache
def small_loops_are_functions() -> bool:
    """Whether XLA makes one function of a loop with a body of some kB: compiles one and looks.

    It does not where JAX was used before this library was imported.
    """

    def body(x, _):
        return x[::-1] + jnp.tanh(x), None

    loop = jax.jit(lambda x: jax.lax.scan(body, x, None, length=9)[0])
    program = loop.lower(jax.ShapeDtypeStruct((256,), jnp.float32)).compile()
    return "xla_cpu_small_call" in (program.as_text() or "")
