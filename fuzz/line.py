"""The exact answer for scalar states: the forward–backward recursion on one uniform fine grid of states.

The sums are trapezoidal rules of smooth functions that vanish at both ends, so the error falls faster than any power of
the spacing; `smoother` runs twice and says by how much the evidence moved.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from fuzz.cases import NoOracle

_SPACING = 0.4  # in sds of the narrowest transition or observation
_EDGE = 1e-13  # share of the largest density that the ends of the range may have
_WIDENINGS = 25
_MOST = 4000  # points: a kernel of so many takes 128 MB


@dataclasses.dataclass(frozen=True)
class Line:
    evidence: float
    error: float  # of the evidence, as its change with the spacing
    mean: np.ndarray  # (N,)
    std: np.ndarray


def smoother(
    drift: Callable[[np.ndarray], np.ndarray],
    Q: float,
    m0: float,
    P0: float,
    times: np.ndarray,
    factors: dict[int, Callable[[np.ndarray], np.ndarray]],
    width: float,
    start: tuple[float, float],
) -> Line:
    """The posterior of x₊ = x + Δf(x) + N(0, ΔQ), x_0 ~ N(m0, P0), with log likelihoods `factors` by node.

    - width: the sd of the narrowest likelihood, as far as there is one.
    - start: a first guess of the range of states, widened until the density vanishes at its ends.
    """
    narrow = min(np.sqrt(Q * np.diff(times).min()), width, np.sqrt(P0))
    lo, hi = start
    for _ in range(_WIDENINGS):
        coarse = _solve(drift, Q, m0, P0, times, factors, lo, hi, _SPACING * narrow)
        if coarse is not None and coarse[3][0] < _EDGE and coarse[3][1] < _EDGE:
            break
        below, above = (1.0, 1.0) if coarse is None else np.array(coarse[3]) >= _EDGE
        step = 0.2 * (hi - lo)
        lo, hi = lo - step * below, hi + step * above
    else:
        raise NoOracle("the density does not vanish at the ends of any range tried")
    fine = _solve(drift, Q, m0, P0, times, factors, lo, hi, _SPACING * narrow / 1.4)
    evidence, mean, std, _ = fine
    return Line(evidence, abs(evidence - coarse[0]), mean, std)


def _solve(drift, Q, m0, P0, times, factors, lo, hi, spacing):
    """Evidence, means, sds, and the density at either end as a share of the largest; None where all vanishes."""
    n = int(np.ceil((hi - lo) / spacing)) + 1
    if n > _MOST:
        raise NoOracle(f"{n} points would be needed")
    x = np.linspace(lo, hi, n)
    h, gaps = x[1] - x[0], [float(f"{gap:.12g}") for gap in np.diff(times)]  # equal but for rounding: one kernel
    log_f = np.zeros((len(times), n))
    for k, factor in factors.items():
        log_f[k] = factor(x)
    top = log_f.max(1)
    f = np.exp(log_f - top[:, None])
    kernels = {g: _kernel(x, drift, g, Q) * h for g in set(gaps)}
    a = np.exp(-0.5 * (x - m0) ** 2 / P0) / np.sqrt(2 * np.pi * P0) * f[0]
    forward, evidence = [], top.sum()
    for k in range(len(times)):
        if k:
            a = (a @ kernels[gaps[k - 1]]) * f[k]
        total = a.sum() * h
        if not (np.isfinite(total) and total > 0):
            return None
        evidence += np.log(total)
        a = a / total
        forward.append(a)
    b, mean, std, edge = np.ones(n), np.zeros(len(times)), np.zeros(len(times)), np.zeros(2)
    for k in range(len(times) - 1, -1, -1):
        if k < len(times) - 1:
            b = kernels[gaps[k]] @ (b * f[k + 1])
            b = b / b.max()
        p = forward[k] * b
        p = p / p.sum()
        mean[k] = p @ x
        std[k] = np.sqrt(p @ (x - mean[k]) ** 2)
        edge = np.maximum(edge, p[[0, -1]] / p.max())
    return float(evidence), mean, std, edge


def _kernel(x: np.ndarray, drift: Callable, gap: float, Q: float) -> np.ndarray:
    """p(x_j | x_i), row i."""
    var = gap * Q
    centre = x + gap * drift(x)
    return np.exp(-0.5 * (x[None, :] - centre[:, None]) ** 2 / var) / np.sqrt(2 * np.pi * var)
