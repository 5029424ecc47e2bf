"""Assumed-density filtering: forward in time, the law of the state is kept as a Gaussian.

Between two nodes a Gaussian N(m, S) is moved to the mean and covariance that the step gives it. In discrete time these
are the moments of x + Δ f(x, t) + √Δ L ξ by quadrature; in continuous time those of the linear SDE whose drift is the
model's, linearised by quadrature at both ends of the step. At an observation it takes the mean and covariance of the
product N(x; m, S) p(y | x), which with Z(m) = ∫ N(x; m, S) p(y | x) dx are
    m + S ∇ log Z,   S + S ∇² log Z S.
For a linear model with Gaussian noise all of it is exact, and this is the Kalman filter.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from girsanov._core.types import Array
from girsanov.chain.linear_sde import Time, linear_transition
from girsanov.data.instants import Instant
from girsanov.data.rows import Rows
from girsanov.inference.objective import Posed
from girsanov.model.likelihoods import Gaussian
from girsanov.model.model import Model
from girsanov.model.quadrature import Rule


class Forward(NamedTuple):
    """The filter at all nodes: means and covariances of w before the observation there, and its log score."""

    mean: Float[Array, "N d"]
    cov: Float[Array, "N d d"]
    score: Float[Array, " N"]


def filter_forward(problem: Posed, time: Time) -> Forward:
    """Filter from the first node to the last; nodes of the padding repeat the last law."""
    model, data = problem.model, problem.data
    initial, rows = model.initial_state(), data.by_node()
    rows = jax.tree.map(jnp.asarray, rows)
    first = jnp.asarray(initial.mean), jnp.asarray(initial.cov)
    begins, ends = (t if isinstance(t, Instant) else jnp.asarray(t) for t in (data.at_nodes, data.at_ends))
    move = _moved_in_continuous_time if time == "continuous" else _moved

    def step(state: tuple[Array, Array], here: Any):
        row, at, gap, valid = here
        m, S = state
        score, (seen_m, seen_S) = _updated(model, row, m, S)
        after = move(model, problem.rule, seen_m, seen_S, begins[at], ends[at + 1], gap)
        state = jax.tree.map(lambda new, old: jnp.where(valid, new, old), after, (seen_m, seen_S))
        return state, Forward(m, S, score)

    nodes = jnp.arange(data.times.shape[0] - 1)
    here = jax.tree.map(lambda a: a[:-1], rows), nodes, data.gaps, nodes + 1 < data.size
    last, before = jax.lax.scan(step, first, here)
    m, S = last
    final = Forward(m, S, _updated(model, jax.tree.map(lambda a: a[-1], rows), m, S)[0])
    return jax.tree.map(lambda all_, one: jnp.concatenate([all_, one[None]]), before, final)


def _nodes(rule: Rule, m: Float[Array, " d"], S: Float[Array, "d d"]) -> tuple[Array, Array, Array, Array]:
    """Return the points of the rule under N(m, S), its nodes ξ and weights, and the root of S."""
    L, xi = jnp.linalg.cholesky(S), jnp.asarray(rule.nodes).T
    return m + xi @ L.T, xi, jnp.asarray(rule.weights), L


def _moved(model: Model, rule: Rule, m, S, t, end, gap):
    """Return the moments after a step of Euler–Maruyama."""
    x, _, w, _ = _nodes(rule, m, S)
    y = x + gap * jax.vmap(model.drift, in_axes=(0, None))(x, t)
    mean = w @ y
    e = y - mean
    return mean, _symmetric((w * e.T) @ e) + gap * jnp.asarray(model.noise.Q)


def _moved_in_continuous_time(model: Model, rule: Rule, m, S, t, end, gap):
    """Return the moments after a step of the linear SDE; the second end is linearised where a first attempt leads."""
    Q, here = jnp.asarray(model.noise.Q), _linearised(model, rule, m, S, t)

    def along(there):
        A, b = ((left[..., None], right[..., None]) for left, right in zip(here, there, strict=True))
        Phi, c, Sigma = (a[..., 0] for a in linear_transition(A, b, Q, gap[None]))
        return Phi @ m + c, _symmetric(Phi @ S @ Phi.T + Sigma)

    return along(_linearised(model, rule, *along(here), end))


def _linearised(model: Model, rule: Rule, m, S, t):
    """Return A = E[f ξᵀ] L⁻¹ and b = E[f] − A m, the drift linearised under N(m, S)."""
    x, xi, w, L = _nodes(rule, m, S)
    f = jax.vmap(model.drift, in_axes=(0, None))(x, t)
    A = jax.scipy.linalg.solve_triangular(L, xi.T @ (w[:, None] * f), lower=True, trans=1).T
    return A, w @ f - A @ m


def _updated(model: Model, row: Rows, m, S) -> Any:
    """Return the log score of an observation and the moments given it; a node without one changes nothing."""
    observation = model.observation
    one = jax.tree.map(lambda a: a[None], row)

    def log_score(m):
        return observation.log_predictives(one, m[None], S[None])[0]

    def conjugate():
        # The site of a Gaussian likelihood does not depend on where it is computed.
        rule = Rule(jnp.zeros((len(m), 1)), jnp.ones(1))
        _, potential, precision = observation.sites(one, m[None], S[None], rule)
        h, J = potential[:, 0], precision[..., 0]
        gain = jnp.linalg.solve(jnp.eye(len(m)) + S @ J, jnp.concatenate([S, (S @ (h - J @ m))[:, None]], 1))
        return log_score(m), (m + gain[:, -1], _symmetric(gain[:, :-1]))

    def matched():
        slope = jax.jacfwd(log_score)
        return log_score(m), (m + S @ slope(m), _symmetric(S + S @ jax.jacfwd(slope)(m) @ S))

    exact = observation.is_linear and isinstance(observation.likelihood, Gaussian)
    seen: Bool[Array, ""] = row.observed.any()
    return jax.lax.cond(seen, conjugate if exact else matched, lambda: (jnp.zeros(()), (m, S)))


def _symmetric(a: Float[Array, "d d"]) -> Float[Array, "d d"]:
    return 0.5 * (a + a.T)
