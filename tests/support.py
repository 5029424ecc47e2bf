"""What several test modules need: comparisons, random chains, and dense Gaussians written in NumPy."""

import contextlib
from typing import Any

import jax
import numpy as np
from tolerances import TOLERANCES

from girsanov.chain.natural import NaturalChain


def assert_close(got: Any, wanted: Any, tolerance: str, what: str = "") -> None:
    """|got − wanted| ≤ tolerance · max(1, |wanted|), with the largest entry of `wanted` as its size."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, wanted {wanted.shape}"
    assert np.isfinite(got).all(), f"{what}: not finite"
    if wanted.size == 0:
        return
    error, scale = np.abs(got - wanted).max(), max(1.0, np.abs(wanted).max())
    assert error <= TOLERANCES[tolerance] * scale, (
        f"{what}: off by {error:.3g}, allowed {TOLERANCES[tolerance]:g}·{scale:.3g}"
    )


def random_chain(rng: np.random.Generator, d: int, N: int, coupling: float = 1.0) -> NaturalChain:
    """A chain with full blocks: every J_m outweighs its neighbours K, so that the precision is positive definite."""
    K = coupling * rng.normal(size=(N - 1, d, d))
    size = np.linalg.norm(K, ord=2, axis=(1, 2)) if N > 1 else np.zeros(0)
    weight = 0.3 + np.append(size, 0.0) + np.append(0.0, size)
    B = rng.normal(size=(N, d, d))
    J = B @ np.swapaxes(B, 1, 2) / d + weight[:, None, None] * np.eye(d)
    h = 2.0 * rng.normal(size=(N, d))
    return NaturalChain(*(np.moveaxis(a, 0, -1).copy() for a in (h, J, K)))


def dense_natural(chain: NaturalChain) -> tuple[np.ndarray, np.ndarray]:
    """Potential vector and precision matrix of the joint state."""
    h, J, K = (np.moveaxis(np.asarray(a), -1, 0) for a in (chain.h, chain.J, chain.K))
    N, d = h.shape
    P = np.zeros((N, d, N, d))
    for m in range(N):
        P[m, :, m] = J[m]
    for m in range(N - 1):
        P[m + 1, :, m], P[m, :, m + 1] = K[m], K[m].T
    return h.ravel(), P.reshape(N * d, N * d)


def split_dense(mean: np.ndarray, cov: np.ndarray, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Joint mean (N·d,) and covariance as m (N, d), S (N, d, d) and C (N − 1, d, d), C_m = Cov(x_{m+1}, x_m)."""
    N = len(mean) // d
    blocks = cov.reshape(N, d, N, d)
    S = np.stack([blocks[m, :, m] for m in range(N)])
    C = np.stack([blocks[m + 1, :, m] for m in range(N - 1)]) if N > 1 else np.zeros((0, d, d))
    return mean.reshape(N, d), S, C


def linear_joint(A: Any, b: Any, Q: Any, mean: Any, cov: Any, times: Any) -> tuple[np.ndarray, np.ndarray]:
    """Joint mean and covariance of the Euler chain x₊ = x + Δ(A_m x + b_m) + N(0, ΔQ); A (M, d, d), b (M, d)."""
    gaps, d, N = np.diff(times), len(mean), len(times)
    m, P = [np.asarray(mean)], np.zeros((N, d, N, d))
    P[0, :, 0] = cov
    for k, gap in enumerate(gaps):
        T = np.eye(d) + gap * A[k]
        m.append(T @ m[k] + gap * b[k])
        for j in range(k + 1):
            P[k + 1, :, j] = T @ P[k, :, j]
            P[j, :, k + 1] = P[k + 1, :, j].T
        P[k + 1, :, k + 1] = T @ P[k, :, k] @ T.T + gap * Q
    return np.concatenate(m), P.reshape(N * d, N * d)


def condition(
    mean: np.ndarray, cov: np.ndarray, H: np.ndarray, R: np.ndarray, node: Any, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean, covariance and log evidence of a joint Gaussian given y_i = H x_{node i} + N(0, R); NaN is missing."""
    D, d = H.shape
    big, noise = np.zeros((len(y) * D, len(mean))), np.kron(np.eye(len(y)), R)
    for i, m in enumerate(node):
        big[i * D : (i + 1) * D, m * d : (m + 1) * d] = H
    keep = ~np.isnan(y.ravel())
    big, noise, data = big[keep], noise[np.ix_(keep, keep)], y.ravel()[keep]
    V = big @ cov @ big.T + noise
    gain = np.linalg.solve(V, big @ cov).T
    e = data - big @ mean
    evidence = -0.5 * (e @ np.linalg.solve(V, e) + np.linalg.slogdet(2 * np.pi * V)[1])
    return mean + gain @ e, cov - gain @ big @ cov, float(evidence)


@contextlib.contextmanager
def count_compilations():
    """How many programs the compiler made inside the block."""
    made = []

    def listen(event: str, seconds: float, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            made.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield made
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def assert_compiles_once(first, *others):
    with count_compilations() as made:
        first()
    assert len(made) > 0, "the counter does not count"
    for other in others:
        with count_compilations() as made:
            other()
        assert len(made) == 0
