"""Imports go downwards only, wherever they stand in a module, and modules of one room do not import in a circle.

Packages that are extras, and matplotlib, are imported in their places only.
"""

import ast
import graphlib
import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import girsanov

ROOT = Path(girsanov.__file__).parent
# From the bottom up. Rooms of one layer do not import each other; "girsanov" is the package itself, with what it
# exports. CONTRIBUTING.md draws the same.
LAYERS = (
    ("_core",),
    ("chain", "data", "plotting", "report"),
    ("model",),
    ("baselines",),
    ("inference",),
    ("result",),
    ("learning",),
    ("diffusions", "likelihoods"),
    ("girsanov",),
    ("evaluation", "page"),
    ("cli",),
    ("paper",),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}

# Where these packages may be imported, by module or room: at the top of a module, and inside its functions. All but
# matplotlib are extras, without which `import girsanov` has to work; lineax comes with diffrax.
_COMMANDS = ("girsanov.cli", "girsanov.paper.command")
AT_TOP = {"typer": _COMMANDS, "rich": _COMMANDS, "matplotlib": ("girsanov.plotting",)}
INSIDE = {
    "matplotlib": ("girsanov.paper.figures",),
    "plotly": ("girsanov.page.parts",),
    "latex2mathml": ("girsanov.page.mathml",),
    "xarray": ("girsanov.result.xarrays", "girsanov.learning.datatree"),
    "diffrax": ("girsanov.inference.schemes", "girsanov.baselines.neural_sde"),
    "lineax": ("girsanov.baselines.neural_sde",),
    "openpyxl": ("girsanov.data.spreadsheet",),
    "pyarrow": ("girsanov.data.spreadsheet",),
    "joblib": ("girsanov.evaluation.executors",),
    "distributed": ("girsanov.evaluation.executors",),
}


