"""Starting values from the data: `learn(..., start="data")`.

Noise and diffusion come from the differences of observations: where the noise variance is R and the state moves like
Brownian motion of spectral density q, E (y_{k+j} − y_k)² = 2R + q (t_{k+j} − t_k). The first state comes from the first
observations. The drift comes from one M-step: given the path that a Brownian motion with these noises takes through the
data, its parameters maximise the bound. What the data do not show in this way keeps its value.
"""

from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from girsanov._core.compile import compiled
from girsanov.chain.smoother import smooth
from girsanov.inference.objective import Posed, compose
from girsanov.inference.start import starting_sites
from girsanov.learning.objectives import standard_value_and_grad
from girsanov.learning.optimise import maximise
from girsanov.learning.parameters import owners, to_vector, units
from girsanov.model.likelihoods import Gaussian
from girsanov.model.named import leaves_by_path, replaced

_LEAST = 1e-3  # smallest share of the data's differences that is taken for noise, and for diffusion
_LAGS = (1, 2, 4)
_STEPS = 200  # of the M-step


@compiled
def _brownian(problem: Posed):
    return smooth(compose(problem, starting_sites(problem))).moments


def from_data(learner: Any) -> Float[np.ndarray, " P"]:
    """Return starting values of the parameters from the data, as free coordinates; see the module.

    Args:
        learner: the `Learner` of the fit; its model has the values of everything that the data do not show.
    """
    model, spec = learner.problem.stated, learner.spec
    try:
        theta = to_vector(spec, replaced(model, _shown_by_data(learner.problem, model)))
    except ValueError:  # outside a constraint of the user's
        theta = to_vector(spec, model)
    owner = owners(spec)
    drift = np.array([_is_of_drift(model, p.path) for p in owner])
    if not drift.any() or model.latent.noise.is_singular:
        return theta
    q = _brownian(learner.at(theta))
    # With the positive ones free from the beginning, a decay would go to zero before the mean has found the data.
    for part in (drift & np.array([p.kind == "real" for p in owner]), drift):
        theta = _m_step(learner, theta, q, part)
    return theta


def _is_of_drift(model: Any, path: str) -> bool:
    """Return whether a parameter is one of the drift."""
    if model.equations is None:
        return path.startswith("drift")
    return any(path in s.drift.names() for s in model.equations.statement.states)


def _m_step(learner: Any, theta: np.ndarray, q: Any, part: np.ndarray) -> Float[np.ndarray, " P"]:
    """Maximise the bound at the path q over some of the coordinates, given by a mask."""

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        t = theta.copy()
        t[part] = values
        value, grad = standard_value_and_grad(t, learner.spec, learner.problem, q, learner.priors)
        return float(value), np.asarray(grad)[part]

    if not part.any():
        return theta
    top = maximise(objective, theta[part], units(learner.spec, theta)[part], "lbfgs", _STEPS, 0.0)
    new = theta.copy()
    if np.isfinite(top.value):
        new[part] = top.theta
    return new


def _shown_by_data(problem: Posed, model: Any) -> dict[str, np.ndarray]:
    """Return values of parameters by their paths: the noise variance, the diffusion and the mean of the first state."""
    import scipy.optimize

    observation, leaves = model.observation, leaves_by_path(model)
    if not (observation.is_linear and isinstance(observation.likelihood, Gaussian)):
        return {}
    rows = jax.tree.map(np.asarray, problem.data.rows)
    G, z, _ = (np.asarray(a) for a in observation.linearised(rows, np.zeros((len(rows.t), model.dim))))
    H = G[0]
    R, q = np.array([_variances(rows.t, z[:, j], rows.observed[:, j]) for j in range(len(H))]).T
    found = {}
    if "likelihood.variance" in leaves:
        shape = np.shape(leaves["likelihood.variance"])
        found["likelihood.variance"] = np.diag(R) if len(shape) == 2 else R.mean() if shape == () else R
    if "diffusion" in leaves:
        # q_j = Σ_i H_ji² Q_ii for every output; a coordinate that no output shows keeps its Q.
        Q, _ = scipy.optimize.nnls(H**2, q)
        old = np.asarray(leaves["diffusion"])
        spread = np.where((Q > 0.0) & (old.diagonal() > 0.0), Q, old.diagonal())
        found["diffusion"] = np.diag(np.full_like(spread, spread.mean()) if model.noise.form == "scalar" else spread)
    if "initial.mean" in leaves and np.linalg.matrix_rank(H) == H.shape[1]:
        first = [z[np.flatnonzero(rows.observed[:, j])[:1], j] for j in range(len(H))]
        if all(len(a) for a in first):
            found["initial.mean"] = np.linalg.lstsq(H, np.concatenate(first), rcond=None)[0]
    return {path: np.asarray(value) for path, value in found.items() if np.isfinite(value).all()}


def _variances(t: np.ndarray, y: np.ndarray, observed: np.ndarray) -> tuple[float, float]:
    """Return R and q of one output, by least squares with weights that squared differences deserve."""
    import scipy.optimize

    t, y = t[observed], y[observed]
    gaps = np.concatenate([t[j:] - t[:-j] for j in _LAGS])
    squares = np.concatenate([(y[j:] - y[:-j]) ** 2 for j in _LAGS])
    if len(gaps) < 3 or not squares.any():
        return np.nan, np.nan
    X = np.stack([np.full_like(gaps, 2.0), gaps], axis=1)
    size = np.full_like(squares, squares.mean())  # the sd of a squared difference is √2 times its mean
    for _ in range(3):
        (R, q), _ = scipy.optimize.nnls(X / size[:, None], squares / size)
        size = np.maximum(X @ [R, q], _LEAST * squares.mean())
    least = _LEAST * squares.mean()
    return max(R, least), max(q, least / gaps.mean())
