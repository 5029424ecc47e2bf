"""Moments and quantiles of the state x from those of w, in whose coordinates the noise is constant, on the host.

If the noise is constant, x = w and nothing is computed.
"""

from typing import Any

import numpy as np

from girsanov._core.checks import as_floats
from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov.model.diffusions import StateDiffusion
from girsanov.model.driven import shift
from girsanov.model.estimate import Marginals
from girsanov.model.latent import cross_moments, state_moments
from girsanov.model.model import Model
from girsanov.model.simulate import states

_state_moments, _cross_moments = compiled(state_moments), compiled(cross_moments)
_shift = compiled(shift)


@float64
def of_state(model: Model, w: Marginals, t: np.ndarray) -> Marginals:
    """Return means and covariances of the state, from those of w at times t, (n,)."""
    if isinstance(model.noise, StateDiffusion):
        w = Marginals(*(np.asarray(a) for a in _state_moments(model.noise, w.mean, w.cov)))
    return Marginals(w.mean + np.asarray(_shift(model, t)), w.cov) if model.has_impulses else w


@float64
def lag_covariance(model: Model, w: Marginals, C: np.ndarray) -> np.ndarray:
    """Return Cov(x_{m+1}, x_m) of every step, (N − 1, d, d), from the law of w at the nodes and its lag covariances."""
    if not isinstance(model.noise, StateDiffusion):
        return C
    before, after = (w.mean[:-1], w.std[:-1]), (w.mean[1:], w.std[1:])
    return np.asarray(_cross_moments(model.noise, after, before, C)[2])


def quantiles(model: Model, w: Marginals, q: Any, t: np.ndarray) -> np.ndarray:
    """Return quantiles of the coordinates of the state at times t, (k, n, d): w is Gaussian, and x increases with w."""
    from scipy.special import ndtri  # here, because SciPy would make every import of the library a tenth slower

    p = np.atleast_1d(as_floats("q", q))
    if p.ndim != 1 or not ((p > 0.0) & (p < 1.0)).all():
        raise ValueError(f"q must be probabilities between 0 and 1, a number or shape (k,), got {q!r}")
    return states(model, w.mean + ndtri(p)[:, None, None] * w.std, t)
