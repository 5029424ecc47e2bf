"""Expectations of the drift under q: everything that one step needs, from one evaluation of the drift a node.

At a time t_m, with S = LLᵀ and x = m + Lξ, q's own drift over the step is f_q = c + aξ, where
    c = (m₊ − m)/Δ,   a = (U − L)/Δ,   U = C L⁻ᵀ
and the posterior linearisation of the model's drift is f_L = F₀ + F₁ξ with F₀ = E[f], F₁ = E[fξᵀ]; in x that is
f_L = A x + b, A = F₁L⁻¹, b = F₀ − A m. The gradient of the expected log transition is the chain with drift f_L plus
a site on x_m alone, Δ times the gradient in (m, S) of E[w], with f_q, A and b held fixed,
    w = f_qᵀQ⁻¹f − ½ fᵀQ⁻¹f − (f_qᵀQ⁻¹f_L − ½ f_LᵀQ⁻¹f_L).
The last bracket is a quadratic in ξ, in closed form; the first two terms are summed over the nodes. Derivatives are
Gaussian weights, ∇_m E[w] = L⁻ᵀE[wξ], ∇_S E[w] = ½L⁻ᵀ(E[wξξᵀ] − E[w]I)L⁻¹: the drift need not be differentiable.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._types import Array
from girsanov.chain import blocks
from girsanov.chain.blocks import matmul, matvec, transpose
from girsanov.chain.moments import Moments
from girsanov.quadrature import Rule
from girsanov.sites import DenseSites, Linearisation


class DriftExpectations(eqx.Module):
    base: Linearisation
    sites: DenseSites
    # E log p(x_{m+1} | x_m) without its constant −½ log|2πΔQ|
    quadratic: Float[Array, " M"]


def evaluate_drift(drift: Callable, x: Float[Array, "d M n"], times: Float[Array, " M"]) -> Float[Array, "d M n"]:
    over_nodes = jax.vmap(drift, in_axes=(1, None), out_axes=1)
    return jax.vmap(over_nodes, in_axes=(1, 0), out_axes=1)(x, times)


def drift_expectations(
    drift: Callable,
    Q_inv: Float[Array, "d d"],
    rule: Rule,
    q: Moments,
    times: Float[Array, " M"],
    gaps: Float[Array, " M"],
) -> DriftExpectations:
    m, S = q.m[:, :-1], q.S[..., :-1]
    d, M = m.shape
    L = blocks.cholesky(S)
    L_inv = blocks.inverse_lower(L)
    L_invT = transpose(L_inv)
    U = matmul(q.C, L_invT)
    c, a = (q.m[:, 1:] - m) / gaps, (U - L) / gaps
    Qi = Q_inv[:, :, None]
    xi = jnp.asarray(rule.nodes)
    n = xi.shape[1]

    def at_nodes(mean, lin):  # mean + lin ξ, shape (d, M, n)
        return mean[:, :, None] + sum(lin[:, j, :, None] * xi[j] for j in range(d))

    f = evaluate_drift(drift, at_nodes(m, L), times)
    Qf = [sum(Q_inv[i, j] * f[j] for j in range(d)) for i in range(d)]
    v = at_nodes(c, a) - 0.5 * f
    w = sum(v[i] * Qf[i] for i in range(d))

    # Weighted monomials: one matrix product for E[f], E[fξ], one for E[w], E[wξ], E[wξξᵀ].
    weights = jnp.asarray(rule.weights)
    linear = jnp.concatenate([weights[None], weights * xi])
    i, j = jnp.triu_indices(d)
    quadratic = jnp.concatenate([linear, weights * xi[i] * xi[j]])
    F = (f.reshape(d * M, n) @ linear.T).reshape(d, M, 1 + d)
    W = (w @ quadratic.T).T
    F0, F1 = F[..., 0], jnp.moveaxis(F[..., 1:], 2, 1)
    second = jnp.zeros((d, d, M), f.dtype).at[i, j].set(W[1 + d :]).at[j, i].set(W[1 + d :])

    # Minus the quadratic p(ξ) = f_qᵀQ⁻¹f_L − ½f_LᵀQ⁻¹f_L: E[pξ] = p₁, E[pξξᵀ] − E[p]I = 2P₂.
    QF0, QF1 = matvec(Qi, F0), matmul(Qi, F1)
    F1_t, cross = transpose(F1), matmul(transpose(a), QF1)
    w1 = W[1 : 1 + d] - (matvec(transpose(a), QF0) + matvec(transpose(QF1), c - F0))
    w2 = second - W[0] * blocks.eye_like(second) - (cross + transpose(cross) - matmul(F1_t, QF1))

    A = matmul(F1, L_inv)
    Gamma = -matmul(L_invT, matmul(w2, L_inv))
    ell = matvec(L_invT, w1) + matvec(Gamma, m)
    # E‖x₊ − x − Δf‖²_{Q⁻¹} = tr Q⁻¹(S₊ − UUᵀ) + Δ²(E‖f_q‖² − 2E[w̃]), w̃ the part of w summed over the nodes
    spread = blocks.trace(matmul(Qi, q.S[..., 1:] - matmul(U, transpose(U))))
    fq2 = (c * matvec(Qi, c)).sum(0) + (a * matmul(Qi, a)).sum((0, 1))
    value = -0.5 * spread / gaps - 0.5 * gaps * (fq2 - 2.0 * W[0])
    return DriftExpectations(Linearisation(A, F0 - matvec(A, m)), DenseSites(ell, Gamma), value)
