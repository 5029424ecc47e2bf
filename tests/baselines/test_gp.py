"""Gaussian process baselines against dense regression in NumPy, CVI-DP, brute-force grids and the authors' data."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.flatten_util import ravel_pytree
from support import assert_close
from tolerances import TOLERANCES

import girsanov as gv
from girsanov._core.precision import float64
from girsanov.baselines import gp, sparse_gp
from girsanov.baselines.gp import covariances, gp_regression
from girsanov.baselines.kernels import (
    Constant,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Product,
    Sum,
    ornstein_uhlenbeck_kernel,
)
from girsanov.baselines.sparse_gp import sparse_gp_regression
from girsanov.paper.data import FOLDS, load_fold


def r_of(t, s, lengthscale):
    return np.abs(t - s) / lengthscale


def k12(t, s, v=0.9, l=0.7):
    return v * np.exp(-r_of(t, s, l))


def k32(t, s, v=1.4, l=1.1):
    return v * (1 + np.sqrt(3) * r_of(t, s, l)) * np.exp(-np.sqrt(3) * r_of(t, s, l))


def k52(t, s, v=0.6, l=2.3):
    u = np.sqrt(5) * r_of(t, s, l)
    return v * (1 + u + u**2 / 3) * np.exp(-u)


A, B, C = Matern12(0.9, 0.7), Matern32(1.4, 1.1), Matern52(variance=0.6, lengthscale=2.3)
NOISE = np.array([0.04, 0.1])  # of two columns
TREND = Constant(2.0) + Linear(0.05)

KERNELS = {
    "Matérn-1/2": (A, k12),
    "Matérn-3/2": (B, k32),
    "Matérn-5/2": (C, k52),
    "constant": (Constant(1.7), lambda t, s: 1.7 + 0.0 * t * s),
    "linear": (Linear(0.2), lambda t, s: 0.2 * t * s),
    "sum": (Sum(A, B, C), lambda t, s: k12(t, s) + k32(t, s) + k52(t, s)),
    "product": (Product(A, C), lambda t, s: k12(t, s) * k52(t, s)),
    "the paper's": (TREND + A + B, lambda t, s: 2.0 + 0.05 * t * s + k12(t, s) + k32(t, s)),
    "nested": ((A + Linear(0.2)) * (C + Constant(1.7)), lambda t, s: (k12(t, s) + 0.2 * t * s) * (k52(t, s) + 1.7)),
}


def data(n: int, D: int = 1, missing: float = 0.0, seed: int = 0) -> gv.TimeSeries:
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(-2.0, 8.0, n))
    y = np.sin(t[:, None] + np.arange(D)) + 0.3 * t[:, None] + 0.2 * rng.normal(size=(n, D))
    y[rng.uniform(size=(n, D)) < missing] = np.nan
    return gv.TimeSeries(t, y)


def dense(k, r, series: gv.TimeSeries, s: np.ndarray):
    """Mean (n, D) and variance (n, D) of f at s, and log p(y), by one solve a column."""
    means, variances, evidence = [], [], 0.0
    for j, noise in enumerate(np.broadcast_to(r, series.dim)):
        keep = series.observed[:, j]
        t, y = series.times[keep], series.values[keep, j]
        own = 0.0 if series.errors is None else series.errors[keep, j] ** 2
        V, cross = k(t[:, None], t[None, :]) + np.diag(noise + own + 0.0 * t), k(s[:, None], t[None, :])
        means.append(cross @ np.linalg.solve(V, y))
        variances.append(k(s, s) - (cross * np.linalg.solve(V, cross.T).T).sum(1))
        evidence -= 0.5 * (y @ np.linalg.solve(V, y) + np.linalg.slogdet(2 * np.pi * V)[1])
    return np.stack(means, 1), np.stack(variances, 1), evidence


def variances(cov: np.ndarray) -> np.ndarray:
    """(n, D) variances of (n, D, D) covariances that must be diagonal."""
    diagonal = np.diagonal(cov, axis1=1, axis2=2)
    assert np.array_equal(cov, diagonal[:, :, None] * np.eye(cov.shape[1]))
    return diagonal


# Kernels


@pytest.mark.parametrize("name", KERNELS)
@float64
def test_kernels_are_their_formulas(name):
    kernel, k = KERNELS[name]
    t = data(20).times
    wanted = k(t[:, None], t[None, :])
    assert_close(kernel(t[:, None], t[None, :]), wanted, "exact")
    assert_close(kernel(t, t), np.diag(wanted), "exact")


@float64
def test_kernel_matched_to_an_ornstein_uhlenbeck_process():
    """Cov(x_s, x_t) = Q/(2 decay) exp(−decay |s − t|)."""
    kernel, t = ornstein_uhlenbeck_kernel(decay=1.2, diffusion=0.9), data(20).times
    wanted = 0.9 / 2.4 * np.exp(-1.2 * np.abs(t[:, None] - t))
    assert_close(kernel(t[:, None], t[None, :]), wanted, "exact")


def test_sums_and_products_say_what_they_are():
    kernel = Matern12(0.5) + Constant() * Linear(2.0) * Linear() + Matern32()
    assert [type(k) for k in kernel.kernels] == [Matern12, Product, Matern32]
    assert repr(kernel) == (
        "Sum(Matern12(variance=0.5, lengthscale=1), Product(Constant(variance=1), Linear(variance=2), "
        "Linear(variance=1)), Matern32(variance=1, lengthscale=1))"
    )


# Exact regression


@pytest.mark.parametrize("name", KERNELS)
def test_exact_regression_is_dense_regression(name):
    """At the times of the series and at others, between and beyond; two columns, each with its noise and its gaps."""
    kernel, k = KERNELS[name]
    series = data(500, D=2, missing=0.3)
    post = gp_regression(series, kernel=kernel, noise_variance=NOISE)
    mean, var, evidence = dense(k, NOISE, series, series.times)
    assert np.array_equal(post.times, series.times)
    assert_close(post.mean, mean, "evidence", "mean")
    assert_close(variances(post.cov), var, "evidence", "variance")
    assert_close(post.std, np.sqrt(var), "evidence", "standard deviation")
    assert_close(post.log_evidence, evidence, "evidence", "evidence")
    other = np.array([9.5, 0.123, -3.0, series.times[7], 4.2, 4.2])
    mean, var, _ = dense(k, NOISE, series, other)
    got = post.marginals(other)
    assert_close(got.mean, mean, "evidence", "mean elsewhere")
    assert_close(variances(got.cov), var, "evidence", "variance elsewhere")
    again = gp_regression(series, kernel=kernel, noise_variance=NOISE, times=other)
    assert np.array_equal(again.times, other)
    assert_close(again.mean, mean, "evidence")
    assert_close(variances(again.cov), var, "evidence")
    assert again.log_evidence == pytest.approx(evidence, rel=TOLERANCES["evidence"])


@pytest.mark.parametrize("regression", [gp_regression, sparse_gp_regression])
def test_known_errors_are_noise_of_their_values(regression):
    plain, at = data(20, D=2, missing=0.2), np.linspace(-2.0, 8.0, 7)
    errors = np.random.default_rng(3).uniform(0.05, 1.0, (20, 2))
    series = gv.TimeSeries(plain.times, plain.values, errors=errors)
    options = {"optimise": False} if regression is sparse_gp_regression else {}
    post = regression(series, kernel=A, noise_variance=NOISE, times=at, **options)
    mean, var, evidence = dense(k12, NOISE, series, at)
    assert_close(post.mean, mean, "evidence")
    assert_close(variances(post.cov), var, "evidence")
    assert_close(post.log_evidence, evidence, "evidence")
    assert_close(post.marginals(at[2:4]).mean, mean[2:4], "evidence")


@pytest.mark.parametrize("n", [1, 2])
def test_few_observations(n):
    series = gv.TimeSeries(np.arange(n), np.arange(n) + 0.5)
    post = gp_regression(series, kernel=A, noise_variance=0.1)
    mean, var, evidence = dense(k12, 0.1, series, series.times)
    assert_close(post.mean, mean, "exact")
    assert_close(variances(post.cov), var, "exact")
    assert_close(post.log_evidence, evidence, "exact")


def test_a_vague_prior_costs_few_digits():
    """A slope with prior variance one of which the data leave 1e-12; in closed form."""
    t, r = np.linspace(0.0, 5000.0, 2000), 0.04
    y = 0.01 * t + 0.2 * np.random.default_rng(0).normal(size=len(t))
    post = gp_regression(gv.TimeSeries(t, y), kernel=Linear(1.0), noise_variance=r)
    var = r * t**2 / (r + t @ t)
    assert_close(post.mean[:, 0], t * (t @ y) / (r + t @ t), "exact")
    assert_close(variances(post.cov)[:, 0] / var.max(), var / var.max(), "exact")


def test_observations_next_to_each_other():
    t = np.sort(np.append(np.linspace(0.0, 1.0, 30), 0.5 + 1e-9 * np.arange(30)))
    series = gv.TimeSeries(t, np.sin(t))
    post = gp_regression(series, kernel=C, noise_variance=0.01)
    mean, var, evidence = dense(k52, 0.01, series, t)
    assert_close(post.mean[:, 0], mean[:, 0], "exact")
    assert_close(variances(post.cov), var, "exact")
    assert_close(post.log_evidence, evidence, "evidence")


def test_a_column_without_data_keeps_its_prior():
    series = gv.TimeSeries([0.0, 1.0], [[1.0, np.nan], [2.0, np.nan]])
    post = gp_regression(series, kernel=A, noise_variance=0.1)
    alone = gp_regression(gv.TimeSeries([0.0, 1.0], [1.0, 2.0]), kernel=A, noise_variance=0.1)
    assert_close(post.mean[:, 1], np.zeros(2), "exact", size=1.0)
    assert_close(variances(post.cov)[:, 1], np.full(2, 0.9), "exact")
    assert_close(post.log_evidence, alone.log_evidence, "exact")


@pytest.mark.parametrize("regression", [gp_regression, sparse_gp_regression])
def test_results_offer_what_every_estimate_offers(regression):
    series, test = data(30, D=2), data(9, D=2, missing=0.2, seed=1)
    options = {"optimise": False} if regression is sparse_gp_regression else {}
    post = regression(series, kernel=A, noise_variance=NOISE, **options)
    mean, var, _ = dense(k12, NOISE, series, test.times)
    sd = np.sqrt(var + NOISE)
    predicted = post.predict(test.times)
    assert_close(predicted.mean, mean, "evidence")
    assert_close(predicted.std, sd, "evidence")
    log_density = np.where(test.observed, scipy.stats.norm.logpdf(test.values, mean, sd), 0.0).sum(1)
    assert_close(post.nlpd_values(test), -log_density, "evidence")
    assert_close(post.nlpd(test), -np.mean(log_density[test.observed.any(1)]), "evidence")
    assert_close(post.rmse(test), np.sqrt(np.nanmean((test.values - mean) ** 2)), "evidence")
    assert post.converged
    assert post.message == "the parameters are as given"
    assert post.plot(test=test).axes
    for a in (post.times, post.mean, post.cov, post.std, post.noise_variance, *predicted):
        assert isinstance(a, np.ndarray)
        assert a.dtype == np.float64
    assert isinstance(post.log_evidence, float)
    assert jnp.ones(1).dtype == jnp.float32  # in the rest of the program


def test_cvi_dp_in_continuous_time_is_the_matched_gaussian_process():
    series = data(40, missing=0.2)
    likelihood = gv.likelihoods.Gaussian(0.04)
    model = gv.Model(gv.OrnsteinUhlenbeck(1.2), 0.9, "stationary", likelihood)
    post = gv.infer(model, series, dt=0.1, method=gv.CVIDP(time="continuous"), progress=False)
    exact = gp_regression(series, kernel=ornstein_uhlenbeck_kernel(1.2, 0.9), noise_variance=0.04, times=post.times)
    assert_close(post.mean, exact.mean, "evidence", "mean")
    assert_close(post.cov, exact.cov, "evidence", "covariance")
    assert_close(post.elbo, exact.log_evidence, "evidence", "evidence")


def test_a_hundred_thousand_observations():
    """Far from both ends of a window that is wide beside the lengthscale, the window alone gives the same posterior."""
    n, rng = 100_000, np.random.default_rng(0)
    t = np.sort(rng.uniform(0.0, 5000.0, n))
    series = gv.TimeSeries(t, np.sin(t) + 0.2 * rng.normal(size=n))
    post = gp_regression(series, kernel=Matern32(1.0, 0.5), noise_variance=0.04)
    assert post.mean.shape == (n, 1)
    window, middle = series.subset(slice(50_000, 50_800)), slice(50_390, 50_410)
    mean, var, _ = dense(lambda t, s: k32(t, s, 1.0, 0.5), 0.04, window, t[middle])
    assert_close(post.mean[middle], mean, "evidence")
    assert_close(variances(post.cov[middle]), var, "evidence")


# Hyperparameters


def zoomed(f, low, high, rounds=5, points=13):
    """Maximum of f and where it is, on grids that close in on it; and the spacing of the last grid."""
    low, high = np.array(low), np.array(high)
    for _ in range(rounds):
        axes = [np.linspace(a, b, points) for a, b in zip(low, high, strict=True)]
        nodes = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
        values = np.array([f(node) for node in nodes])
        best, step = nodes[values.argmax()], (high - low) / (points - 1)
        low, high = best - 1.5 * step, best + 1.5 * step
    return values.max(), best, step


def test_optimised_parameters_are_the_maximum_of_a_grid():
    series = data(40)
    log = lambda v: dense(lambda t, s: k32(t, s, np.exp(v[0]), np.exp(v[1])), 0.04, series, series.times[:1])[2]  # noqa: E731
    value, best, step = zoomed(log, [-2.0, -1.0], [4.0, 3.0])
    post = gp_regression(series, kernel=Matern32(0.5, 0.4), noise_variance=0.04, optimise=True)
    assert post.converged
    assert post.noise_variance == 0.04
    assert 0.0 <= post.log_evidence - value < TOLERANCES["converged"]
    found = np.log([post.kernel.variance, post.kernel.lengthscale])
    assert (np.abs(found - best) < step).all()


def test_noise_is_optimised_on_request():
    series = data(40)
    log = lambda v: dense(lambda t, s: k32(t, s, 3.0, 2.0), np.exp(v[0]), series, series.times[:1])[2]  # noqa: E731
    value, best, step = zoomed(log, [-6.0], [1.0], points=25)
    post = gp_regression(series, kernel=Matern32(3.0, 2.0), noise_variance=1.0, optimise_noise=True)
    assert post.kernel.variance == 3.0
    assert abs(float(np.log(post.noise_variance)) - best[0]) < step[0]
    assert 0.0 <= post.log_evidence - value < TOLERANCES["converged"]
    both = gp_regression(series, kernel=Matern32(3.0, 2.0), noise_variance=1.0, optimise=True, optimise_noise=True)
    assert both.converged
    assert both.log_evidence > post.log_evidence
    refit = gp_regression(series, kernel=both.kernel, noise_variance=both.noise_variance)
    assert_close(refit.log_evidence, both.log_evidence, "exact")


@float64
def test_a_start_without_a_gradient_is_said_to_be():
    flat = lambda kernel, noise, _: jnp.sqrt(0.0 * kernel.variance) + noise  # noqa: E731
    fit = gp.maximise(flat, (A, np.asarray(0.1)), (True, False), None, 10)
    assert not fit.converged
    assert "gradient at the given parameters is not finite" in fit.message
    assert fit.kernel is A


@float64
def assert_gradient(objective, kernel, arrays):
    """Of the objective in the logarithms of all parameters, against central differences."""
    varied, fixed = eqx.partition((kernel, NOISE), True)
    theta = np.log(ravel_pytree(varied)[0])
    value = lambda theta: gp._slope(objective, theta, varied, fixed, arrays)  # noqa: E731
    got, eps = value(theta)[1], 1e-5
    assert got.dtype == np.float64
    steps = eps * np.eye(len(theta))
    wanted = [(float(value(theta + e)[0]) - float(value(theta - e)[0])) / (2 * eps) for e in steps]
    assert_close(got, wanted, "gradient")


MIXED = Constant(1.7) + A + Linear(0.2) * B


def test_gradient_of_the_evidence():
    series = data(25, D=2, missing=0.3)
    assert_gradient(gp._evidence, MIXED, gp._padded(series.times, series))


def test_gradient_of_the_bound():
    series = data(25, D=2, missing=0.3)
    arrays = sparse_gp._data(series, np.linspace(-2.0, 8.0, 7), 1e-6)
    assert_gradient(sparse_gp._bound, MIXED, arrays)


# Sparse regression


def test_inducing_points_at_all_inputs_give_the_exact_posterior():
    kernel, _ = KERNELS["the paper's"]
    series = data(120, D=2, missing=0.2)
    times = np.append(series.times, [-3.0, 0.123, 9.5])
    options = {"kernel": kernel, "noise_variance": NOISE, "times": times}
    exact, sparse = gp_regression(series, **options), sparse_gp_regression(series, optimise=False, **options)
    assert np.array_equal(sparse.inducing, series.times[series.observed.any(1)])
    assert sparse.elbo == sparse.log_evidence
    assert_close(sparse.log_evidence, exact.log_evidence, "optimum", "evidence")
    assert_close(sparse.mean, exact.mean, "optimum", "mean")
    assert_close(sparse.cov, exact.cov, "optimum", "covariance")


def titsias(k, r, z, series, s):
    """The bound and the moments at s from their definitions, one column without missing values."""
    t, y = series.times, series.values[:, 0]
    K_uf, K_us, K_uu = k(z[:, None], t[None, :]), k(z[:, None], s[None, :]), k(z[:, None], z[None, :])
    Q = K_uf.T @ np.linalg.solve(K_uu, K_uf)
    bound = scipy.stats.multivariate_normal.logpdf(y, np.zeros(len(t)), Q + r * np.eye(len(t)))
    bound -= 0.5 * (k(t, t) - np.diag(Q)).sum() / r
    inner = np.linalg.inv(K_uu + K_uf @ K_uf.T / r)
    mean = K_us.T @ inner @ K_uf @ y / r
    return bound, mean, k(s, s) - (K_us * ((np.linalg.inv(K_uu) - inner) @ K_us)).sum(0)


def test_sparse_regression_is_titsias_s():
    kernel, k = KERNELS["the paper's"]
    series, s = data(60), np.linspace(-3.0, 9.0, 20)
    post = sparse_gp_regression(series, kernel=kernel, noise_variance=0.04, inducing=9, optimise=False, times=s)
    assert len(post.inducing) == 9
    assert_close(post.inducing, np.quantile(series.times, np.linspace(0, 1, 9)), "exact")
    bound, mean, var = titsias(k, 0.04, post.inducing, series, s)
    assert_close(post.elbo, bound, "evidence", "bound")
    assert_close(post.mean[:, 0], mean, "evidence", "mean")
    assert_close(variances(post.cov)[:, 0], var, "evidence", "variance")


def test_the_bound_rises_with_inducing_points_to_the_evidence():
    series = data(120)
    options = {"kernel": KERNELS["the paper's"][0], "noise_variance": 0.04}
    exact = gp_regression(series, **options).log_evidence
    nested = [series.times[:: 2**j] for j in (4, 2, 0)]
    bounds = [sparse_gp_regression(series, inducing=z, optimise=False, **options).elbo for z in nested]
    assert (np.diff(bounds) > 0).all()
    assert bounds[-2] < exact
    assert_close(bounds[-1], exact, "optimum")
    with_jitter = sparse_gp_regression(series, inducing=nested[1], optimise=False, jitter=1e-3, **options).elbo
    assert with_jitter < bounds[1]


def test_the_bound_is_optimised_over_the_paper_s_kernel():
    series = data(60)
    start = sparse_gp_regression(series, noise_variance=0.3, inducing=12, optimise=False)
    assert [type(k) for k in start.kernel.kernels] == [Constant, Linear, Matern12, Matern32]
    assert jax.tree.leaves(start.kernel) == [1.0] * 6
    post = sparse_gp_regression(series, noise_variance=0.3, inducing=12, optimise_noise=True)
    assert post.converged
    assert post.elbo > start.elbo
    assert post.noise_variance != start.noise_variance
    found = {"kernel": post.kernel, "noise_variance": post.noise_variance}
    assert post.elbo < gp_regression(series, **found).log_evidence
    again = sparse_gp_regression(series, inducing=12, optimise_noise=True, **found)
    assert 0.0 <= again.elbo - post.elbo < TOLERANCES["converged"]


# The authors' data


@pytest.mark.paper
def test_table_1_gaussian_process_regression_on_the_ornstein_uhlenbeck_folds(data_dir):
    """The paper's row GPR, column OU: .377 ± .241."""
    scores = []
    for fold in range(FOLDS):
        held = load_fold(data_dir, "ou", fold)
        kernel = ornstein_uhlenbeck_kernel(1.2, held.Q[0, 0])
        post = gp_regression(held.train, kernel=kernel, noise_variance=held.sigma**2)
        scores.append(post.nlpd(held.test))
    assert abs(np.mean(scores) - 0.377) < TOLERANCES["nlpd"]
    assert abs(np.std(scores) - 0.241) < TOLERANCES["nlpd"]


