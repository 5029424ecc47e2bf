"""Set-up for every test: checked shapes, reproducible properties, the authors' data.

Float64 is not switched on here: answers must be float64 in a program that sets nothing.
"""

import gc
import os
import signal
from pathlib import Path

# Most of the time goes into compilation. A program that one worker has made is read by the others, by what tests start
# in processes of their own, and by the next run. JAX reads this when it is imported.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "programs")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

import jax
import jaxtyping
import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

# From here on every import of the package checks the shapes and types in its annotations at run time.
install_import_hook("girsanov", "beartype.beartype")

settings.register_profile("girsanov", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("girsanov")

ROOT = Path(__file__).resolve().parents[1]
MANY_MAPS = 40_000
LONGEST = ("test_docs.py", "test_site.py", "test_vdp.py", "test_particles.py", "test_learning.py")


def pytest_collection_modifyitems(items):
    """The modules that take longest first, so that two workers end at about the same time."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def pytest_runtest_teardown(item, nextitem):
    """Free the compiled programs of a module when it ends, and earlier where there are very many.

    A program has some hundred memory maps, of which Linux allows a process 65 530; beyond them the compiler crashes.
    """
    if nextitem is None or nextitem.path != item.path or _memory_maps() > MANY_MAPS:
        jax.clear_caches()
        gc.collect()


def _memory_maps() -> int:
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:  # not Linux
        return 0


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder with the data of the paper's experiments: GIRSANOV_DATA, else ../shared/data beside the repository."""
    path = Path(os.environ.get("GIRSANOV_DATA") or ROOT.parent / "shared" / "data").expanduser()
    if not path.is_dir():
        pytest.skip(f"the authors' data are not in {path}; set GIRSANOV_DATA to their folder")
    return path


@pytest.fixture
def as_a_user():
    """Without the run-time checks of annotations that other tests switch on: a user has none, only our messages."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def ctrl_c():
    """Ctrl-C raises a KeyboardInterrupt, also in a process that a shell has started in the background to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
