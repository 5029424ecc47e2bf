"""Rules for Gaussian expectations: their degree of exactness, their symmetry and their cost."""

import math
from itertools import combinations_with_replacement

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, pose
from tolerances import TOLERANCES

import girsanov as gv
from girsanov._core.precision import float64
from girsanov.data.grid import regular_grid
from girsanov.inference.quadrature_check import quadrature_error
from girsanov.model.quadrature import default_quadrature, richer
from girsanov.result.diagnosis import measured_quadrature


def monomials(d: int, degree: int):
    """All exponents α with |α| ≤ degree, in d variables."""
    for total in range(degree + 1):
        for chosen in combinations_with_replacement(range(d), total):
            yield np.bincount(chosen, minlength=d) if total else np.zeros(d, int)


def gaussian_moment(alpha) -> float:
    """E ξ^α for ξ ~ N(0, I): zero for an odd exponent, (α − 1)!! for an even one."""
    return math.prod(0 if a % 2 else math.prod(range(a - 1, 0, -2)) for a in alpha)


def absolute_moment(alpha) -> float:
    """E |ξ|^α, the size of the terms that must cancel in an odd moment."""
    return math.prod(2 ** (a / 2) * math.gamma((a + 1) / 2) / math.sqrt(math.pi) for a in map(float, alpha))


def error(rule, alpha) -> float:
    got = rule.weights @ np.prod(rule.nodes ** np.asarray(alpha)[:, None], axis=0)
    return abs(got - gaussian_moment(alpha)) / absolute_moment(alpha)


@pytest.mark.parametrize("points", [1, 2, 5, 20])
def test_gauss_hermite_is_exact_up_to_twice_its_points_minus_one(points):
    rule = gv.GaussHermite(points).rule(1)
    assert rule.nodes.shape == (1, points)
    for k in range(2 * points):
        assert error(rule, (k,)) < TOLERANCES["quadrature"], k
    assert error(rule, (2 * points,)) > TOLERANCES["quadrature"]  # and no further: the bound is sharp


@pytest.mark.parametrize("d", [2, 3])
def test_tensor_rule_is_exact_in_every_coordinate(d):
    points = 4
    rule = gv.GaussHermite(points).rule(d)
    assert rule.nodes.shape == (d, points**d)
    assert_close(rule.weights.sum(), 1.0, "quadrature")
    for alpha in np.ndindex(*[2 * points] * d):  # up to degree 2·points − 1 in each
        assert error(rule, alpha) < TOLERANCES["quadrature"], alpha


@pytest.mark.parametrize("d", range(1, 11))
def test_cubature_has_degree_five(d):
    rule = gv.Cubature().rule(d)
    assert rule.nodes.shape == (d, 2 * d**2 + 1)
    for alpha in monomials(d, 5):
        assert error(rule, alpha) < TOLERANCES["quadrature"], alpha


@pytest.mark.parametrize("d", range(1, 7))
def test_cubature_of_degree_seven_has_positive_weights(d):
    rule = gv.Cubature(7).rule(d)
    pairs = 2 * d * (d - 1)
    assert rule.nodes.shape == (d, 2**d + pairs + 2 * d + 1)
    assert (rule.weights > 0.0).all()
    for alpha in monomials(d, 7):
        assert error(rule, alpha) < TOLERANCES["quadrature"], alpha


def test_cubature_of_degree_seven_is_for_few_dimensions():
    with pytest.raises(ValueError, match=r"degree 7 .* dimension 7: use .*Cubature\(5\)"):
        gv.Cubature(7).rule(7)
    with pytest.raises(ValueError, match=r"degree 5 or 7, got degree=6"):
        gv.Cubature(6).rule(2)


@pytest.mark.parametrize("d", range(1, 8))
def test_richer_rule_is_richer(d):
    given = default_quadrature(d).rule(d)
    rule = richer(given)
    assert rule.nodes.shape[1] > 1.5 * given.nodes.shape[1]
    for alpha in monomials(d, 7):
        assert error(rule, alpha) < TOLERANCES["quadrature"], alpha


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 6, 10])
def test_default_rule_has_degree_five_or_better_and_few_nodes(d):
    rule = default_quadrature(d).rule(d)
    assert rule.nodes.shape[1] <= 400
    for alpha in monomials(d, 5):
        assert error(rule, alpha) < TOLERANCES["quadrature"], alpha


def test_tensor_rule_refuses_what_nobody_can_afford():
    with pytest.raises(ValueError, match=r"8\*\*10 nodes.*dimension 10.*Cubature"):
        gv.GaussHermite(8).rule(10)


