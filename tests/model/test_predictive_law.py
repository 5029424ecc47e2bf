"""Predictive laws of outputs against SciPy's distributions and direct integration over z."""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.integrate
import scipy.stats as st
from support import assert_close
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.model.cumulative import law_of
from girsanov.model.predictive_law import Predictive

L = gv.likelihoods
Z = np.array([-0.7, 0.4, 1.3])
NONE = np.zeros(1)


def logistic(z):
    return 1.0 / (1.0 + np.exp(-z))


KNOWN = {
    "gaussian": (L.Gaussian(0.3), lambda z: st.norm(z, np.sqrt(0.3))),
    "student": (L.StudentT(0.5, 3.0), lambda z: st.t(3.0, z, 0.5)),
    "poisson": (L.Poisson(2.0), lambda z: st.poisson(2.0 * np.exp(z))),
    "negative binomial": (L.NegativeBinomial(1.7), lambda z: st.nbinom(1.7, 1.7 / (1.7 + np.exp(z)))),
    "binomial": (L.Binomial(5), lambda z: st.binom(5, logistic(z))),
    "bernoulli": (L.Bernoulli(), lambda z: st.bernoulli(logistic(z))),
    "gamma": (L.Gamma(2.5), lambda z: st.gamma(2.5, scale=np.exp(z) / 2.5)),
    "lognormal": (L.LogNormal(0.2), lambda z: st.lognorm(np.sqrt(0.2), scale=np.exp(z))),
    "volatility": (L.StochasticVolatility(), lambda z: st.norm(0.0, np.exp(0.5 * z))),
}
DISCRETE = ("poisson", "negative binomial", "binomial", "bernoulli")


@pytest.mark.parametrize("name", KNOWN)
def test_the_distribution_function_given_z_is_that_of_scipy(name):
    likelihood, made = KNOWN[name]
    law = law_of(likelihood, 0, 1)
    y = np.array([-1.0, 0.0, 1.0, 2.0, 5.0])[:, None] if name in DISCRETE else np.array([0.0, 0.3, 1.7, 4.0])[:, None]
    assert law.discrete == (name in DISCRETE)
    assert_close(law.upto(y, Z, 0.0), made(Z).cdf(y), "exact", size=1.0)
    before = made(Z).cdf(y - 1.0) if law.discrete else made(Z).cdf(y)
    assert_close(law.below(y, Z, 0.0), before, "exact", size=1.0)


def test_limits_and_categories_have_a_probability_of_their_own():
    law = law_of(L.Censored(0.25, low=0.0, high=2.0), 0, 1)
    noise = st.norm(Z, 0.5)
    for y, below, upto in ((0.0, 0.0 * Z, noise.cdf(0.0)), (2.0, noise.cdf(2.0), 1.0 + 0.0 * Z)):
        assert_close(law.below(np.array(y), Z, 0.0), below, "exact", size=1.0)
        assert_close(law.upto(np.array(y), Z, 0.0), upto, "exact", size=1.0)
    cutpoints = np.array([-1.0, 0.5])
    law = law_of(L.Ordinal(cutpoints), 0, 1)
    for k, wanted in ((0, logistic(-1.0 - Z)), (1, logistic(0.5 - Z)), (2, 1.0 + 0.0 * Z)):
        assert_close(law.upto(np.array(float(k)), Z, 0.0), wanted, "exact")


@pytest.mark.parametrize("name", KNOWN)
def test_the_mixture_over_z_is_the_integral(name):
    likelihood, made = KNOWN[name]
    model = gv.Model(gv.OrnsteinUhlenbeck(1.0), likelihood=likelihood)
    mean, variance = 0.4, 0.36
    laws = Predictive(model, np.zeros(1), np.array([[mean]]), np.array([[[variance]]]))
    y = 1.0

    def integrand(z):
        return made(z).cdf(y) * st.norm.pdf(z, mean, np.sqrt(variance))

    wanted, _ = scipy.integrate.quad(integrand, -8.0, 9.0, epsabs=1e-12, limit=400)
    assert abs(laws.cdf(0, np.array([y]))[1][0] - wanted) < TOLERANCES["integral"]
    q = laws.quantiles(0, np.array([0.1, 0.9]))[:, 0]
    assert (laws.cdf(0, q[:1])[1] >= 0.1).all() and (laws.cdf(0, q[1:])[1] >= 0.9).all()
    less = q - (1.0 if name in DISCRETE else 1e-6 * (1.0 + np.abs(q)))
    assert (laws.cdf(0, less[:1])[1] < 0.1).all() and (laws.cdf(0, less[1:])[1] < 0.9).all()


