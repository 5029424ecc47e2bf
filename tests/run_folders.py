"""Folders of runs as the command line leaves them, with names and units that would do harm as markup."""

import numpy as np

import girsanov as gv
from girsanov import report
from girsanov.result.directions import Direction
from girsanov.result.fit import Fit, FitHistory

EVIL = "<img src=x onerror=window.evil=1>"
EQUATIONS = {
    "states": {"n": {"drift": "r * n * (1 - n / K)", "noise": "0.2", "start": 1.0, "unit": EVIL}},
    "outputs": {"seen": {"measures": "n", "distribution": "gaussian", "sd": 0.3, "unit": "mg</script>"}},
    "parameters": {
        "r": {"start": 0.8, "low": 0.0, "unit": "1/year", "meaning": f"growth {EVIL}"},
        "K": {"start": 2.0, "low": 0.0, "fixed": True},
    },
}


def write_run(folder, command: str, saved, settings: dict) -> None:
    """A folder as the command line leaves it."""
    folder.mkdir()
    post = getattr(saved, "posterior", saved)
    saved.save(folder / ("fit.gv" if command == "learn" else "posterior.gv"))
    data = report.write_table(folder / "a&b<i>.csv", {"t": post.series.times, "seen": post.series.values[:, 0]})
    outcome = {"elbo": post.elbo, "status": saved.status, "message": saved.message, "converged": saved.converged,
               "iterations": 3, "seconds": 1.25, "nodes": len(post.times),
               "observations": len(post.series)}  # fmt: skip
    report.write_result(folder, command, outcome, settings=settings, seeds={}, data=data)


def a_fit() -> Fit:
    """A fit as learning leaves it, with a posterior that is inferred; learning itself would take longer."""
    model = gv.Model.from_equations(EQUATIONS)
    t = np.arange(1, 13) * 0.5
    series = gv.TimeSeries(t, 2.0 - np.exp(-t) + 0.2 * np.sin(5.0 * t))
    post = gv.infer(model, series, dt=0.25, span=(0.0, 6.0), progress=False)
    steps = np.arange(4.0)
    history = FitHistory(
        {"r": np.array([0.5, 0.7, 0.79, 0.8])}, post.elbo - 1.0 + steps / 3.0, steps, steps, steps, steps
    )
    told = (Direction({"r": 1.0}, 0.15, "the data tell r"),)
    errors, cov = {"r": 0.12}, np.array([[0.0144]])
    return Fit(model, post, history, ("r",), "converged", "at a maximum", errors, cov, (), {"r": 0.02}, told)
