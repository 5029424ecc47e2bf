"""The exact answer for linear-Gaussian chains: Kalman filter and Rauch–Tung–Striebel smoother in 150 digits.

Matrices are those of FLINT (`python-flint`), a hundred times faster than plain mpmath. They carry error bounds, which
grow far faster over a long recursion than the errors themselves do: every step keeps the middle alone, so this is
floating-point arithmetic of 500 bits. Of these, scales from 1e-12 to 1e12 in covariances use up some 50 digits. Inputs
are float64 numbers and are taken exactly as they are.
"""

import dataclasses
import itertools
from typing import Any

import numpy as np
from flint import arb, arb_mat, ctx

BITS = 500


@dataclasses.dataclass(frozen=True)
class Exact:
    """The exact posterior of a chain, rounded to float64 at the end.

    - mean, tail: (N, d); their sum is the mean to some 30 digits, since an offset may be far larger than the sd.
    - std: (N, d); lag: Cov(x_{m+1}, x_m), (N − 1, d, d).
    - condition: see `smoother`.
    """

    mean: np.ndarray
    tail: np.ndarray
    std: np.ndarray
    lag: np.ndarray
    evidence: float
    condition: float


def matrix(a: Any) -> arb_mat:
    """A float64 matrix (or a vector, as a column), exactly."""
    a = np.asarray(a, dtype=np.float64)
    a = a[:, None] if a.ndim == 1 else a
    return arb_mat(*a.shape, [arb(float(v)) for v in a.ravel()])


def identity(d: int) -> arb_mat:
    return matrix(np.eye(d))


def _floats(a: arb_mat) -> np.ndarray:
    return np.array([float(v.mid()) for v in a.entries()]).reshape(a.nrows(), a.ncols())


def _symmetric(a: arb_mat) -> arb_mat:
    return ((a + a.transpose()) / 2).mid()


def euler_steps(A: Any, b: Any, Q: Any, times: np.ndarray) -> list[tuple[arb_mat, arb_mat, arb_mat]]:
    """x₊ = F x + c + N(0, W) with F = I + ΔA, c = Δb, W = ΔQ, a step of the grid each."""
    A, b, Q, eye = matrix(A), matrix(b), matrix(Q), identity(len(A))
    gaps = [arb(float(t1)) - arb(float(t0)) for t0, t1 in itertools.pairwise(times)]
    return [((eye + A * gap).mid(), (b * gap).mid(), (Q * gap).mid()) for gap in gaps]


def exact_steps(A: Any, b: Any, Q: Any, times: np.ndarray) -> list[tuple[arb_mat, arb_mat, arb_mat]]:
    """The transitions of the SDE itself, by the matrix exponential of Van Loan (1978), with b as a further state."""
    d = len(A)
    drift = np.zeros((d + 1, d + 1))
    drift[:d, :d], drift[:d, d] = A, b
    pair = np.zeros((2 * d, 2 * d))
    pair[:d, :d], pair[:d, d:], pair[d:, d:] = -np.asarray(A), Q, np.asarray(A).T
    drift, pair, steps = matrix(drift), matrix(pair), []
    for t0, t1 in itertools.pairwise(times):
        gap = arb(float(t1)) - arb(float(t0))
        whole, both = (drift * gap).exp().mid(), (pair * gap).exp().mid()
        F = _block(whole, 0, d, 0, d)
        steps.append((F, _block(whole, 0, d, d, d + 1), _symmetric(F * _block(both, 0, d, d, 2 * d))))
    return steps


def _block(a: arb_mat, r0: int, r1: int, c0: int, c1: int) -> arb_mat:
    return arb_mat(r1 - r0, c1 - c0, [a[i, j] for i in range(r0, r1) for j in range(c0, c1)])


