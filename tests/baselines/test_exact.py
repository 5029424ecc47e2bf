"""The exact smoother for scalar states, against dense Gaussians, tensor-product quadrature and plain recursions."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from support import assert_close, assert_gaussian, condition, linear_joint, split_dense
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.baselines import exact_smoother, particle_smoother
from girsanov.baselines.line import forward_backward
from girsanov.paper.data import FOLDS, inference_model, load_fold

SPAN = (0.0, 2.4)
TIMES = np.array([0.2, 0.5, 0.93, 1.4, 1.83, 2.0])  # some on the regular grid, some off it
DT = 0.05


def scalar_model(drift, variance=0.01, mean=0.0, cov=1e-4):
    return gv.Model(drift, 1.0, gv.GaussianState(mean, cov), gv.likelihoods.Gaussian(variance))


MODELS = {
    "ou": gv.Model(gv.OrnsteinUhlenbeck(1.2), 1.0, "stationary", gv.likelihoods.Gaussian(0.01)),
    "benes": scalar_model(gv.Benes(1.0)),
    "double_well": scalar_model(gv.DoubleWell(4.0, 1.0), variance=1e-4, mean=1.0),
    "sine": scalar_model(gv.Sine(1.0, 0.0), variance=1e-4),
    "sqrt": scalar_model(gv.SquareRoot(1.0), variance=1e-4),
}


@functools.cache
def simulated(name: str) -> gv.TimeSeries:
    return gv.simulate(MODELS[name], TIMES, key=jax.random.key(1), start=SPAN[0]).series


@functools.cache
def solved(name: str):
    return exact_smoother(MODELS[name], simulated(name), DT, SPAN)


# --- linear drift and Gaussian noise: dense conditioning of the same chain


def assert_is_dense(exact, decay: float, b: float, H, R, y, mean=0.0, cov=None):
    M = len(exact.times) - 1
    P0 = 1.0 / (2.0 * decay) if cov is None else cov
    A, offset = np.full((M, 1, 1), -decay), np.full((M, 1), b)
    joint = linear_joint(A, offset, 1.0, np.array([mean]), P0, exact.times)
    node = np.searchsorted(exact.times, exact.series.times)
    m, P, evidence = condition(*joint, np.asarray(H), np.asarray(R), node, np.array(y))
    assert_close(exact.log_evidence, evidence, "exact", "log evidence")
    assert_gaussian((exact.mean, exact.cov, exact.lag_cov), split_dense(m, P, 1), "exact")
    assert exact.error < TOLERANCES["exact"]


def test_ornstein_uhlenbeck():
    assert_is_dense(solved("ou"), 1.2, 0.0, np.eye(1), 0.01 * np.eye(1), simulated("ou").values)


def test_sharp_noise_and_a_sharp_initial_state():
    """Points a node of its own: the state is known to 0.01 at some nodes and to a whole unit at others."""
    model = gv.Model(gv.Linear([[-0.7]], 0.4), 1.0, gv.GaussianState(2.0, 1e-6), gv.likelihoods.Gaussian(1e-4))
    series = gv.TimeSeries(TIMES, [1.8, 1.5, 1.7, 0.6, -0.1, 0.2])
    exact = exact_smoother(model, series, DT, SPAN)
    assert_is_dense(exact, 0.7, 0.4, np.eye(1), 1e-4 * np.eye(1), series.values, 2.0, 1e-6)


@pytest.mark.slow
def test_an_observation_far_from_what_the_model_expects():
    """The likelihood at the first node and the initial state each leave nothing of the other."""
    model = gv.Model(gv.OrnsteinUhlenbeck(0.5), 1.0, gv.GaussianState(0.0, 0.04), gv.likelihoods.Gaussian(0.04))
    series = gv.TimeSeries([0.0, 0.5, 1.0], [4.0, -5.0, 6.0])
    exact = exact_smoother(model, series, DT)
    assert_is_dense(exact, 0.5, 0.0, np.eye(1), 0.04 * np.eye(1), series.values, 0.0, 0.04)


def test_two_outputs_with_missing_entries():
    R, H = np.array([[0.02, 0.01], [0.01, 0.05]]), np.array([[1.0], [-2.0]])
    y = np.array([[0.3, np.nan], [np.nan, np.nan], [0.5, -0.8], [np.nan, 0.2]])
    model = gv.Model(gv.OrnsteinUhlenbeck(1.2), 1.0, "stationary", gv.likelihoods.Gaussian(R), H)
    exact = exact_smoother(model, gv.TimeSeries([0.2, 0.5, 0.9, 1.3], y), DT, (0.0, 1.5))
    assert_is_dense(exact, 1.2, 0.0, H, R, y)


@pytest.mark.parametrize("N", [1, 2])
def test_one_and_two_nodes(N):
    series = gv.TimeSeries([0.3, 0.35][:N], [0.7, 0.2][:N])
    exact = exact_smoother(MODELS["ou"], series, DT)
    assert exact.times.shape == (N,)
    assert_is_dense(exact, 1.2, 0.0, np.eye(1), 0.01 * np.eye(1), series.values)


# --- any drift and likelihood: brute force on three nodes


def poisson(y, x):
    return y * x - np.exp(x) - scipy.special.gammaln(y + 1.0)


def student_t(y, x, df=3.0, scale=0.2):
    c = scipy.special.gammaln((df + 1) / 2) - scipy.special.gammaln(df / 2) - 0.5 * np.log(df * np.pi) - np.log(scale)
    return c - 0.5 * (df + 1) * np.log1p(((y - x) / scale) ** 2 / df)


def turning(x, t):
    """A drift that depends on time and is odd in nothing."""
    return jnp.cos(t) * jnp.sin(x) + t - 0.3 * x


SHORT = {
    "poisson": (gv.likelihoods.Poisson(), poisson, [0.0, 3.0, 7.0], None),
    "student-t": (gv.likelihoods.StudentT(scale=0.2, df=3.0), student_t, [0.2, 2.5, -0.4], 256),
}
SHORT_TIMES, HELD_OUT = np.array([0.1, 0.5, 0.9]), (1, 1.0)  # a node and a value to predict there


def tensor_product(log_density, y, m0=0.3, P0=0.5, Q=1.3):
    """Log evidence, marginal densities, first two moments and log predictive density from all of (x₀, x₁, x₂)."""
    x = np.linspace(-7.0, 7.0, 181)
    h = x[1] - x[0]

    def log_normal(e, var):
        return -0.5 * (e**2 / var + np.log(2.0 * np.pi * var))

    def log_step(t, gap):
        centre = x + gap * (np.cos(t) * np.sin(x) + t - 0.3 * x)
        return log_normal(x[None, :] - centre[:, None], gap * Q)

    gaps = np.diff(SHORT_TIMES)
    log_joint = (log_normal(x - m0, P0) + log_density(y[0], x))[:, None, None]
    log_joint = log_joint + log_step(SHORT_TIMES[0], gaps[0])[:, :, None] + log_density(y[1], x)[None, :, None]
    log_joint = log_joint + log_step(SHORT_TIMES[1], gaps[1])[None] + log_density(y[2], x)[None, None, :]
    joint = np.exp(log_joint) * h**3
    total = joint.sum()
    joint /= total
    pairs = [joint.sum(2), joint.sum(0)]
    marginals = np.stack([joint.sum((1, 2)), joint.sum((0, 2)), joint.sum((0, 1))])
    mean = marginals @ x
    var = marginals @ x**2 - mean**2
    lag = np.array([x @ p @ x for p in pairs]) - mean[1:] * mean[:-1]
    node, value = HELD_OUT
    predictive = np.log(marginals[node] @ np.exp(log_density(value, x)))
    return x, np.log(total), marginals / h, mean, var, lag, predictive


def short(name, n_points=None):
    likelihood, _, y, _ = SHORT[name]
    model = gv.Model(turning, 1.3, gv.GaussianState(0.3, 0.5), likelihood, dim=1)
    return exact_smoother(model, gv.TimeSeries(SHORT_TIMES, y), 0.4, n_points=n_points)


@pytest.mark.parametrize("name", SHORT)
def test_three_nodes_by_brute_force(name):
    _, log_density, y, n_points = SHORT[name]
    x, evidence, marginals, mean, var, lag, predictive = tensor_product(log_density, y)
    exact = short(name, n_points)
    assert_close(exact.times, SHORT_TIMES, "exact", "nodes")
    assert_close(exact.log_evidence, evidence, "exact", "log evidence")
    wanted = mean[:, None], var[:, None, None], lag[:, None, None]
    assert_gaussian((exact.mean, exact.cov, exact.lag_cov), wanted, "exact")
    for node in range(3):
        assert_close(exact.density_at(node, x), marginals[node], "exact", f"density of node {node}")
    node, value = HELD_OUT
    test = gv.TimeSeries([SHORT_TIMES[node]], [value])
    assert_close(exact.nlpd(test), -predictive, "exact", "negative log predictive density")


def test_a_narrow_likelihood_with_heavy_tails_is_resolved():
    """It confines the state nowhere, so that the points must follow its width and not its range."""
    model = gv.Model(
        gv.OrnsteinUhlenbeck(1.0), 1.0, gv.GaussianState(0.0, 1.0), gv.likelihoods.StudentT(df=3.0, scale=2e-3)
    )
    near = 0.3 + 2e-3 * np.sinh(np.linspace(-8.0, 8.0, 400_001))  # dense about 0.3, and as far as the prior reaches
    x = near[np.abs(near) < 6.0]
    density = np.exp(student_t(0.3, x, 3.0, 2e-3) - 0.5 * x**2) / np.sqrt(2.0 * np.pi)
    exact = exact_smoother(model, gv.TimeSeries([0.0], [0.3]), DT)
    assert_close(exact.log_evidence, np.log(np.trapezoid(density, x)), "integral", "log evidence")
    assert exact.error < TOLERANCES["integral"]


@pytest.mark.slow
def test_a_state_narrower_than_its_range_is_scored_right():
    """A node 3e-5 after a sharp start: the density there is a thousandth of the points' range."""
    model = gv.Model(gv.OrnsteinUhlenbeck(1.0), 1.0, gv.GaussianState(0.0, 1e-6), gv.likelihoods.Gaussian(1.0))
    series, test = gv.TimeSeries([0.5, 1.0], [1.0, -1.0]), gv.TimeSeries([3e-5], [0.3])
    exact = exact_smoother(model, series, 0.1, (0.0, 1.0), at=test.times)
    mean, var = exact.marginals(test.times).mean[0, 0], 1.0 + exact.marginals(test.times).cov[0, 0, 0]
    assert_close(exact.nlpd(test), 0.5 * (np.log(2 * np.pi * var) + (0.3 - mean) ** 2 / var), "exact", "nlpd")


