"""The gradient of the bound against its definition: automatic differentiation of a quadrature over pairs of states.

The library never integrates over pairs: it linearises the drift under the marginal of x_m and adds a site on x_m
alone. That this is the gradient of E log p(x_{m+1} | x_m) in the expectation parameters is the identity on which
everything stands (maths.md, section 3).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, pose, random_chain
from tolerances import TOLERANCES

import girsanov as gv
from girsanov._core.compile import compiled
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain, inner
from girsanov.chain.smoother import smooth, tangent
from girsanov.data.grid import given_grid
from girsanov.inference import expectations
from girsanov.inference.expectations import drift_expectations
from girsanov.inference.loop import evaluate_trial
from girsanov.inference.objective import Posed, compose, evaluate
from girsanov.inference.sites import DataSites, Sites


@pytest.fixture(autouse=True, scope="module")
def _float64():
    with jax.enable_x64(True):
        yield


smoothed, fisher = compiled(smooth), compiled(tangent)
trial = compiled(lambda problem, eta: evaluate_trial(problem, eta, "sequential"))


def cubic(x, t):
    return 0.7 * x - 0.4 * x**3 + 0.2 * t


def sine(x, t):
    return jnp.sin(1.3 * x - 0.4) * (1.0 + 0.1 * t)


def cubic_2d(x, t):
    return jnp.stack([x[0] - x[0] ** 3 / 3.0 - x[1], 0.5 * x[0] * x[1] - 0.3 * x[1] + 0.1 * t])


def sine_2d(x, t):
    return jnp.stack([jnp.sin(x[0] + 0.5 * x[1]), jnp.cos(x[1]) - 0.2 * t * x[0]])


DRIFTS = {"cubic": (cubic, 1), "sine": (sine, 1), "cubic-2d": (cubic_2d, 2), "sine-2d": (sine_2d, 2)}
GRID = np.array([0.0, 0.05, 0.2, 0.23, 0.5])  # gaps that differ


def covariance(d: int) -> np.ndarray:
    return np.array([[0.8, 0.3], [0.3, 0.6]])[:d, :d]


@functools.cache
def make(name: str, likelihood: str = "gaussian") -> tuple[Posed, NaturalChain]:
    """A problem with that drift, and a chain q that has nothing to do with it, of moderate variances."""
    drift, d = DRIFTS[name]
    rng = np.random.default_rng(d)
    kinds = {"gaussian": gv.likelihoods.Gaussian(0.5), "poisson": gv.likelihoods.Poisson()}
    initial = gv.GaussianState(rng.normal(size=d), 0.9 * covariance(d))
    model = gv.Model(drift, covariance(d), initial, kinds[likelihood], dim=d)
    series = gv.TimeSeries(GRID[[1, 4]], rng.poisson(2.0, size=(2, d)).astype(float))
    rule = gv.GaussHermite({1: 30, 2: 16}[d]).rule(d)
    chain = random_chain(rng, d, len(GRID))
    # Precisions of about 5 to 50: the sine is then resolved to many digits by the rules of either side.
    return pose(model, series, given_grid(series, GRID), rule), NaturalChain(
        6.0 * chain.h, 6.0 * chain.J, 6.0 * chain.K
    )


def expected_log_prior(problem: Posed, points: int, m, S, C):
    """E_q log p(x), by a tensor rule over the joint of every pair (x_m, x_{m+1}); differentiable in (m, S, C)."""
    model = problem.model
    d, N = m.shape
    rule = gv.GaussHermite(points).rule(2 * d)
    xi, weights = jnp.asarray(rule.nodes), jnp.asarray(rule.weights)
    Q, initial = jnp.asarray(model.diffusion), model.initial_state()
    normal = jax.scipy.stats.multivariate_normal.logpdf

    def transition(m0, m1, S0, S1, C, t, gap):
        joint = jnp.block([[S0, C.T], [C, S1]])
        x = (jnp.concatenate([m0, m1])[:, None] + jnp.linalg.cholesky(0.5 * (joint + joint.T)) @ xi).T
        step = jax.vmap(lambda x0: x0 + gap * model.drift(x0, t))(x[:, :d])
        return weights @ normal(x[:, d:] - step, jnp.zeros(d), gap * Q)

    ends = (m.T[:-1], m.T[1:], jnp.moveaxis(S, -1, 0)[:-1], jnp.moveaxis(S, -1, 0)[1:], jnp.moveaxis(C, -1, 0))
    total = jax.vmap(transition)(*ends, problem.data.times[: N - 1], problem.data.gaps[: N - 1]).sum()
    P0 = jnp.asarray(initial.cov)
    trace = jnp.trace(jnp.linalg.solve(P0, S[..., 0]))
    return total + normal(m[:, 0], jnp.asarray(initial.mean), P0) - 0.5 * trace


def natural_of_gradient(m, G_m, G_S, G_C) -> NaturalChain:
    """(∂μ₁, ∂μ₂, ∂μ₃) from the partial derivatives in (m, S, C), as natural parameters (maths.md, section 2)."""
    m, G_m, G_S, G_C = (np.asarray(a) for a in (m, G_m, G_S, G_C))
    G_S = 0.5 * (G_S + np.swapaxes(G_S, 0, 1))
    h = G_m - 2.0 * np.einsum("ijn,jn->in", G_S, m)
    h[:, :-1] -= np.einsum("jin,jn->in", G_C, m[:, 1:])
    h[:, 1:] -= np.einsum("ijn,jn->in", G_C, m[:, :-1])
    return NaturalChain(h, -2.0 * G_S, -G_C)


@pytest.mark.parametrize("name", DRIFTS)
def test_linearisation_and_sites_are_the_gradient_of_the_expected_log_prior(name):
    problem, eta = make(name)
    d, N, n = eta.h.shape[0], len(GRID), len(problem.data.node)
    q = smoothed(eta).moments
    points = {1: 24, 2: 12}[d]
    definition = compiled(jax.value_and_grad(lambda *args: expected_log_prior(problem, points, *args), (0, 1, 2)))
    _, G = definition(q.m, q.S, q.C)
    wanted = natural_of_gradient(q.m, *G)

    @compiled
    def library(problem, eta):
        _, sites = evaluate(problem, smooth(eta))
        no_data = DataSites(jnp.zeros((d, n)), jnp.zeros((d, d, n)))
        return compose(problem, Sites(sites.base, sites.dense, no_data))

    got = library(problem, eta)
    for part in ("h", "J", "K"):
        assert_close(np.asarray(getattr(got, part))[..., :N], getattr(wanted, part), "identity", part)


@pytest.mark.parametrize("name", DRIFTS)
def test_linearisation_is_the_mean_jacobian_and_the_value_is_the_expected_log_transition(name):
    problem, eta = make(name)
    drift, d = DRIFTS[name]
    q = smoothed(eta).moments
    M = len(GRID) - 1
    Q = np.asarray(problem.model.diffusion)
    run = compiled(lambda q: drift_expectations(drift, np.linalg.inv(Q), problem.rule, q, GRID[:-1], np.diff(GRID)))
    got = run(q)
    rule = gv.GaussHermite({1: 24, 2: 12}[d]).rule(d)

    @compiled
    def direct(m, S, t):
        x = m[:, None] + jnp.linalg.cholesky(S) @ rule.nodes
        f = jax.vmap(drift, (1, None))(x, t)
        J = jax.vmap(jax.jacfwd(drift), (1, None))(x, t)
        return jnp.einsum("n,ni->i", rule.weights, f), jnp.einsum("n,nij->ij", rule.weights, J)

    for m in range(M):
        mean = np.asarray(q.m[:, m])
        F, A = direct(mean, np.asarray(q.S[..., m]), GRID[m])
        assert_close(got.base.A[..., m], A, "exact", "A")
        assert_close(got.base.b[:, m], np.asarray(F) - np.asarray(A) @ mean, "exact", "b")

    normal = np.asarray(
        compiled(lambda m, S, C: expected_log_prior(problem, {1: 24, 2: 12}[d], m, S, C))(q.m, q.S, q.C)
    )
    initial = problem.model.initial_state()
    e, P0 = np.asarray(q.m[:, 0]) - initial.mean, np.asarray(initial.cov)
    start = -0.5 * (e @ np.linalg.solve(P0, e) + np.trace(np.linalg.solve(P0, q.S[..., 0])))
    start -= 0.5 * np.linalg.slogdet(2 * np.pi * P0)[1]
    constants = -0.5 * sum(np.linalg.slogdet(2 * np.pi * gap * Q)[1] for gap in np.diff(GRID))
    assert_close(np.asarray(got.quadratic).sum() + constants + start, normal, "identity", "value")


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_sums_over_stretches_of_time_are_the_sums(width, monkeypatch):
    """Long chains are summed one stretch after the other, whose length need not divide the chain's."""
    problem, eta = make("cubic-2d")
    q = smoothed(eta).moments

    def run():
        return compiled(lambda q: drift_expectations(cubic_2d, np.eye(2), problem.rule, q, GRID[:-1], np.diff(GRID)))(q)

    whole = run()
    monkeypatch.setattr(expectations, "_CHUNKED_FROM", 0)
    monkeypatch.setattr(expectations, "_CHUNK", width * 2 * problem.rule.nodes.shape[1])
    for a, b in zip(jax.tree.leaves(run()), jax.tree.leaves(whole), strict=True):
        assert_close(a, b, "exact")