def smoother(
    A: Any, b: Any, Q: Any, mean: Any, cov: Any, H: Any, R: Any, times: Any, node: Any, y: Any, time: str = "discrete"
) -> Exact:
    """The posterior of x(t) at `times` given y_i = H x_{node i} + N(0, R), NaN where missing.

    - time: "discrete" for x₊ = x + Δ(Ax + b) + N(0, ΔQ), "continuous" for the SDE's own transitions.

    `condition` is max_i Λ_ii Σ_ii, where Λ is the posterior precision of all states and Σ its inverse. With Λ scaled to
    a unit diagonal this is the largest entry of the diagonal of its inverse, thus no more than its condition number κ.
    Nor is it much less: the scaled Λ is block tridiagonal with a unit diagonal, so its eigenvalues are at most 2d,
    those of the inverse at most its trace, and κ ≤ 2d · Nd · condition.
    """
    before, ctx.prec = ctx.prec, BITS
    try:
        steps = (euler_steps if time == "discrete" else exact_steps)(A, b, Q, np.asarray(times))
        data = _observations(H, R, node, np.asarray(y, dtype=np.float64))
        predicted, filtered, evidence = _forward(steps, matrix(mean), matrix(cov), data)
        return _backward(steps, predicted, filtered, evidence, _precisions(steps, matrix(cov), data))
    finally:
        ctx.prec = before


def _observations(H: Any, R: Any, node: Any, y: np.ndarray) -> dict[int, tuple[arb_mat, arb_mat, arb_mat]]:
    """By node: the observed values and their rows of H and R."""
    H, R = np.asarray(H), np.asarray(R)
    seen = {int(m): ~np.isnan(v) for m, v in zip(node, y, strict=True)}
    values = {int(m): v for m, v in zip(node, y, strict=True)}
    return {m: (matrix(values[m][s]), matrix(H[s]), matrix(R[np.ix_(s, s)])) for m, s in seen.items() if s.any()}


def _forward(steps, m, P, data):
    """Predicted and filtered moments of every node, and the log evidence."""
    predicted, filtered, evidence = [], [], arb(0)
    for k in range(len(steps) + 1):
        if k > 0:
            F, c, W = steps[k - 1]
            m, P = (F * m + c).mid(), _symmetric(F * P * F.transpose() + W)
        predicted.append((m, P))
        if k in data:
            y, H, R = data[k]
            V, e = _symmetric(H * P * H.transpose() + R), y - H * m
            PH = P * H.transpose()
            gain = V.solve(PH.transpose()).transpose().mid()
            evidence -= ((e.transpose() * V.solve(e))[0, 0] + V.det().log() + y.nrows() * (2 * arb.pi()).log()) / 2
            evidence = evidence.mid()
            m, P = (m + gain * e).mid(), _symmetric(P - gain * PH.transpose())
        filtered.append((m, P))
    return predicted, filtered, evidence


def _backward(steps, predicted, filtered, evidence, precisions) -> Exact:
    m, P = filtered[-1]
    means, covs, lags = [m], [P], []
    for k in range(len(steps) - 1, -1, -1):
        (m_f, P_f), (m_p, P_p) = filtered[k], predicted[k + 1]
        gain = P_p.solve(steps[k][0] * P_f).transpose().mid()
        lags.append((P * gain.transpose()).mid())
        m = (m_f + gain * (m - m_p)).mid()
        P = _symmetric(P_f + gain * (P - P_p) * gain.transpose())
        means.append(m)
        covs.append(P)
    means, covs, lags = means[::-1], covs[::-1], lags[::-1]
    d = m.nrows()
    head = [_floats(m)[:, 0] for m in means]
    tail = [_floats(m - matrix(h))[:, 0] for m, h in zip(means, head, strict=True)]
    variances = [[P[i, i] for i in range(d)] for P in covs]
    std = np.array([[float(v.sqrt().mid()) for v in row] for row in variances])
    condition = max(
        float((L[i, i] * row[i]).mid()) for L, row in zip(precisions, variances, strict=True) for i in range(d)
    )
    lag = np.array([_floats(C) for C in lags]).reshape(-1, d, d)
    return Exact(np.array(head), np.array(tail), std, lag, float(evidence.mid()), condition)


def _precisions(steps, P0: arb_mat, data) -> list[arb_mat]:
    """Diagonal blocks of the posterior precision of all states."""
    blocks = [P0.inv().mid()]
    for F, _, W in steps:
        W_inv = W.inv().mid()
        blocks[-1] = (blocks[-1] + F.transpose() * W_inv * F).mid()
        blocks.append(W_inv)
    for k, (_, H, R) in data.items():
        blocks[k] = (blocks[k] + H.transpose() * R.inv() * H).mid()
    return blocks
