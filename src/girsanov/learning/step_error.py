"""What the time step of Euler's scheme does to the estimates, without a finer grid.

The error of an estimate is of first order in the step: on a grid with gaps Δ_m it is close to c Σ Δ_m². The estimates
on the grid without every second node tell c. That grid is padded to the size of the first one, so that nothing is
compiled.
"""

import dataclasses
from typing import Any

import numpy as np

from girsanov.data.grid import coarsen
from girsanov.inference.objective import Posed
from girsanov.learning.curvature import laplace
from girsanov.learning.newton import STEPS, Summit, ascend
from girsanov.learning.parameters import constrained_entries, entries
from girsanov.result.fit import Fit

_COARSER = 1.2  # the sum of squared gaps must grow by this factor at least, or the grid is mostly observations
NOTICEABLE = 0.5  # a larger change, in standard errors, is warned of


def compare_steps(learner: Any, summit: Summit, tolerance: float) -> dict[str, float] | None:
    """Estimate by how much halving dt would change the estimates, in their standard errors.

    Args:
        learner: the `Learner` of the fit, in discrete time.
        summit: the maximum, with minus the Hessian there.
        tolerance: of learning, in nats.

    Returns:
        The change of every entry; infinite where inference or learning fails with twice the step. None where most
        nodes have observations, so that the grid cannot be made coarser.
    """
    data, theta = learner.problem.data, summit.point.theta
    grid = data.grid
    coarse = coarsen(grid, 2)
    fine_sum, coarse_sum = (float((np.diff(g.times) ** 2).sum()) for g in (grid, coarse))
    if coarse_sum < _COARSER * fine_sum:
        return None
    problem = Posed(learner.problem.stated, data.on(coarse, len(data.times)), learner.problem.rule)
    there = dataclasses.replace(learner, problem=problem, say=None, rows=[])
    top = ascend(there, theta, None, B=summit.precision, tolerance=tolerance, max_iterations=STEPS, above=np.inf)
    names = entries(learner.spec)
    if top is None or top.status != "converged":
        return dict.fromkeys(names, float("inf"))
    change = np.asarray(constrained_entries(learner.spec, theta) - constrained_entries(learner.spec, top.point.theta))
    change = 0.5 * fine_sum / (coarse_sum - fine_sum) * change
    errors = laplace(learner.spec, theta, summit.precision).errors
    return dict(zip(names, (change / errors).tolist(), strict=True))


def step_warning(fit: Fit) -> str | None:
    """Return a sentence on the entry that changes most, if that is noticeable, else None."""
    found = fit.step_error
    if not found:
        return None
    name = max(found, key=lambda k: abs(found[k]))
    remedy = "take a smaller dt, or method=gv.CVIDP(time='continuous')"
    if not np.isfinite(found[name]):
        return f"with twice the step learning fails, so that dt is hardly short enough for the drift: {remedy}"
    if abs(found[name]) <= NOTICEABLE:
        return None
    return f"{name} depends on dt: half the step would change it by about {found[name]:+.2g} standard errors; {remedy}"
