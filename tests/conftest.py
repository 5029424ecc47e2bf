"""Set-up for every test: checked shapes, reproducible properties, the authors' data.

Float64 is not switched on here: answers must be float64 in a program that sets nothing.
"""

import os
from pathlib import Path

import jaxtyping
import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

# From here on every import of the package checks the shapes and types in its annotations at run time.
install_import_hook("girsanov", "beartype.beartype")

settings.register_profile("girsanov", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("girsanov")

ROOT = Path(__file__).resolve().parents[1]


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
