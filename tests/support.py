"""What several test modules need: comparisons, random chains, and dense Gaussians written in NumPy."""

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from tolerances import TOLERANCES

from girsanov.chain.natural import NaturalChain
from girsanov.data.grid import Grid
from girsanov.data.on_grid import on_grid
from girsanov.inference.objective import Posed


def assert_close(got: Any, wanted: Any, tolerance: str, what: str = "", size: Any = None) -> None:
    """|got − wanted| ≤ tolerance · size, where the size is the largest entry of `wanted` unless it is given.

    It has no lower limit: a variance of 1e-7 is compared to as many digits as one of order one. Where zero is wanted,
    or a difference of larger numbers, `size` says how large those are.
    """
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, wanted {wanted.shape}"
    assert np.isfinite(got).all(), f"{what}: not finite"
    if wanted.size == 0:
        return
    error, scale = np.abs(got - wanted).max(), np.abs(wanted if size is None else size).max()
    assert error <= TOLERANCES[tolerance] * scale, (
        f"{what}: off by {error:.3g}, allowed {TOLERANCES[tolerance]:g}·{scale:.3g}"
    )


def pose(model: Any, series: Any, grid: Grid, rule: Any, capacity: int = 0) -> Posed:
    """The model and the data on a grid, padded to the grid's capacity or a larger one."""
    return Posed(model, on_grid(series, grid, max(grid.capacity, capacity)), rule)


def assert_gaussian(got: Sequence[Any], wanted: Sequence[Any], tolerance: str, what: str = "") -> None:
    """Means (N, d), covariances (N, d, d) and, where wanted, lag-one covariances (N − 1, d, d), node by node.

    Errors are measured by the standard deviations that are wanted at that node, so that a node where the state is
    known sharply counts as much as one where it is not.
    """
    sd = np.sqrt(np.diagonal(wanted[1], axis1=-2, axis2=-1))
    sizes = (sd, sd[:, :, None] * sd[:, None, :], sd[1:, :, None] * sd[:-1, None, :])
    names = ("mean", "cov", "lag-one cov")
    assert len(got) == len(wanted)
    for name, a, b, size in zip(names, got, wanted, sizes):  # noqa: B905, the last is not always wanted
        assert np.shape(a) == np.shape(b), f"{what} {name}: shape {np.shape(a)}, wanted {np.shape(b)}"
        assert_close(a / size, b / size, tolerance, f"{what} {name}, in standard deviations", size=1.0)


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


def composed(post: Any, transition: Any = None) -> dict[str, np.ndarray]:
    """The natural parameters h, J, K that the target sites of a posterior add up to, node by node in NumPy.

    In discrete time the base has Euler's transitions; otherwise `transition(m)` gives Φ, c and Σ of step m, and the
    dense sites have the weight of half an interval at both its ends.
    """
    target, initial, Q = post.target, post.model.initial_state(), np.asarray(post.model.diffusion)
    d, gaps = len(Q), np.diff(post.times)
    h, J, K = np.zeros((d, len(gaps) + 1)), np.zeros((d, d, len(gaps) + 1)), np.zeros((d, d, len(gaps)))
    J[..., 0] = np.linalg.inv(initial.cov)
    h[:, 0] = J[..., 0] @ np.asarray(initial.mean)
    for m, gap in enumerate(gaps):
        A, b = target.base.A[..., m], target.base.b[:, m]
        T, c, V = (np.eye(d) + gap * A, gap * b, gap * Q) if transition is None else transition(m)
        W = np.linalg.inv(V)
        h[:, m] -= T.T @ W @ c
        h[:, m + 1] += W @ c
        J[..., m] += T.T @ W @ T
        J[..., m + 1] += W
        K[..., m] = -W @ T
        ends = [(m, gap, target.dense)]
        if target.right is not None:
            ends = [(m, 0.5 * gap, target.dense), (m + 1, 0.5 * gap, target.right)]
        for node, weight, sites in ends:
            h[:, node] += weight * sites.potential[:, m]
            J[..., node] += weight * sites.precision[..., m]
    for i, node in enumerate(post.node):
        h[:, node] += target.data.potential[:, i]
        J[..., node] += target.data.precision[..., i]
    return {"h": h, "J": J, "K": K}


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
    # (I − GH)P(I − GH)ᵀ + GRGᵀ instead of P − GHP: of a sharp observation the difference would keep few digits.
    left = np.eye(len(mean)) - gain @ big
    return mean + gain @ e, left @ cov @ left.T + gain @ noise @ gain.T, float(evidence)


def bridge_by_precisions(first: Sequence, second: Sequence, ends: Sequence, inverse: Any = np.linalg.inv) -> tuple:
    """Mean and covariance of x_t between two nodes whose joint moments are `ends`, (m, S, m₊, S₊, Cov(x₊, x)).

    x_t | x ~ N(T₁x + c₁, V₁) and x₊ | x_t ~ N(T₂x_t + c₂, V₂) are `first` and `second`. Given both ends x_t has the
    precision V₁⁻¹ + T₂ᵀV₂⁻¹T₂: nothing is subtracted, however near a node the time is.
    """
    (T1, c1, V1), (T2, c2, V2), (m, S, m_next, S_next, C) = first, second, ends
    W1, W2 = inverse(V1), inverse(V2)
    P_inv = inverse(W1 + T2.T @ W2 @ T2)
    G1, G2 = P_inv @ W1 @ T1, P_inv @ T2.T @ W2
    mean = G1 @ m + G2 @ m_next + P_inv @ (W1 @ c1 - T2.T @ W2 @ c2)
    cross = G2 @ C @ G1.T
    return mean, P_inv + G1 @ S @ G1.T + G2 @ S_next @ G2.T + cross + cross.T


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
    assert_compiles_nothing(*others)


def assert_compiles_nothing(*calls):
    with count_compilations() as made:
        jax.jit(lambda x: x + 1.0)(0.0)  # a function that nobody has compiled
    assert len(made) > 0, "the counter does not count"
    for call in calls:
        with count_compilations() as made:
            call()
        assert len(made) == 0


def ou_log_likelihood(series, dt, end, decay, diffusion, *, noise, variance):
    """The log likelihood of Euler's steps of an OU process by a Kalman filter, for arrays of parameters of one shape.

    The state starts at time zero with mean zero and this variance; observations lie on multiples of dt.
    """
    y = dict(zip(np.round(series.times / dt).astype(int).tolist(), series.values[:, 0].tolist(), strict=True))
    decay, diffusion = np.broadcast_arrays(np.asarray(decay, float), np.asarray(diffusion, float))
    m, P, total = np.zeros_like(decay), variance * np.ones_like(decay), np.zeros_like(decay)
    for n in range(1, round(end / dt) + 1):
        a = 1.0 - dt * decay
        m, P = a * m, a * a * P + dt * diffusion
        if n in y and np.isfinite(y[n]):
            S = P + noise
            total = total - 0.5 * ((y[n] - m) ** 2 / S + np.log(2.0 * np.pi * S))
            m, P = m + P / S * (y[n] - m), P * noise / S
    return total
