"""log E p(y | z) for z ~ N(mean, V), with entries of y that are independent given z: the oracle of the scores.

Gaussian entries have a closed form. A Student-t is a mixture of Gaussians over a precision λ_j of each entry, so that
the integral over z is closed and the one over log λ is smooth. For the others z is written as mean + L u with L lower
triangular. The last entry depends on the earlier ones through its conditional mean alone: its integral is a function of
one number, which is tabulated. What is left has at most two dimensions.
"""

from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.special import expit, gammaln, logsumexp

from fuzz.cases import NoOracle
from fuzz.densities import Numbers, log_density

_MIXTURE = {1: 4000, 2: 600, 3: 110}  # points of log λ an entry, by dimension
_TABLE = 500  # points of the last entry's table
_ZOOMS = 4
_DROP = 45.0  # nats below its largest value at which an integrand is nothing


def log_predictive(kind: str, numbers: Numbers, y: np.ndarray, mean: np.ndarray, V: np.ndarray) -> float:
    """The log density of y, all of whose entries are there; parameters are scalars or have an entry each."""
    numbers = {
        k: np.broadcast_to(np.asarray(v, dtype=np.float64), y.shape if k != "df" else ()) for k, v in numbers.items()
    }
    if kind == "Gaussian":
        return float(_gaussian(y - mean, V[None] + np.diag(numbers["variance"]))[0])
    if kind == "StudentT":
        return _student(y - mean, V, numbers["scale"], float(numbers["df"]))
    coarse, fine = (_nested(kind, numbers, y, mean, V, refine) for refine in (1.0, 1.5))
    if not abs(fine - coarse) < 1e-4:
        raise NoOracle(f"two spacings give {coarse!r} and {fine!r}")
    return fine


def _gaussian(e: np.ndarray, V: np.ndarray) -> np.ndarray:
    """log N(e; 0, V_n) for many V."""
    solved = np.linalg.solve(V, np.broadcast_to(e, V.shape[:2])[..., None])[..., 0]
    return -0.5 * (solved @ e + np.linalg.slogdet(V)[1] + len(e) * np.log(2 * np.pi))


def _student(e: np.ndarray, V: np.ndarray, scale: np.ndarray, df: float) -> float:
    """Precisions λ ~ Gamma(df/2, df/2) of each entry; trapezoidal rule in log λ, where both tails fall exponentially.

    The range ends where the prior of λ, λ^{df/2} below and e^{−λ df/2} above, has fallen by e⁻⁴⁵.
    """
    D = len(e)
    # A residual of r scales asks for λ as small as r⁻²; below, the prior of λ falls as λ^{df/2}.
    far = np.log1p(np.max(e**2 / (scale**2 + np.diag(V))))
    low, high = -far - 2 * _DROP / (df + 1) - np.log(df), np.log(2 * _DROP / df + 10)
    v = np.linspace(low, high, _MIXTURE[D])
    prior = 0.5 * df * (v - np.exp(v)) + 0.5 * df * np.log(0.5 * df)
    prior = prior - gammaln(0.5 * df) + np.log(v[1] - v[0])
    axes = np.meshgrid(*[np.arange(len(v))] * D, indexing="ij")
    index = np.stack([a.ravel() for a in axes], 1)
    noise = scale**2 * np.exp(-v[index])
    total = prior[index].sum(1)
    parts = []
    for k in range(0, len(index), 100_000):
        W = V[None] + noise[k : k + 100_000, :, None] * np.eye(D)
        parts.append(logsumexp(total[k : k + 100_000] + _gaussian(e, W)))
    return float(logsumexp(parts))


def _nested(kind: str, numbers: Any, y: np.ndarray, mean: np.ndarray, V: np.ndarray, refine: float) -> float:
    """The integral over u of Π p(y_j | z_j), the last entry by a table, the rest on a grid that follows the mass."""
    D, L = len(y), _lower(V)

    def entry(j: int, z: np.ndarray) -> np.ndarray:
        return log_density(kind, {k: v[j] for k, v in numbers.items()}, y[j], z)

    reading = np.log(np.maximum(y, 0.05) / numbers["exposure"]) if kind == "Poisson" else np.full(D, np.nan)
    if D == 1:
        return float(_last(entry, 0, mean[:1], L[0, 0], reading[0], refine)[0])
    top = _mode(kind, numbers, y, mean, L)
    reach = np.sqrt(V[-1, -1])
    centres = mean[-1] + L[-1, :-1] @ top[:-1] + np.linspace(-12, 12, int(_TABLE * refine)) * reach
    table = CubicSpline(centres, _last(entry, D - 1, centres, L[-1, -1], reading[-1], refine))

    def log_integrand(u: np.ndarray) -> np.ndarray:  # (n, D − 1)
        z = mean + u @ L[:, :-1].T
        value = -0.5 * (u**2).sum(1) - 0.5 * (D - 1) * np.log(2 * np.pi)
        value += sum(entry(j, z[:, j]) for j in range(D - 1))
        inside = (z[:, -1] >= centres[0]) & (z[:, -1] <= centres[-1])
        return np.where(inside, value + table(np.clip(z[:, -1], centres[0], centres[-1])), -np.inf)

    return _follow(log_integrand, top[:-1], int({1: 1501, 2: 251}[D - 1] * refine) | 1)


