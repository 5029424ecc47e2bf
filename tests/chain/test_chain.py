"""The chain layer against dense Gaussian algebra in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import assert_close, assert_gaussian, dense_natural, random_chain, split_dense
from tolerances import TOLERANCES

from girsanov._core.compile import compiled
from girsanov.chain import blocks, conversion, divergence, moments, natural, sampling, smoother, transitions
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain

ENGINES = ("sequential", "partitioned")
DIMS, SIZES = (1, 2, 3, 5), (1, 2, 3, 10, 37)
LOG_2PI = np.log(2.0 * np.pi)


@pytest.fixture(autouse=True, scope="module")
def _float64():
    with jax.enable_x64(True):
        yield


# One compiled program for every function and shape.
SMOOTH = {name: compiled(lambda chain, name=name: smoother.smooth(chain, name)) for name in ENGINES}
to_natural = compiled(conversion.to_natural)
expectations = compiled(moments.expectations)
kl = compiled(divergence.kl)
log_partition = compiled(divergence.log_partition)
gradient = compiled(jax.grad(divergence.log_partition))


def dense(chain: NaturalChain) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Joint mean, covariance and precision."""
    h, P = dense_natural(chain)
    cov = np.linalg.inv(P)
    return cov @ h, cov, P


def time_first(q: Moments) -> tuple[np.ndarray, ...]:
    return tuple(np.moveaxis(np.asarray(a), -1, 0) for a in (q.m, q.S, q.C))


def assert_same_chain(got: NaturalChain, wanted: NaturalChain, tolerance: str) -> None:
    assert_close(got.h, wanted.h, tolerance, "h")
    assert_close(got.J, wanted.J, tolerance, "J")
    assert_close(got.K, wanted.K, tolerance, "K", size=wanted.J)  # couplings may be zero


def dense_expectations(chain: NaturalChain) -> tuple[np.ndarray, ...]:
    """E x_m (N, d), E x_m x_mᵀ (N, d, d) and E x_{m+1} x_mᵀ (N − 1, d, d)."""
    mean, cov, _ = dense(chain)
    return split_dense(mean, cov + np.outer(mean, mean), chain.h.shape[0])


# Shapes are few, so that compiled programs are shared; the numbers in them are free.
@st.composite
def chains(draw, count: int = 1):
    d, N = draw(st.sampled_from([(1, 1), (1, 4), (2, 3)]))
    seed = draw(st.integers(0, 2**32 - 1))
    coupling = draw(st.floats(0.0, 3.0))
    rng = np.random.default_rng(seed)
    made = tuple(random_chain(rng, d, N, coupling) for _ in range(count))
    return made if count > 1 else made[0]


# --- small blocks


@pytest.mark.parametrize("d", [1, 2, 3, 4, 6])
def test_blocks_agree_with_linear_algebra(d):
    rng = np.random.default_rng(d)
    B = rng.normal(size=(7, d, d))
    A = B @ np.swapaxes(B, 1, 2) + 0.1 * np.eye(d)
    L = np.linalg.cholesky(A)

    @compiled
    def run(a, low):
        alone = blocks.inverse(a[..., 0])[0]
        return *blocks.inverse(a), blocks.cholesky(a), blocks.inverse_lower(low), alone

    inverse, pivots, factor, low_inverse, alone = run(np.moveaxis(A, 0, -1), np.moveaxis(L, 0, -1))
    assert_close(np.moveaxis(inverse, -1, 0), np.linalg.inv(A), "exact", "inverse")
    assert_close(np.asarray(pivots).T, np.diagonal(L, axis1=1, axis2=2) ** 2, "exact", "pivots")
    assert_close(np.moveaxis(factor, -1, 0), L, "exact", "cholesky")
    assert_close(np.moveaxis(low_inverse, -1, 0), np.linalg.inv(L), "exact", "inverse of L")
    assert_close(alone, np.linalg.inv(A[0]), "exact", "a block without lanes")


