"""What `girsanov learn` leaves in its folder while it goes on, and how `--resume` goes on from it."""

from pathlib import Path
from typing import Any

import numpy as np

from girsanov.cli.modelling import load_result
from girsanov.cli.options import ModelOptions
from girsanov.cli.run_folder import UNFINISHED


def earlier_fit(out: Path, options: ModelOptions, series: Any) -> Any:
    """Return the fit that an interrupted run has left in its folder, or else that of a finished one.

    Args:
        out: the folder.
        options: those of the model, for a drift of the user's own.
        series: the data, which must be those of the fit.

    Raises:
        ValueError: if there is no fit, or if it is one of other data.
    """
    if not hasattr(series, "times"):
        raise ValueError("--resume is for a single series: leave it or --id out")
    file = next((out / name for name in (UNFINISHED, "fit.gv") if (out / name).is_file()), None)
    if file is None:
        raise ValueError(f"--resume: {out} has neither {UNFINISHED} nor fit.gv to go on from; leave it out")
    fit = load_result(file, options)
    before = fit.posterior.series
    same = np.array_equal(before.times, series.times) and np.array_equal(before.values, series.values, equal_nan=True)
    if not same:
        raise ValueError(f"--resume: {file} is of other data; leave it out to begin anew")
    return fit
