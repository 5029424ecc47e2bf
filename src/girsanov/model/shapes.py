"""The shape of what a function of the user's returns, found without evaluating it."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from girsanov._core.precision import own


def output_of(fn: Callable, name: str, d: int) -> Any:
    """Return shape and type of fn(x, t) for a state of shape (d,), or what it returns if that is no array.

    It is a ValueError, which calls the function `name`, if the function fails or returns other than real floating-point
    numbers.
    """
    x, t = jax.ShapeDtypeStruct((d,), np.float64), jax.ShapeDtypeStruct((), np.float64)
    try:
        out = eqx.filter_eval_shape(own(fn), x, t)
    except Exception as error:
        raise ValueError(
            f"the {name} failed on a state of shape ({d},) and a scalar time: {type(error).__name__}: {error}. "
            f"It is called as {name}(x, t) with JAX arrays; use jax.numpy inside, give dim= if d is not what you mean, "
            "and mark numbers that are not parameters, such as sizes, with equinox.field(static=True)"
        ) from error
    if not hasattr(out, "shape"):
        return out
    if not jnp.issubdtype(out.dtype, jnp.floating):  # with whole numbers later results would be rounded
        remedy = (
            "take jnp.real(...) of it, or make the real and the imaginary part two coordinates"
            if jnp.issubdtype(out.dtype, jnp.complexfloating)
            else "multiply it by 1.0"
        )
        raise ValueError(f"the {name} must return real floating-point numbers, got {out.dtype}; {remedy}")
    return out
