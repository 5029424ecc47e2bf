"""CVI-DP rows of the paper's Table 1: NLPD of held-out observations, mean and spread over five folds.

    python benchmarks/table1_cvi.py --data DIR [--dt 0.01 0.005 0.001] [--process ou ...]

DIR is a folder with the authors' data sets. Each row also shows the printed values and the differences of mean and sd.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for a run as a script
from benchmarks.paper_rows import run

if __name__ == "__main__":
    sys.exit(run(__doc__, "table1", "cvi_dp", None, kinds={"": ""}))
