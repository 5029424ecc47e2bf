"""Marginals between two nodes: the bridge of the locally linear process."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._compile import compiled
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
    C = np.moveaxis(np.asarray(q.C)[..., m], -1, 0)
    s, u = t - nodes[m], nodes[m + 1] - t
    (T1, c1, W1), (T2, c2, W2) = (_exact if time == "continuous" else _euler)(base, Q, m, s, u)
    T2W2 = np.swapaxes(T2, 1, 2) @ W2
    P_inv = np.linalg.inv(W1 + T2W2 @ T2)
    G1, G2 = P_inv @ W1 @ T1, P_inv @ T2W2
    g = np.einsum("nij,nj->ni", P_inv @ W1, c1) - np.einsum("nij,nj->ni", G2, c2)
    out_mean[inside] = np.einsum("nij,nj->ni", G1, mean[m]) + np.einsum("nij,nj->ni", G2, mean[m + 1]) + g
    G1t, G2t = np.swapaxes(G1, 1, 2), np.swapaxes(G2, 1, 2)
    cross = G2 @ C @ G1t
    out_cov[inside] = P_inv + G1 @ cov[m] @ G1t + G2 @ cov[m + 1] @ G2t + cross + np.swapaxes(cross, 1, 2)
    return out_mean, out_cov


def _euler(base: Linearisation, Q: np.ndarray, m: np.ndarray, s: np.ndarray, u: np.ndarray) -> tuple[tuple, tuple]:
    """x₊ | x ~ N(Tx + c, W⁻¹) from the node to the time, over s, and on to the next node, over u: Euler–Maruyama."""
    A, b = (np.moveaxis(np.asarray(a)[..., m], -1, 0) for a in (base.A, base.b))
    eye, Q_inv = np.eye(A.shape[-1]), np.linalg.inv(Q)
    before, after = ((eye + g[:, None, None] * A, g[:, None] * b, Q_inv / g[:, None, None]) for g in (s, u))
    return before, after


@float64
def _exact(base: Linearisation, Q: np.ndarray, m: np.ndarray, s: np.ndarray, u: np.ndarray) -> tuple[tuple, tuple]:
    """The same for the SDE itself, its drift linear in time between the nodes."""
    lanes = _exact_lanes(base[m], base[m + 1], Q, s, u)
    before, after = (tuple(np.moveaxis(np.asarray(a), -1, 0) for a in half) for half in lanes)
    return (*before[:2], np.linalg.inv(before[2])), (*after[:2], np.linalg.inv(after[2]))


@compiled
def _exact_lanes(left: Linearisation, right: Linearisation, Q, s, u):
    w = s / (s + u)
    A, b = (1.0 - w) * left.A + w * right.A, (1.0 - w) * left.b + w * right.b
    return (
        linear_transition((left.A, A), (left.b, b), jnp.asarray(Q), s),
        linear_transition((A, right.A), (b, right.b), jnp.asarray(Q), u),
    )
