"""A check that the posterior stays inside the states that a noise which depends on the state allows.

The coordinate w with constant noise may end where the state ends, as w = 2√x does at x = 0. A Gaussian in w does not
stop there. As long as the end is several standard deviations away, that does not matter.
"""

import numpy as np

from girsanov._core.checks import shown
from girsanov._core.precision import float64
from girsanov.inference.loop import Run
from girsanov.inference.objective import Posed
from girsanov.inference.status import Status
from girsanov.model.diffusions import StateDiffusion

_CLOSEST = 4.0  # standard deviations of w; beyond an end this far away lies 3e-5 of the posterior


@float64
def checked_boundary(problem: Posed, result: Run) -> Run:
    """Return the result, with the status `boundary` if it comes too close to an end of the states."""
    noise, size = problem.series_model.noise, int(problem.data.size)
    if not isinstance(noise, StateDiffusion) or result.status not in (Status.CONVERGED, Status.STALLED):
        return result
    d = problem.stated.dim
    m, S = np.asarray(result.moments.m)[:, :size], np.asarray(result.moments.S)[..., :size]
    sd = np.sqrt(np.einsum("iin->in", S))
    low, high = (np.asarray(a)[:, None] for a in noise.edges(d))
    away = np.stack([m - low, high - m]) / sd  # [end, coordinate, node]
    if not (away < _CLOSEST).any():
        return result
    end, i, n = np.unravel_index(np.argmin(away), away.shape)
    state = noise.support(d)[end][i]
    fault = (
        f"coordinate {i} comes within {away[end, i, n]:.2g} standard deviations of the end {shown(state)} at time "
        f"{shown(problem.data.times[n])}. Use a noise without an end there, such as gv.diffusions.Proportional, a "
        "constant noise, or for scalar states girsanov.baselines.exact_smoother"
    )
    return result._replace(status=Status.BOUNDARY, fault=fault)