def module_name(path: Path, root: Path) -> str:
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def parse(source: str) -> ast.Module:
    """Without what only a type checker imports, which is no import."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    return tree


def imports(source: str, modules: set[str], package: str) -> set[str]:
    """Every module of the package that a source imports, at its top or inside a function, types excepted.

    `package` is where relative imports start. A call of `import_module` counts if it has the name as a text.
    """
    found = set()
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            inside = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else base for name in inside}
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            found |= {node.args[0].value} if called in ("import_module", "__import__") else set()
    return found & modules


def import_graph(root: Path) -> dict[str, set[str]]:
    paths = {module_name(p, root): p for p in root.rglob("*.py")}

    def found(name: str, path: Path) -> set[str]:
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        return imports(path.read_text(), set(paths), package) - {name}

    return {name: found(name, path) for name, path in paths.items()}


def crossings(graph: dict[str, set[str]]) -> list[str]:
    """Imports that go up, or across to another room of the same layer."""
    out = []
    for module, targets in graph.items():
        for target in targets:
            here, there = room(module), room(target)
            if here != there and LEVEL[there] >= LEVEL[here]:
                out.append(f"{module} imports {target}")
    return sorted(out)


def outside(source: str) -> set[tuple[str, bool]]:
    """Packages of others that a source imports, and whether it does so on being imported itself."""
    own = sys.stdlib_module_names | {"girsanov"}

    def walk(node: ast.AST, at_top: bool) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], at_top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0], at_top
        later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, at_top and not later)

    return {(package, at_top) for package, at_top in walk(parse(source), True) if package not in own}


def misplaced(root: Path) -> list[str]:
    """Imports of packages that have their places, elsewhere than there."""
    out = []
    for path in root.rglob("*.py"):
        module = module_name(path, root)
        for package, at_top in outside(path.read_text()):
            if package not in AT_TOP | INSIDE:
                continue
            places = AT_TOP.get(package, ()) + (() if at_top else INSIDE.get(package, ()))
            if not any(module == place or module.startswith(f"{place}.") for place in places):
                out.append(f"{module} imports {package}" + (" at its top" if at_top else ""))
    return sorted(out)


@pytest.fixture(scope="module")
def graph():
    return import_graph(ROOT)


def test_every_room_has_its_layer(graph):
    assert {room(module) for module in graph} == set(LEVEL)


def test_imports_go_downwards(graph):
    assert crossings(graph) == []


def no_circle(graph):
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_no_circle_of_modules(graph):
    no_circle(graph)


def test_a_circle_of_modules_is_found(tmp_path):
    root = tmp_path / "girsanov" / "chain"
    root.mkdir(parents=True)
    (root / "one.py").write_text("from girsanov.chain import two\n")
    (root / "two.py").write_text("def f():\n    from girsanov.chain.one import g\n")
    with pytest.raises(graphlib.CycleError):
        no_circle(import_graph(tmp_path / "girsanov"))


@pytest.mark.parametrize(
    ("module", "line", "target"),
    [
        ("chain", "from girsanov.model.drifts import Drift", "girsanov.model.drifts"),
        ("chain", "def f():\n    import girsanov.data.grid", "girsanov.data.grid"),
        ("chain", "from ..model.drifts import Drift", "girsanov.model.drifts"),
        ("chain", "from .. import data\nfrom ..data import grid", "girsanov.data.grid"),
        ("chain", "def f():\n    return importlib.import_module('girsanov.data.grid')", "girsanov.data.grid"),
        ("model", "from girsanov.chain import blocks", None),
        ("model", "from . import drifts\nfrom ..chain.blocks import inverse", None),
    ],
    ids=[
        "upwards",
        "across, inside a function",
        "upwards, relative",
        "across, relative",
        "across, by name",
        "downwards",
        "downwards, relative",
    ],
)
def test_a_layer_that_is_crossed_is_found(tmp_path, module, line, target):
    root = tmp_path / "girsanov"
    for name in ("chain/blocks.py", "data/grid.py", "model/drifts.py"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (root / module / "extra.py").write_text(line + "\n")
    assert crossings(import_graph(root)) == ([f"girsanov.{module}.extra imports {target}"] if target else [])


def test_packages_are_imported_in_their_places():
    assert misplaced(ROOT) == []


def test_packages_that_are_imported_are_dependencies():
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *(r for name in extras if name not in ("dev", "docs") for r in extras[name])]
    packages = {re.match(r"[\w-]+", text)[0].replace("-", "_") for text in named} - {project["name"]}
    imported = {package for path in ROOT.rglob("*.py") for package, _ in outside(path.read_text())}
    assert imported == packages | {"lineax"}


@pytest.mark.parametrize(
    ("module", "line", "found"),
    [
        ("result/posterior", "import xarray as xr", ["girsanov.result.posterior imports xarray at its top"]),
        ("result/xarrays", "class P:\n    def f(self):\n        import xarray", []),
        ("result/posterior", "class P:\n    import xarray", ["girsanov.result.posterior imports xarray at its top"]),
        ("model/drifts", "def f():\n    from diffrax import Euler", ["girsanov.model.drifts imports diffrax"]),
        ("cli/extra", "from rich.table import Table", []),
        ("model/estimate", "import matplotlib.pyplot", ["girsanov.model.estimate imports matplotlib at its top"]),
        ("plotting", "import matplotlib.pyplot", []),
    ],
)
def test_a_package_out_of_its_place_is_found(tmp_path, module, line, found):
    path = tmp_path / "girsanov" / f"{module}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line + "\n")
    assert misplaced(tmp_path / "girsanov") == found


# A factor or an inverse of Q, or of its root, whether Q is read from its owner there or before.
_FACTORED = (
    r"\b(cholesky|p?inv|inverse|slogdet|eigh|eigvalsh|solve|solve_triangular)"
    r"\(((jn|n)p\.asarray\()?[\w.]*\b(diffusion|Q|noise\.root|step_roots?)\b"
)
# Who may read what one type owns: the owner, the model that offers it to users, and files and commands that pass it on.
OWNED = {
    r"\.emission\b": (
        "model/observation.py",
        "model/driven.py",  # an observation model of its own, which hands on the one inside it
        "model/model.py",
        "result/saving.py",
        "result/loading.py",
        "cli/",
    ),
    _FACTORED: ("model/diffusions/",),
    r"\.likelihood\.(log_prob|expected|start|sample|predictive|log_predictives?)\b": ("model/observation.py",),
}


def trespassers(pattern: str, allowed: tuple[str, ...], root: Path = ROOT) -> list[str]:
    found = {p.relative_to(root).as_posix(): p.read_text() for p in root.rglob("*.py")}
    return [name for name, text in found.items() if re.search(pattern, text) and not name.startswith(allowed)]


@pytest.mark.parametrize("pattern", OWNED)
def test_emission_likelihood_and_spectral_density_have_one_owner(pattern):
    assert trespassers(pattern, OWNED[pattern]) == []
    assert trespassers(pattern, ()) != []  # the owner itself: the pattern does find such lines


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("Q_inv = inverse(Q)[0]", True),
        ("jnp.linalg.inv(model.noise.root)", True),
        ("np.linalg.inv(step_root)", True),
        ("np.linalg.cholesky(np.asarray(problem.model.noise.Q))", True),
        ("jnp.linalg.slogdet(model.diffusion)", True),
        ("inverse(Q_inv - 2.0 * gaps * Psi)", False),
        ("np.linalg.inv(root)", False),
    ],
)
def test_a_factor_of_the_spectral_density_is_found(tmp_path, line, found):
    (tmp_path / "extra.py").write_text(line + "\n")
    assert trespassers(_FACTORED, (), tmp_path) == (["extra.py"] if found else [])


# Words of the tree in CONTRIBUTING.md that are no modules.
PROSE = {
    "Gaussian", "Markov", "SDEs", "a", "and", "beside", "bound", "chain", "chains", "checks", "constant",
    "constraints", "driver", "errors", "for", "in", "is", "its", "linear", "models", "noise", "of", "one", "prepare",
    "settings", "solve", "standard", "starts", "states", "the", "their", "them", "where", "with",
}  # fmt: skip


def test_the_tree_of_contributing_is_the_tree():
    drawn = (ROOT.parents[1] / "CONTRIBUTING.md").read_text().split("```")[3]
    lines: dict[str, str] = {}
    for line in drawn.strip().splitlines():
        name = line.split()[0] if line[0] != " " else list(lines)[-1]
        lines[name] = lines.get(name, "") + line
    rooms = {p.name for p in ROOT.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert set(lines) == rooms | {"girsanov", "plotting", "report"}
    for name in ("learning", "result", "inference", "model", "chain", "data", "_core"):
        listed = set(re.findall(r"\w+", lines[name])) - {name}
        inside = (p for p in (ROOT / name).iterdir() if p.suffix == ".py" or (p / "__init__.py").exists())
        modules = {p.stem for p in inside} - {"__init__"}
        missing, stale = modules - listed - {name}, listed - modules - PROSE
        assert not missing, f"CONTRIBUTING.md does not list {missing} in {name}"
        assert not stale, f"CONTRIBUTING.md lists {stale} in {name}, which are no modules: remove them, or add to PROSE"


@pytest.mark.slow
def test_the_wheel_has_the_settings_of_the_experiments_and_the_mark_of_types(tmp_path):
    pytest.importorskip("hatchling", reason="the package is built by hatchling, which is not installed")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT.parents[1]]
    subprocess.run([str(a) for a in build], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("girsanov-*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    configs = {f"girsanov/paper/configs/{p.name}" for p in (ROOT / "paper" / "configs").glob("*.toml")}
    assert configs and configs | {"girsanov/py.typed"} <= packed


@pytest.mark.parametrize("name", sorted(p.stem for p in (ROOT.parents[1] / "benchmarks").glob("*.py")))
def test_benchmarks_can_be_imported(name):
    """They use what is inside the library, and nothing else runs them between two measurements."""
    importlib.import_module(f"benchmarks.{name}")