@pytest.mark.parametrize("d", [1, 3])
def test_monte_carlo_is_antithetic_and_normal(d):
    n = 20_000
    rule = gv.MonteCarlo(n, jax.random.key(1)).rule(d)
    assert rule.nodes.shape == (d, n)
    assert rule.nodes.dtype == np.float64
    assert_close(rule.weights, np.full(n, 1.0 / n), "quadrature")
    for alpha in monomials(d, 5):
        if sum(alpha) % 2:  # odd moments vanish by symmetry, not on average
            assert error(rule, alpha) < TOLERANCES["quadrature"], alpha
    # second moments average n/2 independent products: variance 2 on the diagonal, 1 off it
    second = (rule.weights * rule.nodes) @ rule.nodes.T
    se = np.sqrt((1.0 + np.eye(d)) / (n / 2))
    assert (np.abs(second - np.eye(d)) < TOLERANCES["standard_errors"] * se).all()


def test_monte_carlo_follows_its_key():
    a, b, c = (gv.MonteCarlo(10, jax.random.key(k)).rule(2).nodes for k in (1, 1, 2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


# --- the check of a result


def ring(x, t):
    """Lorenz-96 with a little less than its usual force: quadratic, every state driven by its neighbours."""
    return (jnp.roll(x, -1) - jnp.roll(x, 2)) * jnp.roll(x, 1) - x + 6.0


def linear(x, t):
    return jnp.roll(x, 1) - 2.0 * x


@float64
def checked(drift, quadrature, time="discrete"):
    """A converged run of a state of four dimensions, half of it observed, and what the check says of it."""
    times, d = 0.2 * np.arange(1, 6), 4
    y = 2.0 + np.random.default_rng(3).normal(size=(len(times), 2))
    initial, noise = gv.GaussianState(np.full(d, 2.0), 0.5 * np.eye(d)), gv.likelihoods.Gaussian(np.eye(2))
    model = gv.Model(drift, 2.0 * np.eye(d), initial, noise, emission=np.eye(d)[::2])
    series = gv.TimeSeries(times, y)
    method = gv.CVIDP(quadrature=quadrature, tolerance=1e-7, time=time)
    problem = pose(model, series, regular_grid(series, 0.02, (0.0, 1.0)), method.rule(d))
    result, _ = method.solve(problem)
    return result, quadrature_error(problem, result.eta, result.moments, result.sites)


OBSERVED = np.array([0.4, 0.9, 1.3])


class Wave(eqx.Module):
    rate: np.ndarray

    def __call__(self, x, t):
        return jnp.sin(self.rate * x)


def waves(rate, noise=0.5, **options):
    """A scalar state seen through a sine: the posterior is wide, and the larger the rate, the more waves it covers."""
    emission, likelihood = Wave(np.asarray(rate)), gv.likelihoods.Gaussian(noise)
    model = gv.Model(gv.OrnsteinUhlenbeck(0.5), 4.0, emission=emission, likelihood=likelihood)
    series = gv.TimeSeries(OBSERVED, [0.2, -0.5, 0.3])
    return gv.infer(model, series, dt=0.1, span=(0.0, 1.5), progress=False, **options)


def expected_log_density(post, rate, noise, xi, w):
    """Σ E log N(y; sin(rate x), noise) under q, by the given nodes."""
    m, sd = post.mean[post.node, 0], post.std[post.node, 0]
    z = np.sin(rate * (m[:, None] + sd[:, None] * xi))
    e = post.series.values - z
    return (-0.5 * (e**2 / noise + np.log(2.0 * np.pi * noise)) @ w).sum()


def test_the_error_of_an_emission_is_that_of_its_integrals():
    """The bound at q changes by what the integrals of the log density change, from the rule to a fine grid."""
    post = waves(1.0)
    problem = pose(post.model, post.series, post.grid, gv.GaussHermite(8).rule(1))
    found = float64(quadrature_error)(problem, post.natural, post.moments, None)
    grid = np.linspace(-10.0, 10.0, 4001)
    density = np.exp(-0.5 * grid**2)
    exact = expected_log_density(post, 1.0, 0.5, grid, density / density.sum())
    wanted = exact - expected_log_density(post, 1.0, 0.5, problem.rule.nodes[0], problem.rule.weights)
    assert abs(wanted) > TOLERANCES["converged"]
    assert_close(found.bound, wanted, "integral")


def test_an_emission_that_the_rule_does_not_resolve_is_told():
    with pytest.warns(UserWarning, match=r"drift, or the emission.*nats; use .*GaussHermite\(48\)"):
        post = waves(8.0, noise=2.0)
    assert post.status == "quadrature" and post.quadrature_error > 0.05


def test_a_smooth_emission_is_not_complained_of():
    post = waves(0.3)
    assert post.converged and post.quadrature_error < TOLERANCES["optimum"]


@pytest.mark.slow
def test_a_sharp_range_without_a_bearing_is_told():
    """The run stays on the origin, about which the density is a ring far sharper than the rule."""
    emission = lambda x, t: jnp.sqrt(x @ x)[None]  # noqa: E731
    start = gv.GaussianState([0.0, 0.0], 1.0)
    model = gv.Model(gv.OrnsteinUhlenbeck([1.0, 1.0]), 1.0, start, gv.likelihoods.Gaussian(1e-4), emission=emission)
    with pytest.warns(UserWarning, match=r"GaussHermite\(16\)"):
        post = gv.infer(model, gv.TimeSeries(OBSERVED, [0.4, 0.7, 1.0]), dt=0.1, span=(0.0, 1.5), progress=False)
    assert post.status == "quadrature"


WELL = gv.Model(gv.DoubleWell(4.0), likelihood=gv.likelihoods.Gaussian(0.1))
SMOOTH = {
    "double well": (WELL, gv.CVIDP()),
    "in continuous time": (WELL, gv.CVIDP(time="continuous")),
    "by VDP": (WELL, gv.VDP()),
    "two coordinates": (gv.Model(gv.VanDerPol(), emission=[[1.0, 0.0]]), gv.CVIDP()),
    "without noise of its own": (gv.Model(gv.Duffing(), [0.0, 1.0], emission=[[1.0, 0.0]]), gv.CVIDP()),
    "heavy tails": (gv.Model(gv.OrnsteinUhlenbeck(1.0), likelihood=gv.likelihoods.StudentT(0.05)), gv.CVIDP()),
    "three coordinates": (gv.Model(gv.Lorenz63(), emission=[[1.0, 0.0, 0.0]]), gv.CVIDP()),
}
QUICK = ("double well", "by VDP")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SMOOTH])
def test_smooth_models_have_no_quadrature_error(name):
    model, method = SMOOTH[name]
    post = gv.infer(model, gv.TimeSeries(OBSERVED, [0.2, -0.5, 0.3]), 0.02, (0.0, 1.5), method=method, progress=False)
    assert post.quadrature_error is None  # `infer` does not pay for it where the emission is linear
    assert float64(measured_quadrature)(post) < TOLERANCES["optimum"]