# Bad input


SERIES = gv.TimeSeries([0.0, 1.0, 2.0], [0.1, 0.4, 0.2])
BAD_KERNELS = {
    "negative variance": (lambda: Matern12(variance=-1.0), r"Matern12: variance must be positive.*got -1\.0"),
    "zero lengthscale": (lambda: Matern52(lengthscale=0.0), r"Matern52: lengthscale must be positive.*got 0\.0"),
    "infinite": (lambda: Constant(np.inf), "Constant: variance must be positive and finite, got inf"),
    "not a scalar": (lambda: Linear([1.0, 2.0]), r"Linear: variance.*got \[1\.0, 2\.0\]"),
    "sum with a number": (lambda: Matern12() + 1.0, r"a kernel is Matern12.*got 1\.0"),
    "empty sum": (lambda: Sum(), r"Sum\(\) has no kernels"),
    "negative decay": (lambda: ornstein_uhlenbeck_kernel(-1.2, 1.0), r"decay must be positive.*got -1\.2"),
    "negative diffusion": (lambda: ornstein_uhlenbeck_kernel(1.2, -1.0), r"diffusion must be positive.*got -1\.0"),
}


@pytest.mark.parametrize("name", BAD_KERNELS)
def test_bad_kernels(name, as_a_user):
    make, message = BAD_KERNELS[name]
    with pytest.raises(ValueError, match=message):
        make()


