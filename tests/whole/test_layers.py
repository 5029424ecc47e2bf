"""Imports go downwards only, wherever they stand in a module, and modules of one room do not import in a circle."""

import ast
import graphlib
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
    ("likelihoods",),
    ("girsanov",),
    ("evaluation",),
    ("cli",),
    ("paper",),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}


def module_name(path: Path, root: Path) -> str:
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def imports(source: str, modules: set[str]) -> set[str]:
    """Every module of the package that a source imports, at its top or inside a function, types excepted."""
    tree = ast.parse(source)
    for node in ast.walk(tree):  # what only a type checker imports is no import
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else node.module for name in inside}
    return found & modules


def import_graph(root: Path) -> dict[str, set[str]]:
    sources = {module_name(p, root): p.read_text() for p in root.rglob("*.py")}
    return {name: imports(text, set(sources)) - {name} for name, text in sources.items()}


def crossings(graph: dict[str, set[str]]) -> list[str]:
    """Imports that go up, or across to another room of the same layer."""
    out = []
    for module, targets in graph.items():
        for target in targets:
            here, there = room(module), room(target)
            if here != there and LEVEL[there] >= LEVEL[here]:
                out.append(f"{module} imports {target}")
    return sorted(out)


@pytest.fixture(scope="module")
def graph():
    return import_graph(ROOT)


def test_every_room_has_its_layer(graph):
    assert {room(module) for module in graph} == set(LEVEL)


def test_imports_go_downwards(graph):
    assert crossings(graph) == []


def test_no_circle_of_modules(graph):
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


@pytest.mark.parametrize(
    ("module", "line", "target"),
    [
        ("chain", "from girsanov.model.drifts import Drift", "girsanov.model.drifts"),
        ("chain", "def f():\n    import girsanov.data.grid", "girsanov.data.grid"),
        ("model", "from girsanov.chain import blocks", None),
    ],
    ids=["upwards", "across, inside a function", "downwards"],
)
def test_a_layer_that_is_crossed_is_found(tmp_path, module, line, target):
    root = tmp_path / "girsanov"
    for name in ("chain/blocks.py", "data/grid.py", "model/drifts.py"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (root / module / "extra.py").write_text(line + "\n")
    assert crossings(import_graph(root)) == ([f"girsanov.{module}.extra imports {target}"] if target else [])
