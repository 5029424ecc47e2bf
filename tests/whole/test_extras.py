"""What `pip install .` brings is enough to import, infer, learn and plot; what needs more says which extra."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import girsanov as gv
from girsanov._core.extras import EXTRAS
from girsanov.evaluation import sweep

SOURCE = Path(gv.__file__).resolve().parents[1]
PROJECT = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PATIENCE = 300.0  # seconds until a test gives up waiting, on a machine that has much else to do

# A module that is None in sys.modules cannot be imported, and looks as if it was not installed.
WITHOUT = """
import json, sys
sys.modules.update((name, None) for name in json.loads(sys.argv.pop(1)) if name not in sys.modules)
"""

USE = """
import matplotlib
matplotlib.use("Agg")

import jax
import girsanov as gv
from girsanov import baselines, evaluation

with open("data.csv", "w") as file:
    file.write("t,y\\n0,0.9\\n0.5,1.1\\n1,0.8\\n1.5,1.2\\n")
series = gv.TimeSeries.from_csv("data.csv", time="t", values="y")
model = gv.Model(gv.OrnsteinUhlenbeck(1.0))
post = gv.infer(model, series, dt=0.5)
fit = gv.learn(model, series, dt=0.5, trainable="drift", max_iterations=2)
post.plot().savefig("posterior.png")
fit.plot().savefig("fit.png")
post.save("run.gv")
assert post.converged and gv.load("run.gv").elbo == post.elbo
post.diagnose(key=jax.random.key(0), n=100)

tasks = [evaluation.Task("t", "builtins:dict", {"a": 1})]
assert [r.status for r in evaluation.sweep(tasks, "sweep", jobs=1)] == ["done"]

def command():
    import girsanov.cli

for call in [
    post.to_xarray,
    lambda: gv.infer(model, series, dt=0.5, method=gv.VDP(solver="adaptive")),
    lambda: baselines.neural_sde(model, series, dt=0.5, key=jax.random.key(0)),
    lambda: evaluation.sweep(tasks, "other"),
    lambda: evaluation.sweep(tasks, "other", jobs=2),
    lambda: evaluation.sweep(tasks, "other", workers=2),
    lambda: evaluation.sweep(tasks, "other", scheduler="tcp://127.0.0.1:1"),
    command,
]:
    try:
        call()
    except ImportError as error:
        print(error)
    else:
        print("nothing was missing")
"""

SAID = """
post.to_xarray() needs xarray: pip install "girsanov[xarray]"
VDP(solver="adaptive") needs diffrax: pip install "girsanov[diffrax]"
baselines.neural_sde needs diffrax: pip install "girsanov[diffrax]"
sweep with jobs other than 1 needs joblib: pip install "girsanov[parallel]"
sweep with jobs other than 1 needs joblib: pip install "girsanov[parallel]"
sweep(workers=...) needs distributed: pip install "girsanov[parallel]"
sweep(scheduler=...) needs distributed: pip install "girsanov[parallel]"
the command `girsanov` needs typer: pip install "girsanov[cli]"
"""

# As the installed script does it, whose name tells the library that this process is the command.
COMMAND = """
sys.argv[0] = sys.orig_argv[2] = "girsanov"
from girsanov.cli import main
main()
"""


def brought_by(requirements: list[str]) -> set[str]:
    """Names of the distributions that pip installs for them, with all that they need in turn."""
    left, found = [Requirement(r) for r in requirements], set()
    while left:
        requirement = left.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in found or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(key)
        for text in importlib.metadata.requires(requirement.name) or []:
            need = Requirement(text)
            if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in ("", *requirement.extras)):
                need.marker = None
                left.append(need)
    return {name for name, _ in found}


@pytest.fixture(scope="module")
def others() -> list[str]:
    """Modules of this environment that `pip install .` without extras would not have brought."""
    kept = brought_by(PROJECT["dependencies"]) | {"girsanov"}
    homes = importlib.metadata.packages_distributions()
    modules = sorted(m for m, names in homes.items() if not {canonicalize_name(n) for n in names} & kept)
    assert set(EXTRAS) <= set(modules), "a required package brings one that is an extra"
    return [m for m in modules if m != "sphinx"]  # SciPy takes its name in sys.modules, be it None, for the package


def run(script: str, others: list[str], folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + script, json.dumps(others), *arguments],
        env=os.environ | {"PYTHONPATH": str(SOURCE)}, cwd=folder, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip


def test_without_extras_the_library_works_and_says_what_to_install(others, tmp_path):
    done = run(USE, others, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == SAID.strip().splitlines()
    assert not (tmp_path / "other").exists()


def test_an_import_loads_no_package_that_only_some_calls_need():
    """They take longer to import than the library itself: SciPy's statistics alone took twice as long."""
    seldom = ["arviz_stats", "matplotlib", "numpyro", "optax", "pandas", "scipy", *EXTRAS]
    script = "import girsanov, json, sys; print(json.dumps(sorted(set(json.loads(sys.argv[1])) & set(sys.modules))))"
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(seldom)],
        env=os.environ | {"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_without_extras_the_command_is_one_line_and_exit_code_2(others, tmp_path):
    done = run(COMMAND, others, tmp_path, "demo")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'error: the command `girsanov` needs typer: pip install "girsanov[cli]"\n'


def test_a_command_that_needs_another_extra_is_one_line_and_exit_code_2(monkeypatch, tmp_path, capsys):
    from girsanov.cli import main

    monkeypatch.setitem(sys.modules, "joblib", None)
    monkeypatch.setattr("girsanov.paper.reproduce.reproduce", lambda what, out, *_, **options: sweep([], out))
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "table1", "--out", str(tmp_path)])
    assert end.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said == 'error: sweep with jobs other than 1 needs joblib: pip install "girsanov[parallel]"'


def extras_of(name: str) -> dict[str, set[str]]:
    """The packages of an extra, by the extra that names them, those of extras that it takes in included."""
    found: dict[str, set[str]] = {}
    for text in PROJECT["optional-dependencies"][name]:
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:
            for extra in requirement.extras:
                for inner, packages in extras_of(extra).items():
                    found.setdefault(inner, set()).update(packages)
        else:
            found.setdefault(name, set()).add(requirement.name)
    return found


def test_messages_name_the_extra_that_brings_the_package():
    wanted = {(package, extra) for extra, packages in extras_of("all").items() for package in packages}
    assert set(EXTRAS.items()) == wanted
    assert {k: v for k, v in extras_of("dev").items() if k not in ("dev", "docs")} == extras_of("all")
    assert extras_of("baselines") == extras_of("diffrax") and extras_of("cluster") == extras_of("parallel")


def test_the_readme_has_every_extra():
    text = (SOURCE.parent / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", text, re.MULTILINE)))
    assert sorted(rows) == sorted(set(PROJECT["optional-dependencies"]) - {"dev"})
