"""What a result was made with."""

import platform
from importlib.metadata import version


def versions() -> dict[str, str]:
    from girsanov import __version__

    return {"python": platform.python_version(), "girsanov": __version__} | {k: version(k) for k in ("jax", "numpy")}
