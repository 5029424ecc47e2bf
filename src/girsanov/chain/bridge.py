"""Marginals of a Gaussian Markov process between the nodes of its grid, by the bridge of a linear SDE."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov.chain.linear_sde import Linearisation, Time, linear_transition
from girsanov.chain.moments import Moments


def bridge(
    q: Moments,
    base: Linearisation,
    Q: np.ndarray,
    nodes: np.ndarray,
    times: Float[np.ndarray, " n"],
    time: Time = "discrete",
) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "n d d"]]:
    """Return mean and covariance of x(t) under the chain q at any times within the grid.

    Between the nodes t_m and t_{m+1} the path is the linear process dx = (A x + b) dt + L dβ, with LLᵀ = Q, conditioned
    on both ends. `base` holds A and b: one pair per step if `time` is "discrete", one pair per node if it is
    "continuous". With
    x_t | x_m ~ N(T₁x_m + c₁, Σ₁) and x_{m+1} | x_t ~ N(T₂x_t + c₂, Σ₂), the state between them is
        x_t = D(T₁x_m + c₁) + G(x_{m+1} − c₂) + ε,  G = Σ₁T₂ᵀ(T₂Σ₁T₂ᵀ + Σ₂)⁻¹,  D = I − GT₂,  Cov ε = DΣ₁Dᵀ + GΣ₂Gᵀ,
    and the two ends have the joint moments of the chain. Only the covariance of the whole gap is inverted, and no
    covariance is a difference of two others, so the result is accurate even next to a node.
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
    (T1, c1, V1), (T2, c2, V2) = (_exact if time == "continuous" else _euler)(base, Q, m, s, u)
    T2t = np.swapaxes(T2, 1, 2)
    G = np.swapaxes(_solve(T2 @ V1 @ T2t + V2, T2 @ V1), 1, 2)
    D = np.eye(Q.shape[0]) - G @ T2
    before = np.einsum("nij,nj->ni", T1, mean[m]) + c1
    surprise = mean[m + 1] - c2 - np.einsum("nij,nj->ni", T2, before)
    out_mean[inside] = before + np.einsum("nij,nj->ni", G, surprise)
    D1 = D @ T1
    cross = G @ C @ np.swapaxes(D1, 1, 2)
    parts = ((D, V1), (G, V2), (D1, cov[m]), (G, cov[m + 1]))
    out_cov[inside] = sum(a @ b @ np.swapaxes(a, 1, 2) for a, b in parts) + cross + np.swapaxes(cross, 1, 2)
    return out_mean, out_cov


def _solve(V: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return V⁻¹B for positive-definite V, after scaling V to a unit diagonal."""
    unit = 1.0 / np.sqrt(np.einsum("nii->ni", V))
    return unit[:, :, None] * np.linalg.solve(V * unit[:, :, None] * unit[:, None, :], unit[:, :, None] * B)


def _euler(base: Linearisation, Q: np.ndarray, m: np.ndarray, s: np.ndarray, u: np.ndarray) -> tuple[tuple, tuple]:
    """Return (T, c, Σ) of two Euler–Maruyama transitions x₊ | x ~ N(Tx + c, Σ).

    The first leads over s from the node before to the time, the second over u from the time to the next node.
    """
    A, b = (np.moveaxis(np.asarray(a)[..., m], -1, 0) for a in (base.A, base.b))
    before, after = ((np.eye(A.shape[-1]) + _by(g, A), g[:, None] * b, _by(g, Q[None])) for g in (s, u))
    return before, after


def _by(g: np.ndarray, a: np.ndarray) -> np.ndarray:
    return g[:, None, None] * a


@float64
def _exact(base: Linearisation, Q: np.ndarray, m: np.ndarray, s: np.ndarray, u: np.ndarray) -> tuple[tuple, tuple]:
    """Return the two transitions of `_euler` for the SDE in continuous time, with A and b linear between the nodes."""
    lanes = _exact_lanes(base.at_left[m], base.at_right[m], Q, s, u)
    before, after = (tuple(np.moveaxis(np.asarray(a), -1, 0) for a in half) for half in lanes)
    return before, after


@compiled
def _exact_lanes(left: Linearisation, right: Linearisation, Q, s, u):
    w = s / (s + u)
    A, b = (1.0 - w) * left.A + w * right.A, (1.0 - w) * left.b + w * right.b
    return (
        linear_transition((left.A, A), (left.b, b), jnp.asarray(Q), s),
        linear_transition((A, right.A), (b, right.b), jnp.asarray(Q), u),
    )
