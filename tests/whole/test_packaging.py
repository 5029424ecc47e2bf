"""What is published: wheel and sdist install and have all they should, types reach a user, the import is fast."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import girsanov as gv

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("user_program.py")
PATIENCE = 600.0  # seconds until a test gives up waiting, on a machine that has much else to do
IMPORT = 0.4  # seconds that `import girsanov` may take beyond JAX's own import

# Processor time, which another process that is busy does not lengthen as it does the time of the wall.
CLOCK = """
import time, jax
begun = time.process_time()
import girsanov
print(time.process_time() - begun)
"""

USE = """
import girsanov as gv
print(gv.infer(gv.Model(gv.Sine(1.0)), gv.TimeSeries([0.0, 1.0, 2.0], [0.1, 0.3, 0.2]), dt=0.5).status)
"""


def run(*command: object, **options) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=PATIENCE, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from what is in it, as an index would have them."""
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (sdist,) = folder.glob("girsanov-*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=source)
    (wheel,) = folder.glob("girsanov-*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def python(built, tmp_path_factory) -> Path:
    """Python of a new environment with the wheel, which sees the packages of this one but not its girsanov."""
    folder = tmp_path_factory.mktemp("environment") / "env"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", built[1])
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # A path file inside the folder that this one names, as of an editable install, is not read.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.mark.slow
def test_the_sdist_has_what_it_takes_to_build_test_and_document(built):
    with tarfile.open(built[0]) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    tracked = run("git", "ls-files", cwd=ROOT).split() if (ROOT / ".git").exists() else []
    wanted = {n for n in tracked if n.split("/")[0] not in (".ci", ".gitignore")}
    assert wanted <= names, sorted(wanted - names)
    assert {"pyproject.toml", "PKG-INFO", "CITATION.cff", "examples/gallery/nile.py", "docs/quickstart.md"} <= names


@pytest.mark.slow
def test_the_wheel_has_every_module_and_file_of_the_source_and_nothing_else(built):
    packed = {n for n in zipfile.ZipFile(built[1]).namelist() if ".dist-info/" not in n}
    source = ROOT / "src"
    assert packed == {
        p.relative_to(source).as_posix()
        for p in (source / "girsanov").rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }


@pytest.mark.slow
def test_the_installed_package_works_and_brings_the_command_and_the_extras(python, tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    where = run(python, "-c", "import girsanov; print(girsanov.__file__)", cwd=tmp_path, env=env).strip()
    assert Path(where).is_relative_to(python.parents[1])
    assert run(python, "-c", USE, cwd=tmp_path, env=env).split() == ["converged"]
    assert "infer" in run(python.with_name("girsanov"), "--help", cwd=tmp_path, env=env)
    extras = run(
        python, "-c", "import importlib.metadata as m; print(*m.metadata('girsanov').get_all('Provides-Extra'))"
    )
    assert {"paper", "baselines", "cluster", "all", "cli", "docs"} <= set(extras.split())


@pytest.mark.slow
def test_types_reach_a_user(python, tmp_path):
    """In strict mode nothing of ours is unknown; and of an installed package a checker sees what is declared only."""
    (tmp_path / "program.py").write_text(PROGRAM.read_text(encoding="utf-8"), encoding="utf-8")
    names = "".join(f"gv.{name}\n" for name in gv.__all__ if name not in ("baselines", "diffusions", "likelihoods"))
    for part in ("likelihoods", "diffusions", "baselines"):
        names += "".join(f"gv.{part}.{name}\n" for name in getattr(gv, part).__all__)
    (tmp_path / "names.py").write_text("import girsanov as gv\n" + "print(\n" + names.replace("\n", ",\n") + ")\n")
    (tmp_path / "wrong.py").write_text(
        "import girsanov as gv\n\nx: int = gv.learn\ngv.TimeSeries(times=1.0, value=2.0)\n"
    )
    settings = {
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "venvPath": str(python.parents[2]),
        "venv": "env",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "-p", str(tmp_path)],
        capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path,
        env=os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
    )  # fmt: skip
    found = json.loads(done.stdout[done.stdout.index("{") :])["generalDiagnostics"]
    said = [f"{Path(d['file']).name}:{d['range']['start']['line'] + 1} {d['message']}" for d in found]
    assert [s for s in said if not s.startswith("wrong.py")] == []
    assert {s.split()[0] for s in said} == {"wrong.py:3", "wrong.py:4"}  # the check is at work


@pytest.mark.slow
def test_the_import_takes_little_beyond_that_of_jax(tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env |= {"PYTHONPATH": str(ROOT / "src"), "PYTHONPYCACHEPREFIX": str(tmp_path)}  # compiled once, as by pip
    seconds = [float(run(sys.executable, "-c", CLOCK, env=env)) for _ in range(7)][1:]
    assert min(seconds) <= IMPORT, seconds


def test_the_citation_is_that_of_the_readme_and_the_version_is_one():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert cited["version"] == project["version"] == gv.__version__
    assert cited["license"] == project["license"]
    bib = dict(re.findall(r"^  (\w+) *= \{(.*)\}", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    paper = cited["preferred-citation"]
    assert paper["title"] == re.sub(r"[{}]", "", bib["title"]) and str(paper["year"]) == bib["year"]
    names = [f"{a['family-names']}, {a['given-names']}" for a in paper["authors"]]
    assert " and ".join(names) == bib["author"]
    assert paper["collection-title"] == bib["booktitle"]


def test_this_is_the_version_that_is_installed():
    assert importlib.metadata.version("girsanov") == gv.__version__
