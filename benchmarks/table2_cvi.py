"""CVI-DP rows of the paper's Table 2: NLPD of held-out observations after learning, mean and spread over five folds.

    python benchmarks/table2_cvi.py --data DIR [--dt 0.01 0.005 0.001] [--process ou ...]

DIR is a folder with the authors' data sets. Parameters start where the paper's do and are run to the maximum of the
bound. Where the means differ by more than 0.02 a sentence says which parameters between the start and the maximum would
give the printed one.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for a run as a script
from benchmarks.paper_rows import run

if __name__ == "__main__":
    sys.exit(run(__doc__, "table2", "cvi_dp", None, kinds={"": ""}, apart=0.02))
