"""Python's garbage collector, kept from running where it would take long and find nothing."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector from running by itself within the `with` block.

    JAX makes very many objects while it traces and lowers a program, and so does an import that defines many classes.
    This starts full collections. Each takes .05 s, because JAX's own objects are so many, and finds next to nothing.
    """
    enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if enabled:
            gc.enable()