def _mode(kind: str, numbers: Any, y: np.ndarray, mean: np.ndarray, L: np.ndarray) -> np.ndarray:
    """The u at which N(u; 0, I) Π p(y_j | z_j), which is log-concave, is largest: Newton's method with halved steps."""

    def value(u):
        return -0.5 * u @ u + log_density(kind, numbers, y, mean + L @ u).sum()

    u = np.zeros(len(y))
    for _ in range(200):
        z = mean + L @ u
        rate = np.exp(z) * numbers["exposure"] if kind == "Poisson" else expit(z)
        slope, curvature = y - rate, rate if kind == "Poisson" else rate * (1 - rate)
        step = np.linalg.solve(np.eye(len(y)) + L.T @ (curvature[:, None] * L), L.T @ slope - u)
        while not value(u + step) >= value(u) and np.abs(step).max() > 1e-12:
            step = step / 2
        u = u + step
        if np.abs(step).max() < 1e-9:
            break
    return u


def _lower(V: np.ndarray) -> np.ndarray:
    """Lower triangular L with LLᵀ = V, which may be singular."""
    e, U = np.linalg.eigh(V)
    R = np.linalg.qr((U * np.sqrt(np.maximum(e, 0.0))).T)[1]
    return (R * np.where(np.diag(R) < 0, -1.0, 1.0)[:, None]).T


def _last(entry: Any, j: int, centres: np.ndarray, sd: float, reading: float, refine: float) -> np.ndarray:
    """log ∫ p(y_j | c + sd·u) N(u; 0, 1) du for every centre c.

    The top of the integrand lies between u = 0 and the u that gives y_j's own reading of z. Without a reading the slope
    of log p is at most one, and the top within sd of zero.
    """
    if sd <= 0:
        return entry(j, centres)
    n = int(601 * refine) | 1
    far = np.full(len(centres), sd) if np.isnan(reading) else (reading - centres) / sd
    low, high = -12.0 - np.abs(np.minimum(far, 0.0)), 12.0 + np.maximum(far, 0.0)
    low = low - sd if np.isnan(reading) else low
    for k in range(_ZOOMS):
        u = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, n)
        values = entry(j, centres[:, None] + sd * u) - 0.5 * u**2
        step = (high - low) / (n - 1)
        if k == _ZOOMS - 1:
            break
        # The part within _DROP nats of the top, and a point more on either side: both factors are log-concave.
        seen = values > values.max(1, keepdims=True) - _DROP
        first, final = seen.argmax(1), n - 1 - seen[:, ::-1].argmax(1)
        rows = np.arange(len(centres))
        low, high = u[rows, np.maximum(first - 1, 0)], u[rows, np.minimum(final + 1, n - 1)]
    return logsumexp(values, axis=1) + np.log(step) - 0.5 * np.log(2 * np.pi)


def _follow(log_integrand: Any, centre: np.ndarray, n: int) -> float:
    """∫ of a log-concave function about its top: a grid in the coordinates of its own mean and covariance."""
    k = len(centre)
    root, half = np.eye(k), 12.0
    for step in range(_ZOOMS + 2):
        side = np.linspace(-half, half, n)
        v = np.stack([a.ravel() for a in np.meshgrid(*[side] * k, indexing="ij")], 1)
        u = centre + v @ root.T
        values = log_integrand(u)
        out = logsumexp(values) + k * np.log(side[1] - side[0]) + np.linalg.slogdet(root)[1]
        if step == _ZOOMS + 1:
            break
        w = np.exp(values - values.max())
        w /= w.sum()
        centre = w @ u
        cov = (u - centre).T @ ((u - centre) * w[:, None])
        cell = (side[1] - side[0]) ** 2 * root @ root.T  # a peak between two points is no narrower than their distance
        root, half = np.linalg.cholesky(cov + 0.25 * cell), 14.0
    return float(out)
