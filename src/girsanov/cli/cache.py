"""Compiled programs are kept between runs, in the folder of the user for such files."""

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

_DAYS = 60.0  # a program that was not used for so long is removed
_OFF = ("off", "0", "no")


def cache_folder() -> Path | None:
    """Return the folder for compiled programs, or None where the user has switched it off.

    GIRSANOV_CACHE names another one, or is "off".
    """
    from girsanov._core.versions import versions

    said = os.environ.get("GIRSANOV_CACHE", "")
    if said.lower() in _OFF:
        return None
    if said:
        return Path(said)
    home = Path.home()
    if sys.platform == "darwin":
        base = home / "Library" / "Caches"
    elif os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    known = versions()
    return base / "girsanov" / f"jax-{known['jax']}-python-{known['python']}"


def keep_programs() -> Path | None:
    """Let JAX keep compiled programs in the folder of the user, and return it.

    Nothing is done, and None returned, where a folder is set in JAX already, the user has switched it off, or it cannot
    be written.
    """
    import jax

    if jax.config.jax_compilation_cache_dir is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return None
    try:
        folder = cache_folder()
        if folder is None:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        os.rmdir(tempfile.mkdtemp(dir=folder))
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    _remove_old(folder)
    return folder


def _remove_old(folder: Path) -> None:
    """Remove the programs that were not used for long."""
    before = time.time() - _DAYS * 86400.0
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            with contextlib.suppress(OSError):
                stat = entry.stat()
                if entry.is_file() and max(stat.st_atime, stat.st_mtime) < before:
                    os.unlink(entry.path)