@pytest.mark.parametrize("d", [1, 2, 3, 4, 6])
def test_pivots_tell_an_indefinite_block(d):
    rng = np.random.default_rng(d)
    U = np.linalg.qr(rng.normal(size=(d, d)))[0]
    eigenvalues = np.ones(d)
    eigenvalues[-1] = -0.5
    _, pivots = compiled(blocks.inverse)(U * eigenvalues @ U.T)
    assert not (np.asarray(pivots) > 0).all()


# --- natural parameters


@pytest.mark.parametrize("d", [1, 3])
def test_to_dense_is_the_exponent(d):
    rng = np.random.default_rng(d)
    N = 6
    chain = random_chain(rng, d, N)
    x = rng.normal(size=(N, d))
    h, J, K = (np.moveaxis(a, -1, 0) for a in (chain.h, chain.J, chain.K))
    wanted = sum(h[m] @ x[m] - 0.5 * x[m] @ J[m] @ x[m] for m in range(N))
    wanted -= sum(x[m + 1] @ K[m] @ x[m] for m in range(N - 1))
    flat = x.ravel()
    for vector, P in (natural.to_dense(chain), dense_natural(chain)):  # the library's and the one of these tests
        vector, P = np.asarray(vector), np.asarray(P)
        assert_close(flat @ vector - 0.5 * flat @ P @ flat, wanted, "exact")
        assert np.array_equal(P, P.T)


def test_a_sum_of_chains_is_a_product_of_densities():
    rng = np.random.default_rng(0)
    a, b = random_chain(rng, 2, 4), random_chain(rng, 2, 4)
    for got, sign in ((2.0 * a + b, 1.0), (a * 2.0 - b, -1.0)):
        for g, x, y in zip(dense_natural(got), dense_natural(a), dense_natural(b), strict=True):
            assert_close(g, 2.0 * x + sign * y, "exact")


def test_forms_do_not_mix():
    chain = random_chain(np.random.default_rng(0), 2, 4)
    q = SMOOTH["sequential"](chain).moments
    with pytest.raises((AttributeError, TypeError)):
        _ = chain + q


def test_linear_chain_is_its_transition_model():
    rng = np.random.default_rng(1)
    d, N = 2, 4
    T, c = rng.normal(size=(N - 1, d, d)), rng.normal(size=(N - 1, d))
    B = rng.normal(size=(N, d, d))
    noise = B @ np.swapaxes(B, 1, 2) + np.eye(d)
    mean = [rng.normal(size=d)]
    cov = np.zeros((N, d, N, d))
    cov[0, :, 0] = noise[0]
    for m in range(N - 1):
        mean.append(T[m] @ mean[m] + c[m])
        for j in range(m + 1):
            cov[m + 1, :, j] = T[m] @ cov[m, :, j]
            cov[j, :, m + 1] = cov[m + 1, :, j].T
        cov[m + 1, :, m + 1] = T[m] @ cov[m, :, m] @ T[m].T + noise[m + 1]
    last = [jnp.asarray(np.moveaxis(a, 0, -1)) for a in (T, c, np.linalg.inv(noise[1:]))]
    chain = compiled(conversion.linear_chain)(*last, jnp.asarray(mean[0]), jnp.asarray(np.linalg.inv(noise[0])))
    joint_mean, joint_cov, _ = dense(chain)
    assert_close(joint_mean, np.concatenate(mean), "exact", "mean")
    assert_close(joint_cov, cov.reshape(N * d, N * d), "exact", "cov")


# --- the smoothers


