"""Expectations of the drift under q, from one evaluation of the drift at each quadrature node.

At a time t_m, with S = LLᵀ and x = m + Lξ, q's own drift over the step is f_q = c + aξ, where
    c = (m₊ − m)/Δ,   a = (U − L)/Δ,   U = C L⁻ᵀ
and the posterior linearisation of the model's drift is f_L = F₀ + F₁ξ with F₀ = E[f], F₁ = E[fξᵀ]; in x that is
f_L = A x + b, A = F₁L⁻¹, b = F₀ − A m. The gradient of the expected log transition is the chain with drift f_L plus
a site on x_m alone. That site is Δ times the gradient in (m, S) of E[w], with f_q, A and b held fixed, where
    w = f_qᵀQ⁻¹f − ½ fᵀQ⁻¹f − (f_qᵀQ⁻¹f_L − ½ f_LᵀQ⁻¹f_L).
The bracket is quadratic in ξ and has a closed form; the first two terms are summed over the quadrature nodes. The
derivatives are expectations with Gaussian weights, ∇_m E[w] = L⁻ᵀE[wξ] and ∇_S E[w] = ½L⁻ᵀ(E[wξξᵀ] − E[w]I)L⁻¹, so the
drift need not be differentiable.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from girsanov._core.types import Array
from girsanov.chain import blocks
from girsanov.chain.blocks import matmul, matvec, transpose
from girsanov.chain.linear_sde import Linearisation
from girsanov.chain.moments import Moments
from girsanov.inference.sites import DenseSites
from girsanov.model.quadrature import Rule

# Where there are more drift values than _CHUNKED_FROM, over all quadrature nodes and times, they are computed in
# stretches of time with _CHUNK values each, which stay in the cache.
_CHUNKED_FROM, _CHUNK = 500_000, 262_144


class DriftExpectations(eqx.Module):
    """Expectations of the drift under q, for every step.

    Attributes:
        base: the posterior linearisation A x + b of the drift.
        sites: the dense sites, per unit of time.
        quadratic: E log p(x_{m+1} | x_m) without its constant −½ log|2πΔQ|.
    """

    base: Linearisation
    sites: DenseSites
    quadratic: Float[Array, " M"]


def evaluate_drift(drift: Callable, x: Float[Array, "d n M"], times: Any) -> Float[Array, "d n M"]:
    """Evaluate the drift at n states for each of M times, which may be an `Instant` with their inputs."""
    over_nodes = jax.vmap(drift, in_axes=(1, None), out_axes=1)
    return jax.vmap(over_nodes, in_axes=(2, -1), out_axes=2)(x, times)


class NodeSums(eqx.Module):
    """E[f], E[fξᵀ], E[w], E[wξ] and E[wξξᵀ] − E[w]I, from values of f and w at the quadrature nodes."""

    F0: Float[Array, "d M"]
    F1: Float[Array, "d d M"]
    w0: Float[Array, " M"]
    w1: Float[Array, "d M"]
    w2: Float[Array, "d d M"]


def at_nodes(rule: Rule, mean: Float[Array, "d M"], lin: Float[Array, "d d M"]) -> Float[Array, "d n M"]:
    """Return mean + lin ξ at every quadrature node ξ."""
    xi = jnp.asarray(rule.nodes)[:, :, None]
    return mean[:, None] + sum(lin[:, j, None] * xi[j] for j in range(xi.shape[0]))


def node_sums(rule: Rule, Q_inv: Float[Array, "d d"], f: Float[Array, "d n M"], f_q: Float[Array, "d n M"]) -> NodeSums:
    """Compute the sums for w = f_qᵀQ⁻¹f − ½fᵀQ⁻¹f: one product of (f, w) with the weighted monomials 1, ξ and ξξᵀ."""
    d, _, M = f.shape
    v = f_q - 0.5 * f
    Qf = [sum(Q_inv[i, j] * f[j] for j in range(d)) for i in range(d)]
    w = v[0] * Qf[0]
    for i in range(1, d):
        w = w + v[i] * Qf[i]
    xi, weights = jnp.asarray(rule.nodes), jnp.asarray(rule.weights)
    i, j = jnp.triu_indices(d)
    monomials = jnp.concatenate([weights[None], weights * xi, weights * xi[i] * xi[j]])
    sums = jnp.einsum("kn,enM->ekM", monomials, jnp.concatenate([f, w[None]]))
    F, W = sums[:d], sums[d]
    second = jnp.zeros((d, d, M), f.dtype).at[i, j].set(W[1 + d :]).at[j, i].set(W[1 + d :])
    return NodeSums(F[:, 0], F[:, 1 : 1 + d], W[0], W[1 : 1 + d], second - W[0] * blocks.eye_like(second))


def site_gradient(
    sums: NodeSums,
    Q_inv: Float[Array, "d d"],
    c: Float[Array, "d M"],
    a: Float[Array, "d d M"],
    v0: Float[Array, "d M"],
    v1: Float[Array, "d d M"],
) -> tuple[Float[Array, "d M"], Float[Array, "d d M"]]:
    """Return E[wξ] and E[wξξᵀ] − E[w]I for the w of the module's docstring, with f_q = c + aξ and f_L = v₀ + v₁ξ.

    The quadratic p = f_qᵀQ⁻¹f_L − ½f_LᵀQ⁻¹f_L = p₀ + p₁ᵀξ + ξᵀP₂ξ is subtracted from the sums in closed form, by
    E[pξ] = p₁ and E[pξξᵀ] − E[p]I = 2P₂.
    """
    Qi, a_t = Q_inv[:, :, None], transpose(a)
    Qv0, Qv1 = matvec(Qi, v0), matmul(Qi, v1)
    cross = matmul(a_t, Qv1)
    p1 = matvec(a_t, Qv0) + matvec(transpose(Qv1), c - v0)
    return sums.w1 - p1, sums.w2 - (cross + transpose(cross) - matmul(transpose(v1), Qv1))


def to_site(
    w1: Float[Array, "d M"], w2: Float[Array, "d d M"], m: Float[Array, "d M"], L_inv: Float[Array, "d d M"]
) -> DenseSites:
    """Return the site with ℓ = ∇_m − 2∇_S m and Γ = −2∇_S, where ∇_m = L⁻ᵀw₁ and ∇_S = ½L⁻ᵀw₂L⁻¹."""
    L_invT = transpose(L_inv)
    Gamma = -matmul(L_invT, matmul(w2, L_inv))
    return DenseSites(matvec(L_invT, w1) + matvec(Gamma, m), Gamma)


def sums_in_chunks(drift: Callable, Q_inv: Float[Array, "d d"], rule: Rule, at: tuple) -> NodeSums:
    """Compute the node sums for x = m + Lξ and f_q = c + aξ; long series are done one stretch of time after the other.

    `at` is the tuple (m, L, c, a, times).
    """

    def sums(at):
        m, L, c, a, times = at
        return node_sums(rule, Q_inv, evaluate_drift(drift, at_nodes(rule, m, L), times), at_nodes(rule, c, a))

    d, M = at[0].shape
    values = d * rule.nodes.shape[1]
    if values * M <= _CHUNKED_FROM:
        return sums(at)
    width = max(1, _CHUNK // values)
    count = -(-M // width)

    def cut(array):  # (..., M) -> (count, ..., width), padded at the end with the last value
        padded = jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, count * width - M)], mode="edge")
        return jnp.moveaxis(padded.reshape(*array.shape[:-1], count, width), -2, 0)

    pieces = jax.lax.map(sums, jax.tree.map(cut, at))
    return jax.tree.map(lambda p: jnp.moveaxis(p, 0, -2).reshape(*p.shape[1:-1], count * width)[..., :M], pieces)


def drift_expectations(
    drift: Callable,
    Q_inv: Float[Array, "d d"],
    rule: Rule,
    q: Moments,
    times: Any,
    gaps: Float[Array, " M"],
    valid: Bool[Array, " M"] | bool = True,
) -> DriftExpectations:
    """Compute the expectations for every step; steps that are not `valid` get finite values without a meaning."""
    m, S = q.m[:, :-1], q.S[..., :-1]
    L = blocks.cholesky(S)
    L_inv = blocks.inverse_lower(L)
    U = matmul(q.C, transpose(L_inv))
    c, a = (q.m[:, 1:] - m) / gaps, (U - L) / gaps
    # The states of the padding are arbitrary, and the drift may not be defined there. It is evaluated at the states of
    # the first node instead: a NaN would spoil derivatives in its parameters, since zero times NaN is NaN.
    at = jnp.where(valid, m, m[:, :1]), jnp.where(valid, L, L[..., :1])
    sums = sums_in_chunks(drift, Q_inv, rule, (*at, c, a, times))
    sites = to_site(*site_gradient(sums, Q_inv, c, a, sums.F0, sums.F1), m, L_inv)

    # E‖x₊ − x − Δf‖²_{Q⁻¹} = tr Q⁻¹(S₊ − UUᵀ) + Δ²(E‖f_q‖² − 2E[w̃]), where w̃ is the part of w summed over the nodes
    Qi = Q_inv[:, :, None]
    spread = blocks.trace(matmul(Qi, q.S[..., 1:] - matmul(U, transpose(U))))
    fq2 = (c * matvec(Qi, c)).sum(0) + (a * matmul(Qi, a)).sum((0, 1))
    value = -0.5 * spread / gaps - 0.5 * gaps * (fq2 - 2.0 * sums.w0)
    A = matmul(sums.F1, L_inv)
    return DriftExpectations(Linearisation(A, sums.F0 - matvec(A, m)), sites, value)
