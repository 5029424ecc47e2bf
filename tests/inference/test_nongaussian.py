"""Ornstein–Uhlenbeck with observations that are not Gaussian: the optimum of the bound, by an independent optimisation.

The reference knows no chain, no sites and no natural gradient: a dense Gaussian over all states, N(m, LLᵀ), whose bound
is maximised over (m, L) by L-BFGS with gradients from automatic differentiation.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.optimize
import scipy.special
from support import assert_gaussian, linear_joint, split_dense
from tolerances import TOLERANCES

import girsanov as gv

DECAY, Q = 0.9, 1.3
GRID = np.array([0.0, 0.1, 0.25, 0.3, 0.45, 0.6, 0.62, 0.8, 1.0, 1.1, 1.3, 1.5])
NODE = np.array([0, 2, 3, 5, 8, 11])


def poisson(y, z):
    return y * z - jnp.exp(z) - scipy.special.gammaln(y + 1.0)


def bernoulli(y, z):
    return y * z - jnp.logaddexp(0.0, z)


def student_t(y, z, df=4.0, scale=0.3):
    c = scipy.special.gammaln((df + 1) / 2) - scipy.special.gammaln(df / 2) - 0.5 * np.log(df * np.pi) - np.log(scale)
    return c - 0.5 * (df + 1) * jnp.log1p(((y - z) / scale) ** 2 / df)


def negative_binomial(y, z, r=1.5):
    choose = scipy.special.gammaln(y + r) - scipy.special.gammaln(r) - scipy.special.gammaln(y + 1.0)
    return choose + r * np.log(r) + y * z - (y + r) * jnp.log(r + jnp.exp(z))


def binomial(y, z, n=7):
    return np.log(scipy.special.comb(n, y)) + y * z - n * jnp.logaddexp(0.0, z)


def ordinal(y, z, cutpoints=(-1.0, 0.5)):
    below = jnp.stack([jnp.zeros_like(z), *(jax.nn.sigmoid(c - z) for c in cutpoints), jnp.ones_like(z)])
    k = np.broadcast_to(y, z.shape).astype(int)
    return jnp.log(jnp.take_along_axis(jnp.diff(below, axis=0), k[None], 0)[0])


def gamma(y, z, k=3.0):
    return k * np.log(k) - scipy.special.gammaln(k) + (k - 1.0) * np.log(y) - k * z - k * y * jnp.exp(-z)


def log_normal(y, z, v=0.2):
    return -0.5 * ((np.log(y) - z) ** 2 / v + np.log(2.0 * np.pi * v)) - np.log(y)


def censored(y, z, v=0.2, low=-0.5):
    sd = np.sqrt(v)
    return jnp.where(y <= low, jax.scipy.stats.norm.logcdf(low, z, sd), jax.scipy.stats.norm.logpdf(y, z, sd))


def volatility(y, z):
    return jax.scipy.stats.norm.logpdf(y, 0.0, jnp.exp(0.5 * z))


CASES = {
    "poisson": (gv.likelihoods.Poisson(), poisson, [0.0, 2.0, 1.0, 4.0, 0.0, 7.0]),
    "bernoulli": (gv.likelihoods.Bernoulli(), bernoulli, [1.0, 1.0, 0.0, 1.0, 0.0, 0.0]),
    "student-t": (gv.likelihoods.StudentT(scale=0.3, df=4.0), student_t, [0.2, 0.5, 0.1, 3.0, -0.4, -0.6]),
    "censored": (gv.likelihoods.Censored(0.2, low=-0.5), censored, [0.2, -0.5, 0.1, 1.3, -0.5, -0.4]),
    "negative binomial": (gv.likelihoods.NegativeBinomial(1.5), negative_binomial, [0.0, 2.0, 1.0, 4.0, 0.0, 9.0]),
    "binomial": (gv.likelihoods.Binomial(7), binomial, [0.0, 2.0, 1.0, 7.0, 3.0, 5.0]),
    "ordinal": (gv.likelihoods.Ordinal([-1.0, 0.5]), ordinal, [0.0, 1.0, 1.0, 2.0, 2.0, 0.0]),
    "gamma": (gv.likelihoods.Gamma(3.0), gamma, [0.4, 2.0, 1.0, 4.0, 0.3, 7.0]),
    "log-normal": (gv.likelihoods.LogNormal(0.2), log_normal, [0.4, 2.0, 1.0, 4.0, 0.3, 7.0]),
    "volatility": (gv.likelihoods.StochasticVolatility(), volatility, [0.4, -2.0, 0.01, 4.0, 0.3, -1.0]),
}
QUICK = ("poisson", "bernoulli", "student-t", "censored")


def maximise_dense_bound(log_density, y, nodes: int):
    """max over (m, L) of Σ E log p(y_i | x_i) − KL(N(m, LLᵀ) ‖ prior), with the maximiser's mean and covariance."""
    M, N = len(GRID) - 1, len(GRID)
    A, b = np.full((M, 1, 1), -DECAY), np.zeros((M, 1))
    prior_mean, prior_cov = linear_joint(A, b, Q, np.zeros(1), Q / (2 * DECAY), GRID)
    precision, log_det = np.linalg.inv(prior_cov), np.linalg.slogdet(prior_cov)[1]
    xi, w = np.polynomial.hermite_e.hermegauss(nodes)
    w = w / w.sum()
    rows, cols = np.tril_indices(N)
    prior_root = np.linalg.cholesky(prior_cov)

    def unpack(v):
        # in coordinates where the prior is standard normal; exp keeps the diagonal of the factor positive
        raw = jnp.zeros((N, N)).at[rows, cols].set(v[N:])
        L = prior_root @ (jnp.tril(raw, -1) + jnp.diag(jnp.exp(jnp.diagonal(raw))))
        return prior_mean + prior_root @ v[:N], L

    def negative_bound(v):
        m, L = unpack(v)
        sd = jnp.sqrt((L[NODE] ** 2).sum(1))
        likelihood = (log_density(y[:, None], m[NODE, None] + sd[:, None] * xi) @ w).sum()
        e = m - prior_mean
        trace = (precision * (L @ L.T)).sum()
        kl = 0.5 * (trace + e @ precision @ e - N + log_det) - jnp.log(jnp.diagonal(L)).sum()
        return kl - likelihood

    value_and_grad = jax.jit(jax.value_and_grad(negative_bound))

    def fun(v):
        value, grad = value_and_grad(v)
        return float(value), np.asarray(grad)

    options = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30}
    result = scipy.optimize.minimize(fun, np.zeros(N + N * (N + 1) // 2), jac=True, method="L-BFGS-B", options=options)
    assert np.abs(result.jac).max() < TOLERANCES["stationary"], "the reference itself has not converged"
    m, L = (np.asarray(a) for a in unpack(result.x))
    return -float(result.fun), m, L @ L.T


@pytest.mark.parametrize("case", [c if c in QUICK else pytest.param(c, marks=pytest.mark.slow) for c in CASES])
def test_optimum_equals_an_independent_optimisation(case):
    likelihood, log_density, y = CASES[case]
    y = np.array(y)
    model = gv.Model(gv.OrnsteinUhlenbeck(DECAY), Q, "stationary", likelihood)
    post = gv.infer(model, gv.TimeSeries(GRID[NODE], y), grid=GRID)
    assert post.converged
    with jax.enable_x64(True):
        bound, mean, cov = maximise_dense_bound(log_density, y, nodes=80)
    assert abs(post.elbo - bound) < TOLERANCES["optimum"]
    # Near the optimum the bound is flat: an error of ε nats in it is one of about √ε in the moments.
    assert_gaussian((post.mean, post.cov, post.lag_cov), split_dense(mean, cov, 1), "optimum_moments")


def test_missing_entries_are_as_if_never_observed():
    """Two outputs of one state, each missing at times: the bound of the entries that are there."""
    likelihood, log_density, y = CASES["poisson"]
    y = np.array(y)
    values = np.full((len(y), 2), np.nan)
    values[::2, 0], values[1::2, 1] = y[::2], y[1::2]
    model = gv.Model(gv.OrnsteinUhlenbeck(DECAY), Q, "stationary", likelihood, emission=[[1.0], [1.0]])
    post = gv.infer(model, gv.TimeSeries(GRID[NODE], values), grid=GRID)
    with jax.enable_x64(True):
        bound, _, _ = maximise_dense_bound(log_density, y, nodes=80)
    assert abs(post.elbo - bound) < TOLERANCES["optimum"]


LEARNT = {
    "censored": (
        gv.likelihoods.Censored(0.5, low=-0.5),
        "variance",
        np.log,
        lambda v: {"variance": np.exp(v), "low": -0.5},
    ),
    "negative binomial": (
        gv.likelihoods.NegativeBinomial(4.0),
        "dispersion",
        np.log,
        lambda v: {"dispersion": np.exp(v)},
    ),
    "ordinal": (gv.likelihoods.Ordinal([-0.6, 0.1]), "cutpoints", lambda c: c, lambda c: {"cutpoints": c}),
    "gamma": (gv.likelihoods.Gamma(1.0), "shape", np.log, lambda v: {"shape": np.exp(v)}),
    "log-normal": (gv.likelihoods.LogNormal(0.5), "variance", np.log, lambda v: {"variance": np.exp(v)}),
}


@pytest.mark.parametrize("case", [c if c == "ordinal" else pytest.param(c, marks=pytest.mark.slow) for c in LEARNT])
def test_parameters_of_likelihoods_are_learnt(case):
    """The maximum over the likelihood's own parameters, by a search without derivatives over bounds of `infer`."""
    start, name, inwards, options = LEARNT[case]
    series = gv.TimeSeries(GRID[NODE], np.array(CASES[case][2]))

    def model(likelihood):
        return gv.Model(gv.OrnsteinUhlenbeck(DECAY), Q, "stationary", likelihood)

    fit = gv.learn(
        model(start), series, grid=GRID, trainable="likelihood", tolerance=1e-9, parameter_tolerance=1e-6,
        standard_errors=False, progress=False,
    )  # fmt: skip
    assert fit.converged

    def negative_bound(v):
        values = options(v if case == "ordinal" else v[0])
        if case == "ordinal" and not np.diff(v)[0] > 0.0:
            return np.inf
        return -gv.infer(model(type(start)(**values)), series, grid=GRID, tolerance=1e-10).elbo

    found = np.atleast_1d(inwards(fit.parameters[f"likelihood.{name}"]))
    limits = {"xatol": 1e-6, "fatol": 1e-10}
    best = scipy.optimize.minimize(negative_bound, found + 0.05, method="Nelder-Mead", options=limits)
    assert abs(fit.elbo + best.fun) < TOLERANCES["optimum"]
    assert np.abs(found - best.x).max() < TOLERANCES["likelihood_maximum"]


@pytest.mark.parametrize("case", CASES)
def test_saved_and_loaded(case, tmp_path):
    likelihood, _, y = CASES[case]
    model = gv.Model(gv.OrnsteinUhlenbeck(DECAY), Q, "stationary", likelihood)
    post = gv.infer(model, gv.TimeSeries(GRID[NODE], np.array(y)), grid=GRID)
    again = gv.load(post.save(tmp_path / "post.gv"))
    assert type(again.model.likelihood) is type(likelihood)
    assert np.array_equal(again.predict(GRID).mean, post.predict(GRID).mean)
    assert again.nlpd(post.series) == post.nlpd(post.series)


def test_a_distribution_of_numpyro_is_code_and_has_to_be_given_again(tmp_path):
    own = gv.likelihoods.FromDistribution(lambda z: dist.Poisson(jnp.exp(z)))
    y = np.array(CASES["poisson"][2])
    model = gv.Model(gv.OrnsteinUhlenbeck(DECAY), Q, "stationary", own)
    post = gv.infer(model, gv.TimeSeries(GRID[NODE], y), grid=GRID)
    wanted = gv.infer(
        gv.Model(gv.OrnsteinUhlenbeck(DECAY), Q, "stationary", gv.likelihoods.Poisson()), post.series, grid=GRID
    )
    assert abs(post.elbo - wanted.elbo) < TOLERANCES["optimum"]
    path = post.save(tmp_path / "post.gv")
    with pytest.raises(ValueError, match=r"likelihood of your own"):
        gv.load(path)
    assert gv.load(path, likelihood=own).elbo == post.elbo
