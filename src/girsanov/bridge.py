"""Marginals between two nodes: the bridge of the locally linear process."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._precision import float64
from girsanov.chain.matrix_functions import linear_transition
from girsanov.chain.moments import Moments
from girsanov.sites import Linearisation, Time


def bridge(
    q: Moments,
    base: Linearisation,
    Q: np.ndarray,
    nodes: np.ndarray,
    times: Float[np.ndarray, " n"],
    time: Time = "discrete",
) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "n d d"]]:
    """Mean and covariance of x(t) under q at any times within the grid.

    Between t_m and t_{m+1} the path is the linear process dx = (A x + b) dt + L dβ tied to both ends. With
    x_t | x_m ~ N(T₁x_m + c₁, W₁⁻¹) and x_{m+1} | x_t ~ N(T₂x_t + c₂, W₂⁻¹), the state between them is
        x_t = G₁ x_m + G₂ x_{m+1} + g + ε,  Cov ε = P⁻¹,  P = W₁ + T₂ᵀW₂T₂,
        G₁ = P⁻¹W₁T₁,  G₂ = P⁻¹T₂ᵀW₂,  g = P⁻¹(W₁c₁ − T₂ᵀW₂c₂),
    and the two ends have the joint moments of the chain.
    """
    mean, cov = (np.moveaxis(np.asarray(a), -1, 0) for a in (q.m, q.S))
    m = np.clip(np.searchsorted(nodes, times, side="right") - 1, 0, max(len(nodes) - 2, 0))
    out_mean, out_cov = np.empty((len(times), mean.shape[1])), np.empty((len(times), *cov.shape[1:]))
    on_left = times <= nodes[m]
    on_right = ~on_left & (times >= nodes[np.minimum(m + 1, len(nodes) - 1)])
    for at, index in ((on_left, m), (on_right, m + 1)):
        out_mean[at], out_cov[at] = mean[index[at]], cov[index[at]]
    inside = ~(on_left | on_right)
    if not inside.any():
        return out_mean, out_cov
    m, t = m[inside], times[inside]
    A, b = (np.moveaxis(np.asarray(a)[..., m], -1, 0) for a in (base.A, base.b))
    C = np.moveaxis(np.asarray(q.C)[..., m], -1, 0)
    s, u = t - nodes[m], nodes[m + 1] - t
    T1, c1, W1 = _transition(A, b, Q, s, time)
    T2, c2, W2 = _transition(A, b, Q, u, time)
    T2W2 = np.swapaxes(T2, 1, 2) @ W2
    P_inv = np.linalg.inv(W1 + T2W2 @ T2)
    G1, G2 = P_inv @ W1 @ T1, P_inv @ T2W2
    g = np.einsum("nij,nj->ni", P_inv @ W1, c1) - np.einsum("nij,nj->ni", G2, c2)
    out_mean[inside] = np.einsum("nij,nj->ni", G1, mean[m]) + np.einsum("nij,nj->ni", G2, mean[m + 1]) + g
    G1t, G2t = np.swapaxes(G1, 1, 2), np.swapaxes(G2, 1, 2)
    cross = G2 @ C @ G1t
    out_cov[inside] = P_inv + G1 @ cov[m] @ G1t + G2 @ cov[m + 1] @ G2t + cross + np.swapaxes(cross, 1, 2)
    return out_mean, out_cov


@float64
def _transition(A: np.ndarray, b: np.ndarray, Q: np.ndarray, gap: np.ndarray, time: Time) -> tuple:
    """x₊ | x ~ N(Tx + c, W⁻¹) over each gap, by Euler–Maruyama or exactly."""
    if time == "continuous":
        lanes = linear_transition(jnp.moveaxis(A, 0, -1), jnp.asarray(b.T), jnp.asarray(Q), jnp.asarray(gap))
        T, c, Sigma = (np.moveaxis(np.asarray(a), -1, 0) for a in lanes)
        return T, c, np.linalg.inv(Sigma)
    eye, wide = np.eye(A.shape[-1]), gap[:, None, None]
    return eye + wide * A, gap[:, None] * b, np.linalg.inv(Q) / wide
