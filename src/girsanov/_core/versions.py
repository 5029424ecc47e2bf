"""What a result was made with."""

import platform
from importlib.metadata import version


def versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version(name) for name in ("girsanov", "jax", "numpy")}
