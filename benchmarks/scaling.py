"""(c) Cost of one update as the series grows, and peak memory of inference on a million nodes (d = 1)."""

import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import girsanov as gv
from benchmarks import programs
from benchmarks.measure import Figure, fresh_process, interleaved
from benchmarks.problems import long_series, paper_model, update_problem
from girsanov._core.precision import float64

_SIZES = (2_001, 20_001, 200_001)
_LARGE = 1_000_001
_MEMORY_GB = 4.0
_LINEAR = 1.1  # linear, with a tenth for noise
_REPEATS = 15


@float64
def growth() -> list[Figure]:
    """Cost of an update of every size, and its growth from the smallest on, relative to that of the size."""
    inputs = {n: update_problem("double_well", *long_series(n)) for n in _SIZES}
    calls = {(n, False): lambda args=args: programs.update(*args) for n, args in inputs.items()}
    calls |= {(n, True): lambda args=args: programs.update_loop(*args) for n, args in inputs.items()}
    seconds = interleaved(calls, _REPEATS)
    figures, small = [], _SIZES[0]
    for (n, loop), s in seconds.items():
        where, passes = (" in a loop", programs.LOOP) if loop else ("", 1)
        figures.append(Figure("c", f"N={n}, full update{where}", 1e3 * s / passes, "ms"))
        if n > small:
            relative = (s / seconds[small, loop]) / (n / small)
            name = f"N={n}, growth from {small}{where}, relative to linear"
            figures.append(Figure("c", name, relative, "×", at_most=_LINEAR))
    return figures


def scenario(data: Path | None) -> Iterator[Figure]:
    yield from growth()
    large = fresh_process("benchmarks.scaling", _LARGE)
    label = f"N={_LARGE}, infer"
    yield Figure("c", f"{label}: iterations ({large['status']})", large["iterations"], "")
    yield Figure("c", f"{label}: wall time with compilation", large["seconds"], "s")
    yield Figure("c", f"{label}: peak memory of the process", large["peak_gb"], "GB", at_most=_MEMORY_GB)


def infer_large(nodes: int) -> dict:
    """Inference with the default settings, and the largest resident size of this process so far."""
    series, grid = long_series(nodes)
    post = gv.infer(paper_model("double_well"), series, grid=grid, progress=False)
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    peak = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "status": post.status,
        "iterations": len(post.history) - 1,
        "seconds": post.seconds,
        "peak_gb": peak / 1e9,
    }


if __name__ == "__main__":
    print(json.dumps(infer_large(int(sys.argv[1]))))