def test_quadrature_over_a_single_output_is_checked_too():
    """A coin whose probability goes from 0 to 1 within a small part of q: 32 nodes do not resolve that."""
    model = gv.Model(gv.OrnsteinUhlenbeck(0.1), 1e4, likelihood=gv.likelihoods.Bernoulli())
    post = gv.infer(model, gv.TimeSeries(OBSERVED, [1.0, 0.0, 1.0]), 0.1, (0.0, 1.5), progress=False)
    assert float64(measured_quadrature)(post) > TOLERANCES["converged"]


@pytest.mark.slow
def test_the_check_knows_the_rule_of_the_run(tmp_path):
    """A rule of many points is compared with one of more, also after the posterior was saved."""
    post = waves(8.0, noise=2.0, method=gv.CVIDP(quadrature=gv.GaussHermite(60)))
    again = gv.load(post.save(tmp_path / "run.gv"), emission=post.model.emission)
    np.testing.assert_array_equal(again.rule.nodes, post.rule.nodes)
    assert again.rule.nodes.shape == (1, 60) and richer(again.rule).nodes.shape == (1, 90)
    assert again.quadrature_error == post.quadrature_error


@pytest.mark.slow
def test_check_finds_the_error_of_a_rule_of_degree_five():
    """What the bound loses by the wrong gradient is half of the decrement that the check finds, nearly."""
    (poor, found), (good, none) = (checked(ring, gv.Cubature(degree)) for degree in (5, 7))
    lost = good.elbo - poor.elbo
    assert lost > TOLERANCES["converged"]
    assert 1.0 / TOLERANCES["quadrature_ratio"] < found.decrement / (2.0 * lost) < TOLERANCES["quadrature_ratio"]
    assert abs(none.bound) < TOLERANCES["optimum"]
    assert none.decrement < TOLERANCES["optimum"]


@pytest.mark.slow
def test_check_finds_nothing_for_a_linear_drift():
    _, found = checked(linear, gv.Cubature(5))
    assert abs(found.bound) < TOLERANCES["optimum"]
    assert abs(found.decrement) < TOLERANCES["optimum"]


@pytest.mark.slow
def test_check_in_continuous_time():
    """The sites are trapezoidal there: a run at rest is not quite where the bound is highest, whatever the rule."""
    (_, found), (_, none) = (checked(ring, gv.Cubature(degree), "continuous") for degree in (5, 7))
    assert found.decrement > TOLERANCES["converged"]
    assert abs(none.bound) < TOLERANCES["optimum"]
    assert abs(none.decrement) < TOLERANCES["optimum"]
