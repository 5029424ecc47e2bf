"""Ornstein–Uhlenbeck with observations that are not Gaussian: the optimum of the bound, by an independent optimisation.

The reference knows no chain, no sites and no natural gradient: a dense Gaussian over all states, N(m, LLᵀ), whose bound
is maximised over (m, L) by L-BFGS with gradients from automatic differentiation.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from support import assert_close, linear_joint, split_dense
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


CASES = {
    "poisson": (gv.likelihoods.Poisson(), poisson, [0.0, 2.0, 1.0, 4.0, 0.0, 7.0]),
    "bernoulli": (gv.likelihoods.Bernoulli(), bernoulli, [1.0, 1.0, 0.0, 1.0, 0.0, 0.0]),
    "student-t": (gv.likelihoods.StudentT(scale=0.3, df=4.0), student_t, [0.2, 0.5, 0.1, 3.0, -0.4, -0.6]),
}


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


@pytest.mark.parametrize("case", CASES)
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
    m, S, C = split_dense(mean, cov, 1)
    assert_close(post.mean, m, "optimum_moments", "mean")
    assert_close(post.cov, S, "optimum_moments", "cov")
    assert_close(post.lag_cov, C, "optimum_moments", "lag-one cov")


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
