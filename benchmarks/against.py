"""The benchmarks of an earlier revision and of the working tree, in turn on one machine, and their ratios.

    python -m benchmarks.against REVISION [--only a b c e] [--rounds 3] [--data DIR]

The earlier revision is checked out to a temporary folder, and runs its own benchmarks with its own library. The two
take turns, and the shortest time of every figure counts, so that a busy spell of the machine hits both. Figures that
only one of them has are left out, and so are ratios and counts, which need no comparison of times.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

_ROOT = Path(__file__).resolve().parents[1]
_TIMES = ("s", "ms")
Name = tuple[str, str, str]  # scenario, figure, unit


def run_once(root: Path, only: list[str], data: list[str], out: Path) -> dict[Name, float]:
    """Run the benchmarks of one checkout and return its times."""
    paths = {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    command = [sys.executable, "-m", "benchmarks.run", "--only", *only, *data, "--out", str(out)]
    subprocess.run(
        command, cwd=root, env=os.environ | paths, stdout=subprocess.DEVNULL, check=False
    )  # 1: target missed
    figures = json.loads(out.read_text())
    return {(f["scenario"], f["name"], f["unit"]): f["value"] for f in figures if f["unit"] in _TIMES}


def compare(revision: str, only: list[str], rounds: int, data: list[str]) -> list[tuple[Name, float, float]]:
    """Return every figure that both have, with the shortest time before and after."""
    shortest: list[dict[Name, float]] = [{}, {}]
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        git = ["git", "-C", str(_ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(before), revision], check=True)
        try:
            for _ in range(rounds):
                for best, root in zip(shortest, (before, _ROOT), strict=True):
                    for name, value in run_once(root, only, data, Path(folder) / "figures.json").items():
                        best[name] = min(value, best.get(name, value))
        finally:
            subprocess.run([*git, "remove", "--force", str(before)], check=True)
    return [(name, shortest[0][name], after) for name, after in shortest[1].items() if name in shortest[0]]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="what git knows it by: a hash, a tag, a branch")
    parser.add_argument("--only", nargs="+", default=["a", "b", "c", "e"], metavar="a..f", help="scenarios to run")
    parser.add_argument("--rounds", type=int, default=3, help="how often each of the two runs (default: 3)")
    parser.add_argument("--data", metavar="DIR", help="the authors' data sets")
    options = parser.parse_args(argv)
    data = [] if options.data is None else ["--data", str(Path(options.data).resolve())]
    table = Table(title=f"{options.revision} and the working tree, shortest of {options.rounds}", title_justify="left")
    table.add_column("figure", overflow="fold")
    for name in ("before", "after", "after / before"):
        table.add_column(name, justify="right", no_wrap=True)
    for (scenario, name, unit), before, after in compare(options.revision, options.only, options.rounds, data):
        table.add_row(f"({scenario}) {name}", f"{before:.4g} {unit}", f"{after:.4g} {unit}", f"{after / before:.2f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