@pytest.mark.parametrize("N", SIZES)
@pytest.mark.parametrize("d", DIMS)
def test_smoothers_equal_the_dense_inverse_and_each_other(d, N):
    chain = random_chain(np.random.default_rng(100 * d + N), d, N)
    mean, cov, P = dense(chain)
    wanted = split_dense(mean, cov, d)
    results = {}
    for engine in ENGINES:
        s = SMOOTH[engine](chain)
        assert bool(s.ok)
        assert_gaussian(time_first(s.moments), wanted, "exact", engine)
        assert_close(s.log_det, np.linalg.slogdet(P)[1], "exact", f"{engine} log det")
        results[engine] = s
    assert_gaussian(*(time_first(results[e].moments) for e in ENGINES), "exact", "engines")


@pytest.mark.parametrize("lanes", [1, 2, 5, 9, 10])
def test_any_number_of_segments_gives_the_same_moments(lanes):
    chain = random_chain(np.random.default_rng(7), 2, 10)
    mean, cov, P = dense(chain)
    s = compiled(lambda c: smoother.partitioned(c, lanes))(chain)
    assert_gaussian(time_first(s.moments), split_dense(mean, cov, 2), "exact")
    assert_close(s.log_det, np.linalg.slogdet(P)[1], "exact", "log det")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("d", [1, 3])
def test_ok_is_false_where_the_chain_is_not_a_density(d, engine):
    rng = np.random.default_rng(3)
    good = random_chain(rng, d, 10)
    assert bool(SMOOTH[engine](good).ok)
    for m in (0, 4, 9):  # one block with a negative direction
        J = good.J.copy()
        J[:, :, m] -= 1.5 * np.linalg.eigvalsh(J[:, :, m])[-1] * np.eye(d)
        assert not bool(SMOOTH[engine](NaturalChain(good.h, J, good.K)).ok)
    # Every block positive definite, the whole not: a coupling stronger than both of its ends.
    for m in (0, 5, 8):
        K = good.K.copy()
        K[:, :, m] = 3.0 * np.abs(good.J).max() * np.eye(d)
        chain = NaturalChain(good.h, good.J, K)
        assert np.linalg.eigvalsh(dense_natural(chain)[1])[0] < 0
        assert not bool(SMOOTH[engine](chain).ok)
    for bad in (np.nan, np.inf):
        J = good.J.copy()
        J[0, 0, 4] = bad
        assert not bool(SMOOTH[engine](NaturalChain(good.h, J, good.K)).ok)


def test_engine_auto_partitions_long_chains_and_gives_the_same(monkeypatch):
    monkeypatch.setitem(smoother._PARTITION_FROM, 1, 20)
    short, long = (random_chain(np.random.default_rng(5), 1, N) for N in (19, 20))
    assert smoother._engine(short, "auto", {}) is smoother.sequential
    assert smoother._engine(long, "auto", {}) is smoother.partitioned
    a, b = compiled(lambda chain: smoother.smooth(chain))(long), SMOOTH["sequential"](long)
    assert_gaussian(time_first(a.moments), time_first(b.moments), "exact")


# --- round trips


@pytest.mark.parametrize(("d", "N"), [(1, 1), (1, 37), (2, 10), (3, 3), (5, 10)])
def test_natural_to_moments_and_back(d, N):
    chain = random_chain(np.random.default_rng(d + N), d, N)
    for engine in ENGINES:
        assert_same_chain(to_natural(SMOOTH[engine](chain).moments), chain, "roundtrip")


@given(chain=chains())
def test_round_trip_of_random_chains(chain):
    q = SMOOTH["sequential"](chain).moments
    back = to_natural(q)
    assert_same_chain(back, chain, "roundtrip")
    again = SMOOTH["sequential"](back).moments
    assert_gaussian(time_first(again), time_first(q), "roundtrip")


@given(chain=chains())
def test_central_moments_undo_expectations(chain):
    q = SMOOTH["sequential"](chain).moments
    back = moments.central(moments.expectations(q))
    second = dense_expectations(chain)[1]  # of which the squares of the means are subtracted again
    assert_close(back.m, q.m, "roundtrip", "m")
    assert_close(back.S, q.S, "roundtrip", "S", size=second)
    assert_close(back.C, q.C, "roundtrip", "C", size=second)


