"""Checks of a model whose noise is singular: some directions of the state have no noise of their own.

Two processes with such noise have densities relative to each other only if they agree in those directions. A Gaussian q
can agree only with a drift that is affine there. And the noise must reach every coordinate through the drift, as it
does from a velocity to its position, or else the state has no density.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov.chain.linear_sde import linear_transition
from girsanov.chain.moments import Moments
from girsanov.data.instants import Instant, times_first
from girsanov.inference.objective import Posed
from girsanov.model.model import Model
from girsanov.model.simulate import states

_CURVED = 1e-8  # second derivatives below this share of the first ones are rounding errors
_POINTS = 12  # states at which the model is checked before a run
_LEAST = 1e-13  # smallest eigenvalue of a correlation matrix with a density


@float64
def check_before(problem: Posed) -> None:
    """Raise a ValueError unless the noise-free part of the drift is affine, and the noise reaches every coordinate.

    The drift is evaluated near the initial state; `check_after` looks at the states of the posterior.
    """
    state = problem.model.initial_state()
    mean, cov = np.asarray(state.mean), np.asarray(state.cov)
    xi = np.random.default_rng(0).standard_normal((_POINTS, len(mean)))
    x = mean + xi @ np.linalg.cholesky(cov).T
    size = int(problem.data.size)
    times = times_first(problem.data.at_nodes[np.linspace(0, size - 1, _POINTS).astype(int)])
    _check_affine(problem, x, times)
    if size > 1:
        _check_reached(problem.model, x, times, float(np.median(np.asarray(problem.data.gaps)[: size - 1])))


@float64
def check_after(problem: Posed, q: Moments) -> None:
    """Raise a ValueError unless the noise-free part of the drift is affine where q is."""
    size = int(problem.data.size)
    at = np.unique(np.linspace(0, size - 1, 5 * _POINTS).astype(int))
    m, sd = np.asarray(q.m)[:, at].T, np.sqrt(np.einsum("iin->ni", np.asarray(q.S)[..., at]))
    xi = np.random.default_rng(0).standard_normal(m.shape)
    _check_affine(problem, m + 2.0 * sd * xi, times_first(problem.data.at_nodes[at]))


@compiled
def _derivatives(model: Model, x, t):
    first = jax.vmap(jax.jacfwd(model.drift))(x, t)
    return first, jax.vmap(jax.jacfwd(jax.jacfwd(model.drift)))(x, t)


def _check_affine(problem: Posed, x: np.ndarray, t: Any) -> None:
    model = problem.model
    first, second = (np.asarray(a) for a in _derivatives(model, x, t))
    silent = model.noise.silent
    curved = np.abs(np.einsum("ki,nijl->knjl", silent, second)).max((2, 3))
    steep = np.abs(np.einsum("ki,nij->knj", silent, first)).max(2)
    bad = curved > _CURVED * (1.0 + steep)
    if not bad.any():
        return
    k, n = np.argwhere(bad)[0]
    at = t.t if isinstance(t, Instant) else t
    state = states(problem.series_model, x[n][None], np.asarray(at)[n : n + 1])[0].tolist()
    raise ValueError(
        f"{_named(silent[k])} of the drift has no noise and is not affine in the state: its second derivative at state "
        f"{state} is {curved[k, n]:.3g}. Such a row must be of the form a(t)·x + b(t), like dx = v dt. Give it a "
        "little noise, or choose other coordinates"
    )


def _named(direction: np.ndarray) -> str:
    at = np.flatnonzero(direction)
    if len(at) == 1:
        return f"row {at[0]}"
    return "the combination " + " + ".join(f"{direction[i]:.3g}·row {i}" for i in at)


@compiled
def _covariances(model: Model, x, t, gap):
    A = jnp.moveaxis(jax.vmap(jax.jacfwd(model.drift))(x, t), 0, -1)
    b = jnp.zeros(A.shape[1:])
    return jnp.moveaxis(linear_transition((A, A), (b, b), jnp.asarray(model.noise.Q), gap).Sigma, -1, 0)


def _check_reached(model: Model, x: np.ndarray, t: Any, gap: float) -> None:
    cov = np.asarray(_covariances(model, x, t, np.full(len(x), gap)))
    variance = np.einsum("nii->ni", cov)
    never = ~(variance > 0.0).any(0)
    if never.any():
        raise ValueError(
            f"coordinate {np.argmax(never)} has no noise, neither its own nor through the drift from other ones: "
            f"give it a little noise, such as diffusion[{np.argmax(never)}] = 1e-6, or make it a parameter of the drift"
        )
    some = cov[(variance > 0.0).all(1)]
    sd = np.sqrt(np.einsum("nii->ni", some))
    least = np.linalg.eigvalsh(some / (sd[:, :, None] * sd[:, None, :]))[:, 0]
    if not (least > _LEAST).any():
        raise ValueError(
            "the noise does not reach every direction of the state: some combination of the coordinates moves without "
            "noise. Give the coordinates without noise a little of it, or leave out those that follow from the others"
        )


def check_singular(problem: Posed, q: Any = None) -> None:
    """Check a model with singular noise, before a run or, with the moments q of a result, after it."""
    if problem.model.noise.is_singular and isinstance(problem.model.noise.Q, np.ndarray):
        check_before(problem) if q is None else check_after(problem, q)
