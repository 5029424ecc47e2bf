"""Starts of an iteration: Brownian motion, or an extended Kalman filter where Brownian motion will not do.

Brownian motion with a rough Gaussian approximation of the data is a density for every model with noise in all
directions, if the emission is linear. With a non-linear emission the approximation depends on where the emission is
linearised, and with singular noise the states follow from each other; there the filter linearises drift and emission
along its own path.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from girsanov._core.types import Array
from girsanov.chain.linear_sde import Linearisation, Time, linear_transition
from girsanov.data.instants import times_first
from girsanov.data.rows import Rows
from girsanov.inference.objective import Posed
from girsanov.inference.sites import DataSites, DenseSites, Sites
from girsanov.model.model import Model

_ROUNDS = 5  # times that the emission is linearised anew at an observation


def starting_sites(problem: Posed, time: Time = "discrete") -> Sites:
    """Return the sites of a start from the data alone.

    The base drift is given for every step, or in continuous time at every node.
    """
    model, data, d = problem.model, problem.data, problem.model.dim
    lanes = data.times.shape[0] if time == "continuous" else data.gaps.shape[0]
    zero_v, zero_m = jnp.zeros((d, data.gaps.shape[0])), jnp.zeros((d, d, data.gaps.shape[0]))
    none, still = DenseSites(zero_v, zero_m), jnp.asarray(model.initial_state().mean)
    if model.observation.is_linear and not model.noise.is_singular:
        at_rest = jnp.broadcast_to(still, (data.node.shape[0], d))
        return Sites(_no_drift(d, lanes), none, DataSites(*_sites(problem, at_rest)))
    path = extended_filter(problem)
    sites = DataSites(*_sites(problem, path[data.node]))
    filtered = Sites(_linearised(problem, path)[:lanes], none, sites)
    fine = jnp.all(jnp.asarray([jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(filtered)]))
    # Where the filter fails, the start leaves the data out.
    calm = _linearised(problem, jnp.broadcast_to(still, path.shape)) if model.noise.is_singular else _no_drift(d, lanes)
    without = Sites(calm[:lanes], none, jax.tree.map(jnp.zeros_like, sites))
    return jax.tree.map(lambda a, b: jnp.where(fine, a, b), filtered, without)


def _no_drift(d: int, lanes: int) -> Linearisation:
    return Linearisation(jnp.zeros((d, d, lanes)), jnp.zeros((d, lanes)))


def _sites(problem: Posed, at: Float[Array, "n d"]) -> tuple[Array, Array]:
    return problem.model.observation.starting_sites(problem.data.rows, at)


def _linearised(problem: Posed, path: Float[Array, "N d"]) -> Linearisation:
    """Return the drift linearised at the states of a path, at every node."""
    A, b = jax.vmap(lambda x, t: _tangent(problem.model, x, t), in_axes=(0, -1))(path, problem.data.at_nodes)
    inside = problem.data.in_chain
    return Linearisation(jnp.where(inside, jnp.moveaxis(A, 0, -1), 0.0), jnp.where(inside, b.T, 0.0))


def _tangent(model: Model, x: Float[Array, " d"], t: Any) -> tuple[Array, Array]:
    """Return A and b of the drift's linearisation A x + b at a state."""
    A = jax.jacfwd(model.drift)(x, t)
    return A, model.drift(x, t) - A @ x


def extended_filter(problem: Posed) -> Float[Array, "N d"]:
    """Return the means of an extended Kalman filter at all nodes, with exact transitions of the linearised drift."""
    model, data = problem.model, problem.data
    initial, rows = model.initial_state(), data.by_node()
    first = _updated(model, jnp.asarray(initial.mean), jnp.asarray(initial.cov), rows[0])
    Q = jnp.asarray(model.noise.Q)

    def step(state, interval):
        t, gap, valid, row = interval
        m, P = state
        A, b = _tangent(model, m, t)
        Phi, c, Sigma = (a[..., 0] for a in linear_transition(_ends(A), _ends(b), Q, gap[None]))
        moved = _updated(model, Phi @ m + c, _symmetric(Phi @ P @ Phi.T + Sigma), row)
        state = jax.tree.map(lambda new, old: jnp.where(valid, new, old), moved, state)
        return state, state[0]

    intervals = (times_first(data.at_nodes[:-1]), data.gaps, data.in_chain[1:], rows[1:])
    _, m = jax.lax.scan(step, first, intervals)
    return jnp.concatenate([first[0][None], m])


def _ends(a: Float[Array, "..."]) -> tuple[Array, Array]:
    """Return a value that is the same at both ends of the only lane."""
    return a[..., None], a[..., None]


def _updated(model: Model, m: Float[Array, " d"], P: Float[Array, "d d"], row: Rows) -> tuple[Array, Array]:
    """Return mean and covariance given one observation, whose emission is linearised anew at the mean a few times."""
    one = jax.tree.map(lambda a: a[None], row)

    def parts(at):
        G, reading, precision = (a[0] for a in model.observation.linearised(one, at[None]))
        return G.T @ (precision[:, None] * G), G.T @ (precision * (reading - G @ m))

    def conditioned(_, at):
        J, h = parts(at)
        return m + jnp.linalg.solve(jnp.eye(len(m)) + P @ J, P @ h)

    rounds = 1 if model.observation.is_linear else _ROUNDS
    at = jax.lax.fori_loop(0, rounds, conditioned, m)
    J = parts(at)[0]
    seen: Bool[Array, ""] = row.observed.any()
    S = _symmetric(jnp.linalg.solve(jnp.eye(len(m)) + P @ J, P))
    return jnp.where(seen, at, m), jnp.where(seen, S, P)


def _symmetric(a: Float[Array, "d d"]) -> Float[Array, "d d"]:
    return 0.5 * (a + a.T)