def test_a_drift_with_a_kink_needs_no_derivative():
    """E[√|x|] and its slope under N(m, S) by brute-force integration; automatic differentiation is never used."""
    rule = gv.GaussHermite(100).rule(1)
    m, S = 0.9, 0.02  # the kink is six standard deviations away, so that the rule resolves the function
    q = Moments(np.full((1, 2), m), np.full((1, 1, 2), S), np.full((1, 1, 1), 0.5 * S))
    gap = np.array([0.1])
    f = gv.SquareRoot(2.0)
    got = compiled(lambda q: drift_expectations(f, np.eye(1), rule, q, np.zeros(1), gap))(q)
    x = np.linspace(m - 10 * S**0.5, m + 10 * S**0.5, 200_001)
    weights = np.exp(-0.5 * (x - m) ** 2 / S) / np.sqrt(2 * np.pi * S) * (x[1] - x[0])
    values = np.sqrt(2.0 * np.abs(x))
    A = (weights * values * (x - m)).sum() / S
    assert_close(got.base.A[0, 0, 0], A, "identity", "A")
    assert_close(got.base.b[0, 0], (weights * values).sum() - A * m, "identity", "b")


# --- the bound


def random_direction(rng: np.random.Generator, eta: NaturalChain) -> NaturalChain:
    h, J, K = (rng.normal(size=a.shape) for a in (eta.h, eta.J, eta.K))
    return NaturalChain(h, 0.5 * (J + np.swapaxes(J, 0, 1)), K)


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson"])
@pytest.mark.parametrize("name", ["sine", "cubic-2d"])
def test_directional_derivative_of_the_bound_is_the_residual_in_the_fisher_metric(name, likelihood):
    """d/ds L(η + s v) = ⟨r, F v⟩ with r = g(η) − η the natural gradient."""
    problem, eta = make(name, likelihood)
    assert problem.data.times.shape == GRID.shape  # no padding to move along
    rng = np.random.default_rng(0)
    r = trial(problem, eta).residual
    for _ in range(3):
        v = random_direction(rng, eta)
        eps = 1e-4
        up, down = (float(trial(problem, eta + s * v).elbo) for s in (eps, -eps))
        slope = float(inner(r, fisher(eta, v)))
        assert_close(slope, (up - down) / (2 * eps), "gradient")


@pytest.mark.parametrize("name", ["sine", "cubic-2d"])
def test_padding_does_not_matter(name):
    """A grid padded to a larger capacity has the same bound and the same target on its own nodes."""
    problem, eta = make(name)
    d, N = eta.h.shape
    pad = 3
    series = gv.TimeSeries(GRID[[1, 4]], np.asarray(problem.data.y))
    padded = pose(problem.model, series, given_grid(series, GRID), problem.rule, N + pad)
    eye = np.broadcast_to(np.eye(d)[:, :, None], (d, d, pad))
    longer = NaturalChain(
        np.pad(eta.h, ((0, 0), (0, pad))), np.concatenate([eta.J, eye], -1), np.pad(eta.K, ((0, 0), (0, 0), (0, pad)))
    )
    a, b = trial(problem, eta), trial(padded, longer)
    assert_close(b.elbo, a.elbo, "exact", "elbo")
    for part, size in (("h", N), ("J", N), ("K", N - 1)):
        got = np.asarray(getattr(b.residual, part))
        assert_close(got[..., :size], getattr(a.residual, part), "exact", part)
        assert np.abs(got[..., size:]).max() < TOLERANCES["exact"], part  # the padding stays where it is