def test_an_observation_beyond_the_range_is_refused():
    with pytest.raises(ValueError, match=r"values\[0\] = \[100000\.0\].*beyond the range .*outlier"):
        solved("ou").nlpd(gv.TimeSeries([0.5], [1e5]))


# --- a long chain by a plain recursion, and the error estimate


def plain_evidence(drift, series, dt, steps, m0, P0, variance, x):
    """log p(y) by the forward recursion on one uniform set of points for all nodes; observations on the grid."""
    h = x[1] - x[0]
    K = np.exp(-0.5 * (x[None, :] - (x + dt * drift(x))[:, None]) ** 2 / dt) * h / np.sqrt(2.0 * np.pi * dt)
    a, total = np.exp(-0.5 * (x - m0) ** 2 / P0) / np.sqrt(2.0 * np.pi * P0), 0.0
    observed = dict(zip(np.rint(series.times / dt).astype(int), series.values[:, 0], strict=True))
    for k in range(steps + 1):
        a = a @ K if k else a
        if k in observed:
            a = a * np.exp(-0.5 * (observed[k] - x) ** 2 / variance) / np.sqrt(2.0 * np.pi * variance)
        c = a.sum() * h
        a, total = a / c, total + np.log(c)
    return total


def test_double_well_with_sharp_noise_by_a_plain_recursion():
    times = np.array([0.4, 1.0, 3.6, 3.8])
    series = gv.TimeSeries(times, [0.93, 1.08, -1.11, -0.96])
    exact = exact_smoother(MODELS["double_well"], series, 0.04, (0.0, 4.0))
    x = np.linspace(-4.0, 4.0, 1601)  # half the standard deviation of the noise apart
    wanted = plain_evidence(lambda v: 4.0 * v * (1.0 - v**2), series, 0.04, 100, 1.0, 1e-4, 1e-4, x)
    assert_close(exact.log_evidence, wanted, "exact", "log evidence")


