"""Versions of Python and of the packages that a result was computed with."""

import platform
from importlib.metadata import version


def versions() -> dict[str, str]:
    """Return the versions of Python, girsanov, jax and numpy."""
    return {"python": platform.python_version()} | {name: version(name) for name in ("girsanov", "jax", "numpy")}