BAD_CALLS = {
    "unknown kernel": ({"kernel": "rbf"}, r"a kernel is Matern12.*such as Matern12\(.*got 'rbf'"),
    "negative noise": ({"noise_variance": -0.1}, r"noise_variance must be positive.*got -0\.1"),
    "noise of another shape": ({"noise_variance": [0.1, 0.2]}, r"noise_variance must be.*\(1,\), got shape \(2,\)"),
    "times with NaN": ({"times": [0.0, np.nan]}, r"times\[1\] is nan"),
    "times of a wrong shape": ({"times": np.zeros((2, 2))}, r"times must have shape \(n,\).*\(2, 2\)"),
    "no times": ({"times": []}, r"times must have shape \(n,\) with n ≥ 1"),
}
BAD_SPARSE_CALLS = {
    "no inducing points": ({"inducing": 0}, "inducing must be a whole number of at least 1.*got 0"),
    "half a point": ({"inducing": 2.5}, r"inducing must be.*got 2\.5"),
    "inducing inputs with NaN": ({"inducing": [0.0, np.nan]}, r"inducing\[1\] is nan"),
    "negative jitter": ({"jitter": -1e-6}, r"jitter must be zero or a small positive number.*got -1e-06"),
}


@pytest.mark.parametrize("regression", [gp_regression, sparse_gp_regression])
@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls(name, regression, as_a_user):
    options, message = BAD_CALLS[name]
    with pytest.raises(ValueError, match=message):
        regression(SERIES, **{"kernel": A, "noise_variance": 0.1, **options})


