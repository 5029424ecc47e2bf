"""A Kalman smoother in NumPy for linear models with inputs and impulses, which shares no code with the library."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import expm


class Linear(NamedTuple):
    """dx = (A x + b + B u(t)) dt + L dβ, with jumps B a at impulses, y = H x + e; x(t₀) ~ N(m0, P0) before any jump.

    `u` returns u(t) from the right, and `u_left` from the left; `impulses` maps times to amounts a of shape (m,).
    """

    A: np.ndarray
    b: np.ndarray
    B: np.ndarray
    Q: np.ndarray
    m0: np.ndarray
    P0: np.ndarray
    H: np.ndarray
    R: np.ndarray
    u: Callable
    u_left: Callable
    impulses: dict


class Smoothed(NamedTuple):
    """Means and covariances at the nodes, and the log evidence."""

    mean: np.ndarray
    cov: np.ndarray
    log_evidence: float


def _step(model: Linear, t: float, gap: float, exact: bool):
    """Return F, c, S of one step: exact, by matrix exponentials, with inputs that are linear over it; or Euler's."""
    d = len(model.b)
    first, last = model.b + model.B @ model.u(t), model.b + model.B @ model.u_left(t + gap)
    if not exact:
        return np.eye(d) + gap * model.A, gap * first, gap * model.Q
    pair = np.block([[-model.A, model.Q], [np.zeros((d, d)), model.A.T]])
    E = expm(pair * gap)
    F = E[d:, d:].T
    # (x, 1, s) with ds = 1 dt: the drift is A x + first + s (last − first)/gap
    big = np.zeros((d + 2, d + 2))
    big[:d, :d], big[:d, d], big[:d, d + 1], big[d + 1, d] = model.A, first, (last - first) / gap, 1.0
    return F, expm(big * gap)[:d, d], F @ E[:d, d:]


def kalman(model: Linear, nodes: np.ndarray, t: np.ndarray, y: np.ndarray, exact: bool) -> Smoothed:
    """Smooth observations y, (n, D), at times t, which are nodes; NaN is missing."""
    means, covs, ahead, ahead_cov, steps, total = [], [], [], [], [], 0.0
    x, P = model.m0, model.P0
    for k, node in enumerate(nodes):
        if k:
            F, c, S = _step(model, nodes[k - 1], node - nodes[k - 1], exact)
            x, P = F @ x + c, F @ P @ F.T + S
            steps.append(F)
        for at, amount in model.impulses.items():
            if abs(at - node) < 1e-12:
                x = x + model.B @ amount
        ahead.append(x)
        ahead_cov.append(P)
        for i in np.flatnonzero(np.abs(t - node) < 1e-12):
            seen = ~np.isnan(y[i])
            H, R = model.H[seen], model.R[np.ix_(seen, seen)]
            e, V = y[i][seen] - H @ x, H @ P @ H.T + R
            total -= 0.5 * (e @ np.linalg.solve(V, e) + np.linalg.slogdet(2.0 * np.pi * V)[1])
            K = np.linalg.solve(V, H @ P).T
            x, P = x + K @ e, P - K @ V @ K.T
        means.append(x)
        covs.append(P)
    for k in range(len(nodes) - 2, -1, -1):
        G = np.linalg.solve(ahead_cov[k + 1], steps[k] @ covs[k]).T
        means[k] = means[k] + G @ (means[k + 1] - ahead[k + 1])
        covs[k] = covs[k] + G @ (covs[k + 1] - ahead_cov[k + 1]) @ G.T
    return Smoothed(np.array(means), np.array(covs), total)
