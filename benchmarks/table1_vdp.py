"""VDP rows of the paper's Table 1: NLPD of held-out observations, mean and spread over five folds.

    python benchmarks/table1_vdp.py --data DIR [--dt 0.01 0.005 0.001] [--process ou ...]

Two rows a cell. "plain" is the iteration as the paper states it: its ω, Euler's scheme, no safeguard, from the prior;
the best bound met counts. "safeguarded" is the same fixed point by steps that never lower the bound, run to
convergence where the experiment's limit of iterations allows it: what VDP itself, and not its step size, start or
stopping rule, can say on this grid.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for a run as a script
from benchmarks.paper_rows import run

if __name__ == "__main__":
    sys.exit(run(__doc__, "table1", "vdp", None, kinds={"plain": "plain_", "safeguarded": ""}))