@pytest.mark.parametrize("name", BAD_SPARSE_CALLS)
def test_bad_sparse_calls(name, as_a_user):
    options, message = BAD_SPARSE_CALLS[name]
    with pytest.raises(ValueError, match=message):
        sparse_gp_regression(SERIES, noise_variance=0.1, **options)


def test_bad_data(as_a_user):
    arrays: Any = (SERIES.times, SERIES.values)
    with pytest.raises(ValueError, match=r"must be a gv\.TimeSeries, got tuple"):
        gp_regression(arrays, kernel=A, noise_variance=0.1)
    with pytest.raises(ValueError, match="every value is missing"):
        gp_regression(gv.TimeSeries([0.0, 1.0], [np.nan, np.nan]), kernel=A, noise_variance=0.1)
    post = gp_regression(SERIES, kernel=A, noise_variance=0.1)
    with pytest.raises(ValueError, match="the test series has 2 values at each time, but the model observes 1"):
        post.nlpd(data(5, D=2))


def test_inducing_inputs_too_close_for_float64_are_said_to_be_and_jitter_is_the_remedy():
    options = {"kernel": Matern52(1.0, 100.0), "noise_variance": 0.1, "inducing": np.linspace(0.0, 2.0, 200)}
    with pytest.raises(ValueError, match=r"200 inducing values is not positive definite.*jitter=1e-8 \(it is 0\)"):
        sparse_gp_regression(SERIES, optimise=False, **options)
    sparse = sparse_gp_regression(SERIES, optimise=False, jitter=1e-8, **options)
    exact = gp_regression(SERIES, kernel=options["kernel"], noise_variance=0.1)
    assert sparse.elbo < exact.log_evidence
    assert exact.log_evidence - sparse.elbo < TOLERANCES["converged"]


def test_noise_too_small_for_float64_is_said_to_be():
    t = np.linspace(0.0, 1e-3, 50)
    with pytest.raises(ValueError, match=r"the log evidence is.*noise_variance = 1e-30 is too small.*raise it"):
        gp_regression(gv.TimeSeries(t, np.sin(t)), kernel=Matern52(1.0, 10.0), noise_variance=1e-30)


def test_a_variance_whose_digits_are_lost_is_an_error():
    times, prior = np.array([0.0, 0.5]), np.array([1.0, 2.0])
    kept = covariances(times, np.array([[0.3], [-1e-12]]), prior)
    assert kept.ravel().tolist() == [0.3, 0.0]
    with pytest.raises(
        ValueError, match=r"at time 0\.5 came out as -0\.001, with a prior variance 2: .*noise_variance"
    ):
        covariances(times, np.array([[0.3], [-1e-3]]), prior)