@given(chain=chains())
def test_expectations_are_those_of_the_joint(chain):
    mu = expectations(SMOOTH["sequential"](chain).moments)
    got = (np.moveaxis(np.asarray(a), -1, 0) for a in (mu.first, mu.second, mu.cross))
    wanted = dense_expectations(chain)
    for name, a, b in zip(("first", "second", "cross"), got, wanted, strict=True):
        assert_close(a, b, "exact", name, size=wanted[0] if name == "first" else wanted[1])


# --- entropy, log partition, divergence


@pytest.mark.parametrize(("d", "N"), [(1, 1), (2, 10), (3, 3)])
def test_entropy_and_log_partition_equal_dense(d, N):
    chain = random_chain(np.random.default_rng(11), d, N)
    mean, _, P = dense(chain)
    log_det = np.linalg.slogdet(P)[1]
    size = d * N
    for engine in ENGINES:
        s = SMOOTH[engine](chain)
        assert_close(divergence.entropy(size, s.log_det), 0.5 * (size * (1 + LOG_2PI) - log_det), "exact", "entropy")
    wanted = 0.5 * (mean @ P @ mean - log_det + size * LOG_2PI)
    assert_close(log_partition(chain), wanted, "exact", "log partition")


def dense_kl(q: NaturalChain, p: NaturalChain) -> float:
    (m_q, S_q, _), (m_p, _, P_p) = dense(q), dense(p)
    e = m_q - m_p
    log_dets = np.linalg.slogdet(P_p)[1] + np.linalg.slogdet(S_q)[1]
    return 0.5 * (np.trace(P_p @ S_q) + e @ P_p @ e - len(e) - log_dets)


@given(pair=chains(count=2))
def test_kl_equals_dense_and_is_not_negative(pair):
    q, p = pair
    got = float(kl(q, p))
    assert_close(got, dense_kl(q, p), "exact")
    assert got > 0.0  # two draws are never the same chain


@given(chain=chains())
def test_kl_of_a_chain_with_itself_is_zero(chain):
    assert_close(kl(chain, chain), 0.0, "exact", size=chain.h.size)  # the sum of as many terms of order one


@given(chain=chains(), size=st.floats(1e-3, 0.2))
def test_kl_to_a_neighbour_is_not_negative(chain, size):
    near = NaturalChain(chain.h * (1.0 + size), chain.J * (1.0 + size), chain.K * (1.0 - size))
    got, wanted = float(kl(chain, near)), dense_kl(chain, near)
    # As little as 1e-7 nats are what terms of order one, as many as there are states, leave of each other.
    assert_close(got, wanted, "exact", size=[chain.h.size, wanted])
    assert got >= -TOLERANCES["exact"]


# --- geometry: μ = ∇A(η) and F = ∂μ/∂η


@given(chain=chains())
def test_gradient_of_log_partition_is_the_expectation_parameters(chain):
    """∂A/∂h = E x, ∂A/∂J = −½ E xxᵀ (symmetrised: only one triangle of J is read), ∂A/∂K = −E x₊xᵀ."""
    h, J, K = (np.moveaxis(np.asarray(a), -1, 0) for a in jax.tree.leaves(gradient(chain)))
    first, second, cross = dense_expectations(chain)
    assert_close(h, first, "exact", "first")
    assert_close(0.5 * (J + np.swapaxes(J, 1, 2)), -0.5 * second, "exact", "second")
    assert_close(K, -cross, "exact", "cross", size=second)


def random_direction(rng: np.random.Generator, chain: NaturalChain) -> NaturalChain:
    h, J, K = (rng.normal(size=a.shape) for a in (chain.h, chain.J, chain.K))
    return NaturalChain(h, 0.5 * (J + np.swapaxes(J, 0, 1)), K)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("d", "N"), [(1, 10), (3, 3), (2, 10)])
