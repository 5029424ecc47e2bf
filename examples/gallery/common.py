"""What the scripts of the gallery share: where the data are, where figures go, and how results are printed."""

import argparse
import textwrap
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import pandas as pd

import girsanov as gv

HERE = Path(__file__).parent


def output_folder() -> Path:
    """Read the only option of the scripts, the folder for figures, and make it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("out/gallery"), help="folder for the figures")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    plt.switch_backend("Agg")  # figures go into files; no window is opened
    return folder


def table(name: str) -> pd.DataFrame:
    """Read one of the small tables in the folder `data`."""
    return pd.read_csv(HERE / "data" / f"{name}.csv")


def beside(independent: str, rows: dict[str, tuple[Any, Any]]) -> None:
    """Print our numbers beside those of an independent calculation or publication."""
    width = max(map(len, rows))
    print(f"{'':{width}}  {'Girsanov':>12}  {independent}")
    for name, numbers in rows.items():
        ours, theirs = (f"{x:.5g}" if isinstance(x, float) else str(x) for x in numbers)
        print(f"{name:{width}}  {ours:>12}  {theirs:>{len(independent)}}")


def verdict(post: gv.Posterior, n: int = 2000) -> None:
    """Print how the run ended, and whether the posterior can be trusted."""
    found = post.diagnose(key=jax.random.key(0), n=n)
    print(textwrap.fill(f"{post.status}; {found.verdict}: {found.message}", 100))


def keep(figure: Any, folder: Path, name: str) -> None:
    """Save a figure and say where."""
    path = folder / f"{name}.png"
    figure.savefig(path, dpi=110, bbox_inches="tight")
    print(f"figure: {path.name}")