@pytest.fixture(scope="module")
def two():
    """Two coordinates, three outputs of H x + c with a full noise matrix."""
    H = np.array([[1.0, 0.0], [0.5, -1.0], [0.0, 2.0]])
    R = np.array([[0.3, 0.1, 0.0], [0.1, 0.2, 0.0], [0.0, 0.0, 0.5]])
    model = gv.Model(gv.Linear(-np.eye(2)), likelihood=L.Gaussian(R), emission=H, offset=[0.0, 1.0, 2.0])
    series = gv.simulate(model, np.arange(1, 9) * 0.5, key=jax.random.key(0), dt=0.1, start=0.0).series
    return gv.infer(model, series, dt=0.25, span=(0.0, 4.0))


def test_quantiles_of_gaussian_predictions_are_mean_and_sd(two):
    times = np.array([0.3, 2.0, 4.0])
    predicted = two.predict(times)
    got = two.predict_quantiles(times, [0.05, 0.5, 0.9])
    wanted = predicted.mean + st.norm.ppf([0.05, 0.5, 0.9])[:, None, None] * predicted.std
    assert_close(got, wanted, "exact")
    with pytest.raises(ValueError, match=r"probabilities between 0 and 1.*95"):
        two.predict_quantiles(times, 95)


def test_jumps_of_the_state_by_impulses_are_in_its_predictions():
    doses = gv.Inputs([1.2, 3.1], [2.0, -1.0], kind="impulse")
    model = gv.Model(gv.Linear([[-1.0]], 0.0, [[2.0]]), 0.3, likelihood=L.Gaussian(0.05))
    t = np.arange(1, 9) * 0.5
    post = gv.infer(model, gv.TimeSeries(t, np.sin(t), inputs=doses), dt=0.25, span=(0.0, 4.0), progress=False)
    times = np.array([0.5, 1.0, 1.5, 3.0, 3.5])
    predicted = post.predict(times)
    got = post.predict_quantiles(times, [0.1, 0.5])
    assert_close(got, predicted.mean + st.norm.ppf([0.1, 0.5])[:, None, None] * predicted.std, "exact")
    x, f = post.plot_drift(time=0.5).lines[0].get_data()
    assert_close(f, -x, "exact")  # between the doses the input is zero


def test_a_nonlinear_emission_has_the_law_of_its_function():
    """z = exp(x) with hardly any noise: quantiles are those of x, through exp."""
    model = gv.Model(gv.OrnsteinUhlenbeck(1.0), likelihood=L.Gaussian(1e-6), emission=lambda x, t: jax.numpy.exp(x))
    m, s = np.array([[0.2]]), np.array([[[0.25]]])
    laws = Predictive(model, np.zeros(1), m, s)
    got = laws.quantiles(0, np.array([0.1, 0.5, 0.9]))[:, 0]
    assert_close(got, np.exp(0.2 + 0.5 * st.norm.ppf([0.1, 0.5, 0.9])), "learnt")


def test_a_law_of_ones_own_is_that_of_its_draws():
    own = L.FromDistribution(lambda z: dist.Gumbel(z, 0.5))
    law = law_of(own, 0, 1)
    z = np.zeros((4000, 1))
    assert not law.discrete
    wanted = st.gumbel_r(0.0, 0.5).cdf(0.4)
    error = np.sqrt(wanted * (1.0 - wanted) / 4000)
    assert abs(law.upto(np.array([0.4]), z, 0.0).mean() - wanted) < TOLERANCES["standard_errors"] * error
    assert law_of(L.FromDistribution(lambda z: dist.Poisson(jax.numpy.exp(z))), 0, 1).discrete


@pytest.mark.slow
def test_draws_are_a_mixture():
    """An estimate of drawn paths predicts the mixture of its draws."""
    model = gv.Model(gv.DoubleWell(4.0, 1.0), 1.0, gv.GaussianState(0.0, 0.1), L.Poisson())
    post = gv.infer(model, gv.TimeSeries([0.5, 1.0], [1.0, 2.0]), dt=0.25, span=(0.0, 1.5))
    refined = post.refine(key=jax.random.key(0), ess=50, rhat=1.2, error=0.2, progress=False)
    z = refined.samples[:, refined.times == 0.5][:, 0, 0]  # an observation time: the draws are used as they are
    got = refined.predict_quantiles([0.5], [0.25, 0.5, 0.9])[:, 0, 0]
    for q, y in zip((0.25, 0.5, 0.9), got, strict=True):
        cdf = lambda k: st.poisson(np.exp(z)).cdf(k).mean()  # noqa: E731
        assert cdf(y) >= q > cdf(y - 1.0)
