"""Differential tests: random models against oracles that share no code with the library.

python -m fuzz [--cases 2000] [--seed 7] [--family linear ...] [--jobs 2] [--out out/fuzz]

Prints a table of outcomes and writes every failure as a script that runs by itself. The exit code is 1 when anything
is wrong. A case depends on its seed, family and number alone.
"""

import os
from pathlib import Path

# Most of the time of a first run goes into compilation: programs are kept for the next one, and shared by the
# processes. JAX reads this when it is imported.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(".pytest_cache/programs").resolve()))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

import argparse
import json
import math
import sys
from typing import Any

from fuzz.cases import Outcome
from fuzz.execute import execute
from fuzz.tables import show

# Cases of every family for one of --cases, where no family is named. Verdicts have a `run` for all of them at once.
SHARES = {"linear": 1.0, "scalar": 0.1, "scores": 0.1, "learning": 0.02, "verdicts": 0.25}


def parse(argv: list[str] | None) -> argparse.Namespace:
    text, *more = __doc__.split("\n\n") if __doc__ else ("",)
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=text, epilog=more[-1])
    parser.add_argument(
        "--cases",
        type=_whole,
        default=200,
        metavar="N",
        help="of linear models, and of the others in proportion; of each family that is named (default: 200)",
    )
    parser.add_argument("--seed", type=int, default=1, help="another one, other cases (default: 1)")
    parser.add_argument(
        "--family", nargs="+", choices=list(SHARES), metavar="NAME", help=f"only these: {', '.join(SHARES)}"
    )
    parser.add_argument("--jobs", type=_whole, default=2, metavar="N", help="processes (default: 2)")
    parser.add_argument(
        "--out", type=Path, default=Path("out/fuzz"), metavar="DIR", help="folder for the scripts (default: out/fuzz)"
    )
    return parser.parse_args(argv)


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {value}")
    return value


def available(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(f"fuzz.{name}") is not None


def write(out: Path, seed: int, families: list[str], outcomes: list[Outcome]) -> None:
    """Failures as scripts in `out`, cases that say themselves that they failed in a folder of their status."""
    for family in families:
        for old in [*out.glob(f"{family}-{seed}-*.py"), *out.glob(f"*/{family}-{seed}-*.py")]:
            old.unlink()
    out.mkdir(parents=True, exist_ok=True)
    for o in outcomes:
        if o.script:
            folder = out if o.failed else out / o.outcome
            folder.mkdir(exist_ok=True)
            (folder / f"{o.case}.py").write_text(o.script)
    rows = [{k: _plain(v) for k, v in vars(o).items() if k != "script"} for o in outcomes]
    (out / "outcomes.json").write_text(json.dumps(rows, indent=1) + "\n")


def _plain(value: Any) -> Any:
    """JSON has neither NaN nor infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    families = [f for f in options.family or SHARES if available(f)]
    for missing in sorted(set(options.family or ()) - set(families)):
        raise SystemExit(f"fuzz: there is no module fuzz/{missing}.py")
    counts = {f: options.cases if options.family else max(1, round(SHARES[f] * options.cases)) for f in families}
    outcomes = execute(counts, options.seed, options.jobs)
    write(options.out, options.seed, families, outcomes)
    show(outcomes, options.out)
    return int(any(o.failed for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