def test_tangent_equals_central_differences(d, N, engine):
    rng = np.random.default_rng(d)
    chain = random_chain(rng, d, N)
    direction = random_direction(rng, chain)
    got = compiled(lambda c, v: smoother.tangent(c, v, engine))(chain, direction)
    eps = 1e-5
    up, down = (expectations(SMOOTH[engine](chain + s * direction).moments) for s in (eps, -eps))
    for name in ("first", "second", "cross"):
        wanted = (getattr(up, name) - getattr(down, name)) / (2.0 * eps)
        assert_close(getattr(got, name), wanted, "gradient", name)


def test_fisher_matrix_is_symmetric_and_positive():
    rng = np.random.default_rng(9)
    chain = random_chain(rng, 2, 3)
    u, v = random_direction(rng, chain), random_direction(rng, chain)
    tangent = compiled(smoother.tangent)
    F_u, F_v = tangent(chain, u), tangent(chain, v)
    assert_close(natural.inner(u, F_v), natural.inner(v, F_u), "exact")
    assert float(natural.inner(u, F_u)) > 0.0


@given(chain=chains())
def test_inner_product_is_the_expected_exponent(chain):
    """⟨η, μ⟩ = hᵀE[x] − ½ tr(P E[xxᵀ]) in dense terms."""
    mean, cov, P = dense(chain)
    h = dense_natural(chain)[0]
    wanted = h @ mean - 0.5 * np.trace(P @ (cov + np.outer(mean, mean)))
    mu = expectations(SMOOTH["sequential"](chain).moments)
    assert_close(natural.inner(chain, mu), wanted, "exact")


# --- sampling


def correlated_chain(N: int) -> NaturalChain:
    """x₊ = T x + N(0, 0.2 I) from x₀ ~ N(0, I), T a rotation by 0.6 times 0.9, and potentials for the means."""
    T, W = 0.9 * np.array([[np.cos(0.6), -np.sin(0.6)], [np.sin(0.6), np.cos(0.6)]]), 5.0 * np.eye(2)
    J = np.stack([np.eye(2) * (m == 0) + W * (m > 0) + T.T @ W @ T * (m < N - 1) for m in range(N)], -1)
    h = np.random.default_rng(13).normal(size=(2, N))
    return NaturalChain(h, J, np.repeat(-(W @ T)[:, :, None], N - 1, -1))


@compiled
def draw_paths(m, chain: NaturalChain, key, n: int):
    return sampling.sample(m, transitions.transitions(chain), key, n)


@pytest.mark.parametrize("N", [1, 6])
def test_samples_have_the_moments_of_the_joint(N):
    chain, d = correlated_chain(N), 2
    mean, cov, _ = dense(chain)
    n = 40_000
    q = SMOOTH["sequential"](chain).moments
    paths = np.asarray(draw_paths(q.m, chain, jax.random.key(0), n))
    assert paths.shape == (n, N, d)
    assert paths.dtype == np.float64
    flat = paths.reshape(n, N * d)
    se_mean = np.sqrt(np.diag(cov) / n)
    assert (np.abs(flat.mean(0) - mean) < TOLERANCES["standard_errors"] * se_mean).all()
    # of all pairs of states, lag one and beyond: var of a sample covariance is (S_ii S_jj + S_ij²)/n
    se_cov = np.sqrt((np.outer(np.diag(cov), np.diag(cov)) + cov**2) / n)
    assert (np.abs(np.cov(flat.T).reshape(cov.shape) - cov) < TOLERANCES["standard_errors"] * se_cov).all()


def test_samples_follow_the_key():
    chain = correlated_chain(6)
    q = SMOOTH["sequential"](chain).moments
    a, b, c = (np.asarray(draw_paths(q.m, chain, jax.random.key(k), 3)) for k in (1, 1, 2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
