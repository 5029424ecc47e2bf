"""Folders of runs as the command line leaves them, with names and units that would do harm as markup."""

from girsanov import report

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
