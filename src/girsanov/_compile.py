"""How the library compiles: one place for the options of the compiler."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

# XLA's newer fusion emitters take half as long again to compile our programs and run them no faster. The option
# belongs to the releases named here; a later one gets the compiler's own choice.
_KNOWN = jax.__version_info__ < (0, 11)
OPTIONS: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False} if _KNOWN else {}


def compiled(fn: Callable) -> Callable:
    """`eqx.filter_jit` with these options: arrays are traced, everything else is part of the program."""
    return eqx.filter_jit(fn, compiler_options=OPTIONS)  # pyright: ignore[reportCallIssue]