def test_refinement_does_not_change_a_smooth_problem():
    exact = solved("double_well")
    assert exact.error < TOLERANCES["exact"]
    finer = exact_smoother(
        MODELS["double_well"], simulated("double_well"), DT, SPAN, n_points=2 * exact.points.shape[1]
    )
    assert_close(finer.log_evidence, exact.log_evidence, "exact", "log evidence")
    assert_gaussian((finer.mean, finer.cov), (exact.mean, exact.cov), "exact")


def test_error_estimate_holds_with_too_few_points():
    """A third of the points: the answer is off, and the estimate says by how much at least."""
    exact = solved("double_well")
    third = int(exact.points.shape[1] / 1.5) // 3
    few = exact_smoother(MODELS["double_well"], simulated("double_well"), DT, SPAN, n_points=third)
    off = abs(few.log_evidence - exact.log_evidence)
    assert off > TOLERANCES["exact"]
    assert off <= few.error
    assert np.abs(few.mean - exact.mean).max() <= few.moment_error


def test_error_estimate_where_the_drift_has_a_kink():
    """√|x| has an infinite slope at 0: the error falls slowly, and the finer of two runs keeps about as much of it as
    their difference shows."""
    exact = solved("sqrt")
    few = exact_smoother(MODELS["sqrt"], simulated("sqrt"), DT, SPAN, n_points=int(exact.points.shape[1] / 1.5) // 3)
    assert exact.error > TOLERANCES["integral"]
    assert few.error > exact.error
    assert abs(few.log_evidence - exact.log_evidence) <= 2.0 * (few.error + exact.error)


# --- CVI-DP's bound


@pytest.mark.parametrize("name", ["ou", pytest.param("benes", marks=pytest.mark.slow), "double_well", "sine", "sqrt"])
def test_the_bound_lies_below_the_evidence(name):
    exact = solved(name)
    post = gv.infer(MODELS[name], simulated(name), DT, SPAN)
    assert np.array_equal(post.times, exact.times)
    assert post.converged
    assert post.elbo <= exact.log_evidence + exact.error + TOLERANCES["exact"]
    gap = exact.log_evidence - post.elbo
    if name == "ou":
        assert gap < TOLERANCES["evidence"]
    else:
        assert gap > exact.error  # no Gaussian is the posterior of a drift that is not linear


# --- what the posterior offers


def test_densities_integrate_to_one_and_have_the_moments():
    exact = solved("double_well")
    h = np.diff(exact.points, axis=1)[:, :1]
    assert (exact.density >= 0.0).all()
    assert_close((exact.density * h).sum(1), np.ones(len(exact.times)), "exact", "mass")
    mean = (exact.density * exact.points * h).sum(1)
    var = (exact.density * (exact.points - mean[:, None]) ** 2 * h).sum(1)
    assert_gaussian((exact.mean, exact.cov), (mean[:, None], var[:, None, None]), "exact")
    assert (exact.density[:, [0, -1]] < TOLERANCES["exact"] * exact.density.max(1, keepdims=True)).all()


@pytest.mark.parametrize("node", [0, 7, -1])
def test_density_at_other_points(node):
    exact = solved("double_well")
    node = node % len(exact.times)
    assert_close(exact.density_at(node, exact.points[node]), exact.density[node], "exact", "at the node's own points")
    x = np.linspace(exact.points[node, 0], exact.points[node, -1], 1501)
    density = exact.density_at(node, x)
    assert_close(density.sum() * (x[1] - x[0]), 1.0, "exact", "mass")
    assert_close((density * x).sum() * (x[1] - x[0]), exact.mean[node, 0], "exact", "mean")


def test_lag_covariance_is_that_of_a_joint_law():
    exact = solved("double_well")
    S = exact.cov[:, 0, 0]
    assert (np.abs(exact.lag_cov[:, 0, 0]) < np.sqrt(S[1:] * S[:-1])).all()


def test_marginals_at_the_nodes():
    exact = solved("sine")
    there = exact.marginals(exact.times[[3, 0, 11]])
    assert np.array_equal(there.mean, exact.mean[[3, 0, 11]])
    assert np.array_equal(there.cov, exact.cov[[3, 0, 11]])
    assert exact.std.shape == exact.mean.shape


def test_predictive_density_is_a_ratio_of_evidences():
    """p(y* | y) = p(y, y*) / p(y) on the same nodes: far from Gaussian between two wells."""
    model = MODELS["double_well"]
    train = gv.TimeSeries([0.2, 0.5, 2.0], [0.9, 1.1, -1.0])
    test = gv.TimeSeries([0.6, 1.25, 1.8], [1.3, 0.1, 0.9])

    def solve(series):
        return exact_smoother(model, series, DT, SPAN, at=test.times, n_points=240)

    exact, wanted = solve(train), []
    for i in range(len(test)):
        order = np.argsort(np.append(train.times, test.times[i]))
        times, values = np.append(train.times, test.times[i])[order], np.append(train.values, test.values[i])[order]
        both = solve(gv.TimeSeries(times, values))
        assert np.array_equal(both.times, exact.times)
        wanted.append(exact.log_evidence - both.log_evidence)
    assert_close(exact.nlpd_values(test), np.array(wanted), "exact", "nlpd")
    assert_close(exact.nlpd(test), np.mean(wanted), "exact", "mean nlpd")


FURTHER = (1.777, 0.033, 0.5, 0.033)


@functools.cache
def with_further_nodes():
    return exact_smoother(MODELS["ou"], simulated("ou"), DT, SPAN, at=FURTHER)


def test_predictive_density_of_a_linear_model_is_gaussian():
    test = gv.TimeSeries([0.033, 0.5, 0.93, 1.777], [0.1, np.nan, -0.6, 1.9])
    exact = with_further_nodes()
    post = gv.infer(MODELS["ou"], simulated("ou"), grid=exact.times)
    assert_close(exact.nlpd_values(test), post.nlpd_values(test), "exact", "nlpd")
    assert_close(exact.nlpd(test), post.nlpd(test), "exact", "mean nlpd")
    assert_close(exact.rmse(test), post.rmse(test), "exact", "rmse")


# --- further nodes


def test_further_times_become_nodes():
    plain, exact = solved("ou"), with_further_nodes()
    assert np.array_equal(exact.times, np.union1d(plain.times, FURTHER))
    assert exact.series is plain.series
    assert_is_dense(exact, 1.2, 0.0, np.eye(1), 0.01 * np.eye(1), simulated("ou").values)
    with pytest.raises(ValueError, match=r"times\[1\] = 1\.777 is not a node.*at="):
        plain.marginals([0.5, 1.777])
    with pytest.raises(ValueError, match="is not a node"):
        plain.nlpd(gv.TimeSeries([1.777], [0.0]))


def test_times_that_are_nodes_already_change_nothing():
    series, plain = simulated("ou"), solved("ou")
    exact = exact_smoother(MODELS["ou"], series, DT, SPAN, at=[0.3, 0.93])
    assert_close(exact.times, plain.times, "exact", "nodes")
    assert_close(exact.log_evidence, plain.log_evidence, "exact", "log evidence")


# --- cost


def stored(exact) -> int:
    return sum(a.size for a in vars(exact).values() if isinstance(a, np.ndarray))


def test_what_is_stored_grows_with_the_nodes():
    """Twice the span needs no more points a node, but for what a wider range of values does."""
    series, once = simulated("sine"), solved("sine")
    times, values = np.append(series.times, SPAN[1] + series.times), np.append(series.values, series.values)
    twice = exact_smoother(MODELS["sine"], gv.TimeSeries(times, values), DT, (0.0, 2.0 * SPAN[1]))
    assert len(twice.times) == 2 * len(once.times) - 1
    assert twice.points.shape[1] <= 1.2 * once.points.shape[1]
    assert stored(twice) <= 2.4 * stored(once)


def largest_array(jaxpr) -> int:
    """Entries of the largest array in a program, what it calls included."""
    sizes = [v.aval.size for e in jaxpr.eqns for v in e.outvars if hasattr(v.aval, "size")]
    for eqn in jaxpr.eqns:
        for part in eqn.params.values():
            inner = getattr(part, "jaxpr", part)
            sizes += [largest_array(inner)] if hasattr(inner, "eqns") else []
    return max(sizes, default=0)


@pytest.mark.parametrize("N", [20, 200])
def test_no_array_over_nodes_and_pairs_of_points(N):
    n = 60
    points = np.broadcast_to(np.linspace(-3.0, 3.0, n), (N, n))
    with jax.enable_x64(True):
        program = jax.make_jaxpr(functools.partial(inspect.unwrap(forward_backward), MODELS["sine"]))(
            0.1 * np.arange(N), points, points, np.zeros((N, n)), -0.5 * points[0] ** 2
        )
    assert largest_array(program.jaxpr) <= n * max(N, n)


# --- bad input


def test_states_of_two_dimensions_are_refused():
    model = gv.Model(gv.VanDerPol(), 1.0, gv.GaussianState(0.0, 1.0), gv.likelihoods.Gaussian(0.01))
    series = gv.TimeSeries([0.5], [[1.0, 2.0]])
    with pytest.raises(ValueError, match="scalar states, and this model's state has dimension 2"):
        exact_smoother(model, series, DT, SPAN)


@pytest.mark.parametrize(
    ("dt", "span", "at", "message"),
    [
        (-0.1, SPAN, None, "dt must be positive"),
        (np.nan, SPAN, None, "dt must be positive"),
        (5.0, SPAN, None, "longer than the span"),
        (DT, (0.5, 2.4), None, "outside span"),
        (None, SPAN, None, "give dt="),
        (DT, SPAN, [3.0], r"3\.0 in at= lies outside \[0, 2.4\]"),
        (DT, None, [0.1], r"0\.1 in at= lies outside \[0.2, 2\]"),
        (DT, SPAN, [0.5 + 1e-8], "points would be needed .* leave times that close out of at="),
        (DT, SPAN, [np.nan], "nan"),
    ],
)
def test_bad_grids_are_refused(dt, span, at, message, as_a_user):
    with pytest.raises(ValueError, match=message):
        exact_smoother(MODELS["ou"], simulated("ou"), dt, span, at=at)


@pytest.mark.parametrize("smoother", [exact_smoother, functools.partial(particle_smoother, key=jax.random.key(0))])
def test_series_and_models_that_do_not_fit_are_refused(smoother, as_a_user):
    with pytest.raises(ValueError, match="2 values at each time, but the model observes 1"):
        smoother(MODELS["ou"], gv.TimeSeries(TIMES, np.zeros((len(TIMES), 2))), dt=DT)
    with pytest.raises(ValueError, match=r"series must be a gv\.TimeSeries"):
        smoother(MODELS["ou"], (TIMES, TIMES), dt=DT)
    with pytest.raises(ValueError, match=r"model must be a gv\.Model"):
        smoother(gv.OrnsteinUhlenbeck(1.0), simulated("ou"), dt=DT)


@pytest.mark.parametrize("n", [0, 1, -3, 64.5])
def test_bad_numbers_of_points_are_refused(n, as_a_user):
    with pytest.raises(ValueError, match=f"n_points must be a whole number ≥ 8.*{n}"):
        exact_smoother(MODELS["ou"], simulated("ou"), DT, SPAN, n_points=n)


def test_bad_test_data_are_refused():
    with pytest.raises(ValueError, match="2 values at each time, but the model observes 1"):
        solved("ou").nlpd(gv.TimeSeries([0.5], [[1.0, 2.0]]))
    with pytest.raises(ValueError, match="outside the horizon"):
        solved("ou").marginals([2.5])


def test_a_drift_that_is_not_a_number_is_refused():
    model = gv.Model(lambda x, t: jnp.sqrt(x), 1.0, gv.GaussianState(1.0, 1.0), gv.likelihoods.Gaussian(0.01), dim=1)
    with pytest.raises(ValueError, match=r"the drift returned nan at state -\d.* and time 0\.0"):
        exact_smoother(model, simulated("ou"), DT, SPAN)


# --- the authors' data


@pytest.mark.slow
@pytest.mark.paper
def test_the_paper_s_ou_fold(data_dir):
    fold = load_fold(data_dir, "ou", 0)
    exact = exact_smoother(inference_model("ou", fold), fold.train, 0.01, fold.span)
    assert_is_dense(exact, 1.2, 0.0, np.eye(1), fold.sigma**2 * np.eye(1), fold.train.values)


@pytest.mark.slow
@pytest.mark.paper
def test_the_paper_s_double_well_fold(data_dir):
    fold = load_fold(data_dir, "double_well", 0)
    exact = exact_smoother(inference_model("double_well", fold), fold.train, 0.01, fold.span)
    x = np.linspace(-3.0, 3.0, 1201)
    steps = round(fold.span[1] / 0.01)
    wanted = plain_evidence(lambda v: 4.0 * v * (1.0 - v**2), fold.train, 0.01, steps, 1.0, 1e-4, fold.sigma**2, x)
    assert_close(exact.log_evidence, wanted, "exact", "log evidence")
    assert exact.error < TOLERANCES["exact"]


@pytest.mark.slow
@pytest.mark.paper
@pytest.mark.parametrize("process", ["ou", "benes", "double_well", "sine", "sqrt"])
def test_the_bound_lies_below_the_evidence_on_every_fold(data_dir, process):
    for i in range(FOLDS):
        fold = load_fold(data_dir, process, i)
        model = inference_model(process, fold)
        exact = exact_smoother(model, fold.train, 0.01, fold.span)
        post = gv.infer(model, fold.train, 0.01, fold.span)
        gap = exact.log_evidence - post.elbo
        assert post.converged, f"fold {i}"
        if process == "ou":
            assert abs(gap) < TOLERANCES["evidence"], f"fold {i}"
        else:
            assert gap > exact.error, f"fold {i}: {gap:.3g} nats"
