"""Linear models with Gaussian noise: inference is dense Gaussian conditioning, and the bound is the log evidence."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, assert_gaussian, condition, linear_joint, split_dense
from tolerances import TOLERANCES

import girsanov as gv

ENGINES = ("sequential", "partitioned")
GRID = np.array([-0.4, -0.35, -0.1, 0.0, 0.02, 0.3, 0.55, 0.6, 0.95, 1.0, 1.3])
NODE = np.array([0, 3, 4, 8, 10])  # observations on the first and the last node, and close together


def spd(rng: np.random.Generator, d: int, scale: float = 1.0) -> np.ndarray:
    B = rng.normal(size=(d, d))
    return scale * (B @ B.T / d + 0.3 * np.eye(d))


class Linear:
    """A linear model with full matrices, its data, and the dense answer."""

    def __init__(self, d, *, H=None, R=None, grid=GRID, node=NODE, missing=(), seed=0):
        rng = np.random.default_rng(seed + d)
        self.A, self.b = -0.5 * np.eye(d) + 0.7 * rng.normal(size=(d, d)), rng.normal(size=d)
        self.Q, self.P0, self.m0 = spd(rng, d), spd(rng, d, 0.5), 3.0 * rng.normal(size=d)
        self.H = np.eye(d) if H is None else np.asarray(H)
        D = len(self.H)
        self.R = 0.2 * np.eye(D) if R is None else np.asarray(R)
        self.grid, self.node = grid, node
        self.y = 2.0 * rng.normal(size=(len(node), D))
        for i, j in missing:
            self.y[i, j] = np.nan

    def dense(self):
        M, d = len(self.grid) - 1, len(self.m0)
        A, b = np.broadcast_to(self.A, (M, d, d)), np.broadcast_to(self.b, (M, d))
        mean, cov, evidence = condition(
            *linear_joint(A, b, self.Q, self.m0, self.P0, self.grid), self.H, self.R, self.node, self.y
        )
        return *split_dense(mean, cov, d), evidence

    @property
    def series(self):
        return gv.TimeSeries(self.grid[self.node], self.y)

    def model(self, drift=None):
        likelihood = gv.likelihoods.Gaussian(self.R)
        initial = gv.GaussianState(self.m0, self.P0)
        return gv.Model(drift or gv.Linear(self.A, self.b), self.Q, initial, likelihood, self.H)


def assert_is_dense(post, wanted):
    *moments, evidence = wanted
    assert post.converged
    assert_gaussian((post.mean, post.cov, post.lag_cov), moments, "exact")
    assert_close(post.elbo, evidence, "exact", "evidence")


def method(d: int, engine: str) -> gv.CVIDP:
    """The default algorithm; mirror descent, also exact here, where the two-level smoother would compile for long."""
    return gv.CVIDP(rho=1.0 if engine == "partitioned" and d > 2 else None, engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("d", [1, 2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_full_matrices_and_irregular_gaps(d, engine):
    problem = Linear(d)
    post = gv.infer(problem.model(), problem.series, grid=GRID, method=method(d, engine))
    assert np.array_equal(post.times, GRID)
    assert_is_dense(post, problem.dense())


@pytest.mark.parametrize("seed", range(1, 6))
def test_other_numbers_of_the_same_shapes(seed):
    """Random initial means, drifts and data: the compiled program of the test above serves them all."""
    problem = Linear(2, seed=100 * seed)
    post = gv.infer(problem.model(), problem.series, grid=GRID, method=method(2, "sequential"))
    assert_is_dense(post, problem.dense())


CORRELATED = np.array([[0.3, 0.15], [0.15, 0.2]])
PARTLY_OBSERVED = {
    "fewer outputs than states": Linear(3, H=[[1.0, 0.5, 0.0], [0.0, -1.0, 2.0]], R=CORRELATED),
    "rank one with two rows": Linear(3, H=[[1.0, 0.5, -1.0], [2.0, 1.0, -2.0]], R=CORRELATED),
    "more outputs than states": Linear(2, H=[[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]], R=spd(np.random.default_rng(9), 3)),
    "one output": Linear(2, H=[[1.0, 0.0]], R=[[0.1]]),
    "missing entries": Linear(2, R=CORRELATED, missing=[(0, 0), (1, 0), (1, 1), (3, 1)]),
    "missing and partly observed": Linear(
        3, H=[[1.0, 0.5, 0.0], [0.0, -1.0, 2.0]], R=CORRELATED, missing=[(2, 1), (4, 0)]
    ),
}


@pytest.mark.parametrize("name", PARTLY_OBSERVED)
def test_partly_observed_states(name):
    problem = PARTLY_OBSERVED[name]
    post = gv.infer(problem.model(), problem.series, grid=GRID, method=method(2, "sequential"))
    assert_is_dense(post, problem.dense())


@pytest.mark.parametrize(
    ("N", "d", "engine"), [(1, 2, "sequential"), (1, 1, "partitioned"), (2, 1, "sequential"), (2, 2, "partitioned")]
)
def test_one_and_two_nodes(N, d, engine):
    """One observation with no span is a chain of one node; two observations a step apart are a chain of two."""
    problem = Linear(d, grid=np.array([0.3, 0.4])[:N], node=np.arange(N))
    post = gv.infer(problem.model(), problem.series, dt=0.1, method=method(d, engine))
    assert post.times.shape == (N,)
    assert_is_dense(post, problem.dense())


def test_start_from_a_single_node():
    """A posterior of one node is a start like any other, also for a longer grid."""
    problem = Linear(1, node=np.array([5]))
    alone = gv.infer(problem.model(), problem.series, dt=0.1, method=method(1, "partitioned"))
    post = gv.infer(problem.model(), problem.series, grid=GRID, start=alone)
    assert_is_dense(post, problem.dense())


def test_regular_grid_is_the_union_with_the_observation_times():
    times = np.array([0.013, 0.5, 0.777])  # one of them on the regular grid, two off it
    grid = np.sort(np.concatenate([np.linspace(0.0, 1.0, 11), [0.013, 0.777]]))
    problem = Linear(1, grid=grid, node=np.searchsorted(grid, times))
    post = gv.infer(problem.model(), gv.TimeSeries(times, problem.y), dt=0.1, span=(0.0, 1.0))
    assert_close(post.times, grid, "exact", "grid")
    assert np.isin(times, post.times).all()  # never moved, not even by rounding
    assert_is_dense(post, problem.dense())


def test_linear_drift_that_depends_on_time():
    problem = Linear(1)

    def drift(x, t):
        return jnp.cos(t) * (problem.A @ x) + t * problem.b

    t = GRID[:-1]
    joint = linear_joint(
        np.cos(t)[:, None, None] * problem.A, t[:, None] * problem.b, problem.Q, problem.m0, problem.P0, GRID
    )
    mean, cov, evidence = condition(*joint, problem.H, problem.R, NODE, problem.y)
    post = gv.infer(problem.model(drift), problem.series, grid=GRID)
    assert_is_dense(post, (*split_dense(mean, cov, 1), evidence))


def test_stationary_start_and_diagonal_noise():
    """x(t₀) from the stationary law of the drift; a variance of shape (D,) is the diagonal of R."""
    R = np.array([0.3, 0.05])
    problem = Linear(2, R=np.diag(R))
    A, b = np.array([[-1.0, 0.4], [-0.6, -0.5]]), np.array([0.3, -0.2])
    # vec(P) solves (A⊗I + I⊗A) vec(P) = −vec(Q)
    P = np.linalg.solve(np.kron(A, np.eye(2)) + np.kron(np.eye(2), A), -problem.Q.ravel()).reshape(2, 2)
    problem.A, problem.b, problem.P0, problem.m0 = A, b, P, -np.linalg.solve(A, b)
    model = gv.Model(gv.Linear(A, b), problem.Q, "stationary", gv.likelihoods.Gaussian(R))
    assert_is_dense(gv.infer(model, problem.series, grid=GRID), problem.dense())


@pytest.mark.slow
def test_ten_dimensions_are_ten_times_one():
    """Independent coordinates: the sum of the evidences, and the same marginals, with the default rule for d = 10."""
    rng = np.random.default_rng(0)
    decay, noise = rng.uniform(0.5, 2.0, 10), rng.uniform(0.1, 1.0, 10)
    y, grid = rng.normal(size=(3, 10)), np.linspace(0.0, 1.0, 6)
    series = gv.TimeSeries(grid[[1, 3, 5]], y)
    model = gv.Model(gv.OrnsteinUhlenbeck(decay), noise, "stationary", gv.likelihoods.Gaussian(0.1))
    post = gv.infer(model, series, grid=grid, method=gv.CVIDP(rho=1.0))
    evidence = 0.0
    for i in range(10):
        A, b = np.full((5, 1, 1), -decay[i]), np.zeros((5, 1))
        joint = linear_joint(A, b, noise[i], np.zeros(1), noise[i] / (2 * decay[i]), grid)
        mean, cov, log_p = condition(*joint, np.eye(1), 0.1 * np.eye(1), [1, 3, 5], y[:, i : i + 1])
        evidence += log_p
        own = post.mean[:, i : i + 1], post.cov[:, i : i + 1, i : i + 1]
        assert_gaussian(own, split_dense(mean, cov, 1)[:2], "exact", f"coordinate {i}:")
    assert_close(post.elbo, evidence, "exact", "evidence")


# --- one step of mirror descent with ρ = 1


def test_one_full_step_is_exact():
    problem = Linear(2)
    post = gv.infer(problem.model(), problem.series, grid=GRID, method=gv.CVIDP(rho=1.0, max_iterations=1))
    *moments, evidence = problem.dense()
    assert len(post.history) == 2
    assert_gaussian((post.mean, post.cov, post.lag_cov), moments, "exact")
    assert_close(post.elbo, evidence, "exact", "evidence")


@functools.cache
def ornstein_uhlenbeck(path):
    with np.load(path) as fold:
        grid, times, y, sigma = (fold[k] for k in ("time_grid", "observation_grid", "observations", "sigma"))
    model = gv.Model(gv.OrnsteinUhlenbeck(decay=1.2), 1.0, "stationary", gv.likelihoods.Gaussian(float(sigma) ** 2))
    series = gv.TimeSeries(times, y)
    post = gv.infer(model, series, dt=0.01, span=(0.0, float(grid[-1])), method=gv.CVIDP(rho=1.0, max_iterations=1))
    return post, float(sigma)


@pytest.mark.paper
def test_one_step_on_the_paper_s_ou_fold_gives_the_exact_evidence(data_dir):
    post, sigma = ornstein_uhlenbeck(data_dir / "ou" / "0.npz")
    assert abs(post.elbo - -22.3520421148) < TOLERANCES["evidence"]
    M = len(post.times) - 1
    A, b = np.full((M, 1, 1), -1.2), np.zeros((M, 1))
    joint = linear_joint(A, b, 1.0, np.zeros(1), 1.0 / 2.4, post.times)
    node = np.searchsorted(post.times, post.series.times)
    mean, cov, evidence = condition(*joint, np.eye(1), sigma**2 * np.eye(1), node, np.array(post.series.values))
    assert abs(post.elbo - evidence) < TOLERANCES["evidence"]
    assert_gaussian((post.mean, post.cov, post.lag_cov), split_dense(mean, cov, 1), "exact")
