"""Expectations of a log density, and predictions, through a non-linear emission, by quadrature over the state.

With S = LLᵀ, x = m + Lξ and v(x) = log p(y | g(x, t)), the gradients of E[v] are
    ∇_m E[v] = E[∇v],   ∇_S E[v] = ½L⁻ᵀB L⁻¹,
where the symmetric matrix B has the lower triangle of LᵀE[∇v ξᵀ]. They are the derivatives of the sum over the
quadrature nodes itself, so that an ascent sees the function whose gradient it has, however accurate the rule is.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.types import Array
from girsanov.data.rows import Rows
from girsanov.model.quadrature import Rule, default_quadrature, richer, root_of

_NEWTON, _LONGEST = 25, 2.0  # Newton steps to a mode, and the longest of them in standard deviations of the state


def expectations(
    log_prob: Callable[[Rows, Array], Array],
    rows: Rows,
    m: Float[Array, "n d"],
    S: Float[Array, "n d d"],
    rule: Rule,
) -> tuple[Float[Array, " n"], Float[Array, "n d"], Float[Array, "n d d"]]:
    """Return E log p(y | x) under x ~ N(m, S) for every observation, and its gradients in m and S."""
    xi, w = jnp.asarray(rule.nodes).T, jnp.asarray(rule.weights)

    def one(row, m, S):
        L = jnp.linalg.cholesky(S)
        value, slope = jax.vmap(jax.value_and_grad(lambda x: log_prob(row, x)))(m + xi @ L.T)
        weighted = w[:, None] * slope
        lower = jnp.tril(L.T @ weighted.T @ xi)
        B = lower + jnp.tril(lower, -1).T
        half = jax.scipy.linalg.solve_triangular(L, B, lower=True, trans=1)
        return w @ value, weighted.sum(0), 0.5 * jax.scipy.linalg.solve_triangular(L, half.T, lower=True, trans=1)

    return jax.vmap(one)(rows, m, S)


def predictive(
    emit: Callable[[Array, Array], Array],
    given: Callable[[Array], tuple[Array, Array]],
    t: Float[Array, " n"],
    m: Float[Array, "n d"],
    S: Float[Array, "n d d"],
) -> tuple[Float[Array, "n D"], Float[Array, "n D D"]]:
    """Return mean and covariance of y if x ~ N(m, S), where `given` returns those of y given z."""
    xi, w = _own_rule(m.shape[1])

    def one(t, m, S):
        z = jax.vmap(lambda x: emit(t, x))(m + xi @ root_of(S).T)
        mean, cov = jax.vmap(given)(z)
        centre = w @ mean
        e = mean - centre
        return centre, jnp.einsum("k,kij->ij", w, cov) + jnp.einsum("k,ki,kj->ij", w, e, e)

    return jax.vmap(one)(t, m, S)


def log_predictives(
    log_prob: Callable[[Rows, Array], Array], rows: Rows, m: Float[Array, "n d"], S: Float[Array, "n d d"]
) -> Float[Array, " n"]:
    """Return log E p(y | x) under x ~ N(m, S) for every observation.

    The quadrature nodes are centred at the mode of p(y | x)N(x; m, S) and scaled by the curvature there, so that they
    resolve an observation that is far more precise than the state is known.
    """
    xi, w = _own_rule(m.shape[1])

    def one(row, m, S):
        L = root_of(S)

        def log_joint(e):  # up to the constant −½d log 2π
            return log_prob(row, m + L @ e) - 0.5 * e @ e

        def root_of_curvature(e):
            """Return a root of the inverse of −∇² log p, with negative curvatures replaced by those of the prior."""
            size, axes = jnp.linalg.eigh(-jax.hessian(log_joint)(e))
            size = jnp.where(jnp.isfinite(size) & (size > 1.0), size, 1.0)
            return axes / jnp.sqrt(size), jnp.log(size).sum()

        def newton(_, e):
            root = root_of_curvature(e)[0]
            step = root @ (root.T @ jax.grad(log_joint)(e))
            step = jnp.where(jnp.isfinite(step), step, 0.0)
            step = step * jnp.minimum(1.0, _LONGEST / jnp.maximum(jnp.sqrt(step @ step), 1e-300))
            return jnp.where(log_joint(e + step) >= log_joint(e), e + step, e + 0.25 * step)

        mode = jax.lax.fori_loop(0, _NEWTON, newton, jnp.zeros_like(m))
        root, log_size = root_of_curvature(mode)
        values = jax.vmap(log_joint)(mode + xi @ root.T) + 0.5 * (xi**2).sum(1)
        return jax.scipy.special.logsumexp(values, b=w) - 0.5 * log_size

    return jax.lax.map(lambda at: one(*at), (rows, m, S))


def _own_rule(d: int) -> tuple[Float[Array, "k d"], Float[Array, " k"]]:
    """Return nodes and weights of a rule that is more accurate than the default one."""
    rule = richer(default_quadrature(d).rule(d))
    return jnp.asarray(rule.nodes).T, jnp.asarray(rule.weights)
