"""A check that the time grid resolves the drift: for Euler's scheme, every step times the drift's rate must be ≤ 1."""

import warnings
from typing import Any

import numpy as np

from girsanov.chain.linear_sde import Linearisation

_LONGEST = 1.0  # largest Δ·|eigenvalue| of the linearised drift; a longer step overshoots the point of rest


def unresolved(base: Linearisation, times: np.ndarray) -> str:
    """Return a sentence on the worst step of the grid; empty where all are short enough for the linearised drift."""
    gaps, A = np.diff(times), np.moveaxis(np.asarray(base.A), -1, 0)
    steep = np.flatnonzero(gaps * np.sqrt((A**2).sum((1, 2))) > _LONGEST)  # the norm is no less than any eigenvalue
    if len(steep) == 0:
        return ""
    rates = np.abs(np.linalg.eigvals(A[steep])).max(1)
    worst = int(np.argmax(gaps[steep] * rates))
    step, rate, at = gaps[steep][worst], rates[worst], times[steep][worst]
    if step * rate <= _LONGEST:
        return ""
    return (
        f"the step of {step:.3g} from time {at:.4g} is too long for the drift, whose rate there is {rate:.3g} per unit "
        f"of time: use a dt well below {1.0 / rate:.2g}, or continuous time (gv.CVIDP(time='continuous') in Python, "
        "--method continuous on the command line), and check that the result no longer changes with dt"
    )


def warn_unresolved(post: Any, stacklevel: int) -> None:
    """Warn the user if a posterior in discrete time has a step that is too long for the drift."""
    if post.time == "discrete" and (sentence := unresolved(post.target.base, post.times)):
        warnings.warn(sentence, stacklevel=stacklevel)
