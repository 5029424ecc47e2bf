"""The evidence bound of a scalar Gaussian Markov q, from its moments alone, with quadrature of its own."""

from collections.abc import Callable

import numpy as np

_NODES = 4001  # a trapezoidal rule over ±12 sds: every density below is wider than its spacing
_U = np.linspace(-12.0, 12.0, _NODES)
_W = np.exp(-0.5 * _U**2)
_W /= _W.sum()


def bound(
    m: np.ndarray,
    S: np.ndarray,
    C: np.ndarray,
    drift: Callable[[np.ndarray], np.ndarray],
    Q: float,
    m0: float,
    P0: float,
    times: np.ndarray,
    factors: dict[int, Callable[[np.ndarray], np.ndarray]],
) -> float:
    """E_q log p(x, y) + H[q] for q with means m, variances S (N,) and lag-one covariances C (N − 1,)."""
    gaps = np.diff(times)
    x = m[:, None] + np.sqrt(S)[:, None] * _U
    slope = C / S[:-1]  # E[x₊ | x] = m₊ + slope (x − m)
    residual = m[1:, None] + slope[:, None] * (x[:-1] - m[:-1, None]) - x[:-1] - gaps[:, None] * drift(x[:-1])
    rest = S[1:] - slope * C  # Var(x₊ | x)
    steps = (residual**2) @ _W + rest
    out = -0.5 * (steps / (gaps * Q) + np.log(2 * np.pi * gaps * Q)).sum()
    out -= 0.5 * (((m[0] - m0) ** 2 + S[0]) / P0 + np.log(2 * np.pi * P0))
    out += sum(_W @ factor(x[k]) for k, factor in factors.items())
    return float(out + 0.5 * np.log(2 * np.pi * np.e * np.append(S[0], rest)).sum())


def possible_gain(
    m: np.ndarray, S: np.ndarray, C: np.ndarray, rng: np.random.Generator, at: Callable[..., float], tries: int = 8
) -> float:
    """By how many nats q can be improved along random directions, from slope and curvature there; at an optimum, none.

    The directions move the means smoothly, or all variances and covariances in proportion, which keeps q a density.
    """
    N, best, middle = len(m), 0.0, at(m, S, C)
    u = np.linspace(0, 1, N)
    for k in range(tries):
        if k < tries - 1:
            wave = np.sin(np.pi * rng.integers(1, 12) * u + rng.uniform(0, 6.3)) * np.sqrt(S)
            up, down = (at(m + e * wave, S, C) for e in (1e-2, -1e-2))
        else:
            up, down = (at(m, S * (1 + e), C * (1 + e)) for e in (1e-2, -1e-2))
        slope, curvature = (up - down) / 2e-2, -(up + down - 2 * middle) / 1e-4
        gain = slope**2 / (2 * curvature) if curvature > 0 else np.inf
        best = max(best, gain)
    return best
