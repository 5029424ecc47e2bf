"""Every likelihood of the library keeps the contract. A new class needs an example here, and nothing else.

The reference is brute force: a fine grid over both outputs and the log densities of SciPy.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.interpolate
import scipy.special
import scipy.stats
from support import assert_close
from tolerances import TOLERANCES

import girsanov as gv
from girsanov._core.compile import compiled
from girsanov._core.special import log_rising
from girsanov.model import likelihoods, predictive
from girsanov.model.likelihoods import (
    LIKELIHOODS,
    Bernoulli,
    Binomial,
    Censored,
    Elementwise,
    FromDistribution,
    Gamma,
    Gaussian,
    Joint,
    Likelihood,
    LogNormal,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StochasticVolatility,
    StudentT,
)

R = np.array([[0.5, 0.2], [0.2, 0.3]])


def gaussian(cov):
    """log p(y | z) of any subset of entries; mean and covariance of y given z."""

    def log_density(y, z, keep):
        return scipy.stats.multivariate_normal(np.zeros(keep.sum()), cov[np.ix_(keep, keep)]).logpdf((y - z)[..., keep])

    return log_density, lambda z: (z, np.broadcast_to(cov, (*z.shape, 2)))


def independent(log_density, moments):
    """The same from a density of each entry, log_density(y, z, entry), and its mean and variance given z."""

    def joint(y, z, keep):
        return sum((log_density(y[i], z[..., i], i) for i in range(2) if keep[i]), np.zeros(z.shape[:-1]))

    def conditional(z):
        mean, var = moments(z)
        return mean, var[..., None] * np.eye(2)

    return joint, conditional


def poisson(exposure):
    exposure = np.broadcast_to(exposure, (2,))
    return independent(
        lambda y, z, i: scipy.stats.poisson.logpmf(y, exposure[i] * np.exp(z)), lambda z: (exposure * np.exp(z),) * 2
    )


mixed = independent(
    lambda y, z, i: scipy.stats.poisson.logpmf(y, np.exp(z)) if i else scipy.stats.norm.logpdf(y, z, np.sqrt(0.5)),
    lambda z: (
        np.stack([z[..., 0], np.exp(z[..., 1])], -1),
        np.stack([np.full(z.shape[:-1], 0.5), np.exp(z[..., 1])], -1),
    ),
)


def sigmoid(z):
    return 1.0 / (1.0 + np.exp(-z))


def student(scale, df):
    scale = np.broadcast_to(scale, (2,))
    var = scale**2 * df / (df - 2.0)
    return independent(
        lambda y, z, i: scipy.stats.t.logpdf(y, df, loc=z, scale=scale[i]), lambda z: (z, np.broadcast_to(var, z.shape))
    )


bernoulli = independent(
    lambda y, z, i: scipy.stats.bernoulli.logpmf(int(y), sigmoid(z)), lambda z: (sigmoid(z), sigmoid(z) * sigmoid(-z))
)


def negative_binomial(r):
    r = np.broadcast_to(r, (2,))
    return independent(
        lambda y, z, i: scipy.stats.nbinom.logpmf(y, r[i], r[i] / (r[i] + np.exp(z))),
        lambda z: (np.exp(z), np.exp(z) + np.exp(2.0 * z) / r),
    )


def binomial(n):
    return independent(
        lambda y, z, i: scipy.stats.binom.logpmf(y, n, sigmoid(z)),
        lambda z: (n * sigmoid(z), n * sigmoid(z) * sigmoid(-z)),
    )


def ordinal(cutpoints):
    """From the probabilities of all categories, as differences of the distribution function."""

    def probabilities(z):
        below = scipy.stats.logistic.cdf(np.asarray(cutpoints) - z[..., None])
        return np.diff(below, axis=-1, prepend=0.0, append=1.0)

    def moments(z):
        p, k = probabilities(z), np.arange(len(cutpoints) + 1)
        return p @ k, p @ k**2 - (p @ k) ** 2

    return independent(lambda y, z, i: np.log(probabilities(z)[..., int(y)]), moments)


def censored(variance, low, high):
    """Its moments by a fine rule over the noise, tabulated along z."""
    variance = np.broadcast_to(variance, (2,))

    def log_density(y, z, i):
        law = scipy.stats.norm(z, np.sqrt(variance[i]))
        return law.logcdf(low) if y <= low else law.logsf(high) if y >= high else law.logpdf(y)

    def moments(z):
        out = np.empty((2, *z.shape))
        table, (x, w) = np.linspace(-8.0, 8.0, 3201), np.polynomial.legendre.leggauss(400)
        for i in range(2):
            sd, ends = np.sqrt(variance[i]), (low, high)
            law = scipy.stats.norm(table, sd)
            cuts = [np.clip(e, table - 9.0 * sd, table + 9.0 * sd) for e in ends]
            middle, half = 0.5 * (cuts[0] + cuts[1]), 0.5 * (cuts[1] - cuts[0])
            y = middle[:, None] + half[:, None] * x
            density = scipy.stats.norm.pdf(y, table[:, None], sd) * half[:, None] * w
            first, second = (y * density).sum(1), (y**2 * density).sum(1)
            for end, share in ((low, law.cdf(low)), (high, law.sf(high))):
                if np.isfinite(end):
                    first, second = first + end * share, second + end**2 * share
            out[0, ..., i] = scipy.interpolate.CubicSpline(table, first)(z[..., i])
            out[1, ..., i] = scipy.interpolate.CubicSpline(table, second - first**2)(z[..., i])
        return out[0], out[1]

    return independent(log_density, moments)


def gamma(k):
    return independent(
        lambda y, z, i: scipy.stats.gamma.logpdf(y, k, scale=np.exp(z) / k),
        lambda z: (np.exp(z), np.exp(2.0 * z) / k),
    )


def log_normal(cov):
    log_density, _ = gaussian(cov)

    def conditional(z):
        mean = np.exp(z + 0.5 * np.diag(cov))
        return mean, mean[..., :, None] * mean[..., None, :] * np.expm1(cov)

    return lambda y, z, keep: log_density(np.log(y), z, keep) - np.log(y)[keep].sum(), conditional


volatility = independent(
    lambda y, z, i: scipy.stats.norm.logpdf(y, scale=np.exp(0.5 * z)), lambda z: (np.zeros_like(z), np.exp(z))
)


class Overdispersed(eqx.Module):
    """Counts by numpyro, with a parameter of their own."""

    r: np.ndarray

    def __call__(self, z):
        return dist.GammaPoisson(self.r, self.r / jnp.exp(z))


REAL, COUNT, BINARY = np.array([0.4, -0.9]), np.array([3.0, 0.0]), np.array([1.0, 0.0])
POSITIVE = np.array([2.2, 0.3])
# class: [(example, data, (log density, conditional moments) in SciPy)]
EXAMPLES: dict[type[Likelihood], list] = {
    Gaussian: [
        (Gaussian(0.4), REAL, gaussian(0.4 * np.eye(2))),
        (Gaussian([0.4, 0.1]), REAL, gaussian(np.diag([0.4, 0.1]))),
        (Gaussian(R), REAL, gaussian(R)),
    ],
    Censored: [
        (Censored(0.4, low=-0.9), REAL, censored(0.4, -0.9, np.inf)),
        (Censored(0.01, -0.9, 0.4), REAL, censored(0.01, -0.9, 0.4)),
        (Censored([0.4, 0.1]), REAL, censored([0.4, 0.1], -np.inf, np.inf)),
    ],
    NegativeBinomial: [
        (NegativeBinomial(2.0), COUNT, negative_binomial(2.0)),
        (NegativeBinomial([0.5, 1e3]), COUNT, negative_binomial([0.5, 1e3])),
    ],
    Binomial: [(Binomial(5), COUNT, binomial(5)), (Binomial(1), BINARY, bernoulli)],
    Ordinal: [(Ordinal([-1.0, 0.2, 1.5]), COUNT, ordinal([-1.0, 0.2, 1.5]))],
    Gamma: [(Gamma(2.5), POSITIVE, gamma(2.5)), (Gamma(), POSITIVE, gamma(1.0))],
    LogNormal: [
        (LogNormal(0.3), POSITIVE, log_normal(0.3 * np.eye(2))),
        (LogNormal(R), POSITIVE, log_normal(R)),
    ],
    StochasticVolatility: [(StochasticVolatility(), REAL, volatility)],
    FromDistribution: [
        (FromDistribution(lambda z: dist.Poisson(jnp.exp(z))), COUNT, poisson(1.0)),
        (FromDistribution(Overdispersed(np.asarray(2.0))), COUNT, negative_binomial(2.0)),
    ],
    Poisson: [(Poisson(), COUNT, poisson(1.0)), (Poisson([2.0, 0.5]), COUNT, poisson([2.0, 0.5]))],
    Bernoulli: [(Bernoulli(), BINARY, bernoulli)],
    Joint: [
        (Joint([Gaussian(0.5), Poisson()]), np.array([0.4, 3.0]), mixed),
        (Joint([Poisson(2.0), Poisson(0.5)]), COUNT, poisson([2.0, 0.5])),
    ],
    StudentT: [
        (StudentT(0.8, 6.0), REAL, student(0.8, 6.0)),
        (StudentT([0.8, 0.5], 6.0), REAL, student([0.8, 0.5], 6.0)),
    ],
}
CASES = [
    pytest.param(*example, id=f"{kind.__name__}{i}") for kind in EXAMPLES for i, example in enumerate(EXAMPLES[kind])
]
MEAN, V = np.array([0.3, -0.2]), np.array([[0.30, 0.12], [0.12, 0.20]])
BOTH = np.array([True, True])
PATTERNS = [BOTH, np.array([True, False]), np.array([False, True])]


@pytest.fixture(autouse=True, scope="module")
def _float64():
    with jax.enable_x64(True):
        yield


@functools.cache
def nodes():
    """A fine grid over z ~ N(MEAN, V), (n, 2), and its weights."""
    axis = np.linspace(-9.0, 9.0, 361)
    density = scipy.stats.norm.pdf(axis) * (axis[1] - axis[0])
    xi = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    return MEAN + xi @ np.linalg.cholesky(V).T, np.outer(density, density).ravel()


EXPECTED = compiled(lambda lik, *args: lik.expected(*args))
EXPECTED_FINELY = compiled(lambda lik, *args: lik.expected_finely(*args))
PARAMETERS = compiled(eqx.filter_grad(lambda lik, *args: lik.expected(*args)[0]))
LOG_PREDICTIVE = compiled(lambda lik, *args: lik.log_predictive(*args))
PREDICTIVE = compiled(lambda lik, *args: lik.predictive(*args))
LOG_PROB = compiled(lambda lik, *args: lik.log_prob(*args))


def test_every_likelihood_is_registered_exported_and_has_an_example():
    defined = {
        c
        for parent in (Likelihood, Elementwise)
        for c in parent.__subclasses__()
        if c.__module__.startswith("girsanov.model.likelihoods.") and c is not Elementwise
    }
    assert set(LIKELIHOODS) == defined
    assert set(EXAMPLES) == set(LIKELIHOODS)
    for kind in LIKELIHOODS:
        assert getattr(likelihoods, kind.__name__) is kind
        assert getattr(gv.likelihoods, kind.__name__) is kind
        assert kind.__doc__


@pytest.mark.parametrize(("likelihood", "y", "reference"), CASES)
def test_parameters_are_float64_arrays(likelihood, y, reference):
    for leaf in jax.tree.leaves(eqx.filter(likelihood, lambda leaf: not callable(leaf))):
        assert isinstance(leaf, np.ndarray)
        assert leaf.dtype == np.float64


@pytest.mark.parametrize(("likelihood", "y", "reference"), CASES)
def test_log_prob_is_scipy_s(likelihood, y, reference):
    log_density, _ = reference
    z = np.array([0.7, -0.4])
    for keep in PATTERNS:
        got = LOG_PROB(likelihood, y, keep, z)
        assert got.dtype == jnp.float64
        assert_close(got, log_density(y, z, keep), "exact")


@pytest.mark.parametrize(("likelihood", "y", "reference"), CASES)
def test_expected_log_density_is_the_integral(likelihood, y, reference):
    log_density, _ = reference
    z, w = nodes()
    for keep in PATTERNS:
        value, g_mean, g_V = EXPECTED(likelihood, y, keep, MEAN, V)
        assert value.dtype == jnp.float64
        assert g_mean.shape == (2,)
        assert g_V.shape == (2, 2)
        assert_close(value, w @ log_density(y, z, keep), "integral", str(keep))


@pytest.mark.parametrize(("likelihood", "y", "reference"), CASES)
def test_more_nodes_give_the_same_integral(likelihood, y, reference):
    log_density, _ = reference
    z, w = nodes()
    assert_close(EXPECTED_FINELY(likelihood, y, BOTH, MEAN, V)[0], w @ log_density(y, z, BOTH), "integral")


def with_parameter(likelihood, i, where, step):
    """The likelihood with one entry of its i-th array changed."""
    leaves, tree = jax.tree.flatten(likelihood)
    leaves[i] = np.array(leaves[i])
    leaves[i][where] += step
    return jax.tree.unflatten(tree, leaves)


@pytest.mark.parametrize(("likelihood", "y", "reference"), [c for c in CASES if jax.tree.leaves(c.values[0])])
def test_derivatives_in_the_parameters(likelihood, y, reference):
    """Of the expected log density, which learning climbs, against central differences; one output may be missing."""
    arrays, _ = eqx.partition(likelihood, eqx.is_array)
    if not jax.tree.leaves(arrays):
        return  # a plain function, whose parameters are fixed
    for keep in PATTERNS[:2]:
        gradient = jax.tree.leaves(PARAMETERS(likelihood, y, keep, MEAN, V))
        for i, leaf in enumerate(jax.tree.leaves(arrays)):
            for where in np.ndindex(leaf.shape):
                step = 1e-5 * max(abs(leaf[where]), 1e-2)
                up, down = (
                    float(EXPECTED(with_parameter(likelihood, i, where, s), y, keep, MEAN, V)[0]) for s in (step, -step)
                )
                size = max(1.0, np.abs(gradient[i]).max())
                assert_close(gradient[i][where], (up - down) / (2.0 * step), "gradient", str(where), size=size)


@pytest.mark.parametrize(("likelihood", "y", "reference"), CASES)
def test_gradients_of_the_expected_log_density(likelihood, y, reference):
    def slope(keep, mean, cov, eps=1e-5):
        """Central difference along a direction of the mean and one of the covariance."""
        up, down = (float(EXPECTED(likelihood, y, keep, MEAN + s * mean, V + s * cov)[0]) for s in (eps, -eps))
        return (up - down) / (2 * eps)

    along = np.array([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
    for keep in PATTERNS:
        _, g_mean, g_V = (np.asarray(a) for a in EXPECTED(likelihood, y, keep, MEAN, V))
        assert_close(g_V, g_V.T, "exact", "symmetry")
        assert_close(g_mean, [slope(keep, e, 0.0 * V) for e in np.eye(2)], "gradient", "mean")
        assert_close((along * g_V).sum((1, 2)), [slope(keep, 0.0 * MEAN, e) for e in along], "gradient", "V")


@pytest.mark.parametrize(("likelihood", "y", "reference"), CASES)
def test_log_predictive_density_is_the_integral(likelihood, y, reference):
    log_density, _ = reference
    z, w = nodes()
    for keep in PATTERNS:
        wanted = np.log(w @ np.exp(log_density(y, z, keep)))
        assert_close(LOG_PREDICTIVE(likelihood, y, keep, MEAN, V), wanted, "integral", str(keep))


@pytest.mark.parametrize("kind", [kind for kind in EXAMPLES if kind is not Joint], ids=lambda kind: kind.__name__)
def test_one_output_is_integrated_alike(kind):
    """D = 1 has a rule of its own for the predictive density."""
    likelihood, y, reference = EXAMPLES[kind][0]  # its parameters are scalars
    log_density, _ = reference
    z, w = nodes()
    keep = PATTERNS[1]
    wanted = np.log(w @ np.exp(log_density(y, z, keep)))
    got = LOG_PREDICTIVE(likelihood, y[:1], BOTH[:1], MEAN[:1], V[:1, :1])
    assert_close(got, wanted, "integral")


SHARP = {
    "count far from what was expected": (
        Poisson(),
        50.0,
        0.0,
        4.0,
        lambda y, z: scipy.stats.poisson.logpmf(y, np.exp(z)),
    ),
    "large count": (Poisson(), 200.0, 5.3, 0.5, lambda y, z: scipy.stats.poisson.logpmf(y, np.exp(z))),
    "little noise": (StudentT(0.05, 4.0), 0.7, 0.0, 1.0, lambda y, z: scipy.stats.t.logpdf(y, 4.0, loc=z, scale=0.05)),
    "outlier": (StudentT(0.05, 4.0), 5.0, 0.0, 1.0, lambda y, z: scipy.stats.t.logpdf(y, 4.0, loc=z, scale=0.05)),
}


@pytest.mark.parametrize("name", SHARP)
def test_log_predictive_density_where_the_observation_is_sharper_than_the_state(name):
    """A held-out point far from the data: the likelihood is a narrow peak somewhere under a broad marginal of z."""
    likelihood, y, mean, var, log_density = SHARP[name]
    z, step = np.linspace(mean - 9.0 * var**0.5, mean + 9.0 * var**0.5, 200_001, retstep=True)
    wanted = scipy.special.logsumexp(log_density(y, z) + scipy.stats.norm.logpdf(z, mean, var**0.5)) + np.log(step)
    got = LOG_PREDICTIVE(likelihood, np.array([y]), BOTH[:1], np.array([mean]), np.array([[var]]))
    assert abs(float(got) - wanted) < TOLERANCES["nlpd"]


def gaussian_entry(variance):
    return lambda y, z: scipy.stats.norm.logpdf(y, z, np.sqrt(variance))


def gamma_entry(k):
    return lambda y, z: scipy.stats.gamma.logpdf(y, k, scale=np.exp(z) / k)


def log_normal_entry(y, z):
    return scipy.stats.norm.logpdf(np.log(y), z, 0.1) - np.log(y)


def binomial_entry(y, z):
    return np.log(scipy.special.binom(50, y)) - y * np.logaddexp(0.0, -z) - (50 - y) * np.logaddexp(0.0, z)


def negative_binomial_entry(y, z):
    return (
        scipy.special.gammaln(y + 0.5)
        - scipy.special.gammaln(0.5)
        - scipy.special.gammaln(y + 1.0)
        + y * (z - np.log(0.5))
        - (y + 0.5) * np.logaddexp(0.0, z - np.log(0.5))
    )


def plain_poisson(y, z):
    return y * z - np.exp(z) - scipy.special.gammaln(y + 1.0)


# class: [(example of one output, value, mean of z, log density of it in SciPy)], the value far from what was expected
FAR: dict[type[Likelihood], list] = {
    Gaussian: [(Gaussian(0.01), 15.0, 0.3, gaussian_entry(0.01))],
    StudentT: [(StudentT(0.05, 3.0), 40.0, 0.3, lambda y, z: scipy.stats.t.logpdf(y, 3.0, loc=z, scale=0.05))],
    Censored: [
        (Censored(0.01, low=0.0), 0.0, 8.0, lambda y, z: scipy.stats.norm.logcdf(-z / 0.1)),
        (Censored(0.01, low=0.0), 20.0, 0.3, gaussian_entry(0.01)),
    ],
    Poisson: [(Poisson(), 400.0, 0.3, plain_poisson), (Poisson(), 0.0, 6.0, plain_poisson)],
    NegativeBinomial: [(NegativeBinomial(0.5), 1000.0, 0.3, negative_binomial_entry)],
    Binomial: [(Binomial(50), 50.0, -6.0, binomial_entry), (Binomial(50), 0.0, 6.0, binomial_entry)],
    Bernoulli: [(Bernoulli(), 1.0, -30.0, lambda y, z: -np.logaddexp(0.0, -z))],
    Ordinal: [(Ordinal([-1.0, 0.2, 1.5]), 3.0, -20.0, lambda y, z: -np.logaddexp(0.0, 1.5 - z))],
    Gamma: [(Gamma(2.5), 1e-3, 0.3, gamma_entry(2.5)), (Gamma(2.5), 1e3, 0.3, gamma_entry(2.5))],
    LogNormal: [(LogNormal(0.01), 1e6, 0.3, log_normal_entry)],
    StochasticVolatility: [
        (StochasticVolatility(), y, 0.3, lambda y, z: scipy.stats.norm.logpdf(y, scale=np.exp(0.5 * z)))
        for y in (50.0, 1e-8, 0.0)
    ],
    FromDistribution: [(FromDistribution(lambda z: dist.Poisson(jnp.exp(z))), 400.0, 0.3, plain_poisson)],
    Joint: [(Joint([Poisson()]), 400.0, 0.3, plain_poisson)],
}
FAR_CASES = [pytest.param(*case, id=f"{kind.__name__}{i}") for kind in FAR for i, case in enumerate(FAR[kind])]


def test_every_likelihood_has_a_value_far_out():
    assert set(FAR) == set(LIKELIHOODS)


@pytest.mark.parametrize(("likelihood", "y", "mean", "log_density"), FAR_CASES)
def test_values_far_from_what_was_expected(likelihood, y, mean, log_density):
    """The score by a fine grid that covers both q and the likelihood; E log p and its gradients for a narrow q."""
    for var in (0.5, 25.0):
        sd = np.sqrt(var)
        z, step = np.linspace(mean - 40.0 * sd, mean + 40.0 * sd, 200_001, retstep=True)
        with np.errstate(over="ignore"):
            values = log_density(y, z)
        weight = scipy.stats.norm.logpdf(z, mean, sd) + np.log(step)
        given = np.array([y]), BOTH[:1], np.array([mean]), np.array([[var]])
        wanted = scipy.special.logsumexp(values + weight)
        assert abs(float(LOG_PREDICTIVE(likelihood, *given)) - wanted) < TOLERANCES["nlpd"] * max(
            1.0, 0.01 * abs(wanted)
        )
        got = EXPECTED(likelihood, *given)
        assert np.isfinite(np.concatenate([np.ravel(a) for a in got])).all()
        if var < 1.0:
            w, xi = np.exp(weight), (z - mean) / sd
            values = np.where(w > 0.0, values, 0.0)  # 0 · ∞ far out
            exact = w @ values, w @ (values * xi) / sd, 0.5 * w @ (values * (xi**2 - 1.0)) / var
            for a, b in zip(got, exact, strict=True):
                assert abs(float(np.squeeze(a)) - b) < TOLERANCES["integral"] * max(1.0, abs(exact[0])), (a, b)


@pytest.mark.parametrize(("likelihood", "y", "reference"), CASES)
def test_missing_entries_do_not_matter(likelihood, y, reference):
    none = np.array([False, False])
    for keep in [*PATTERNS[1:], none]:
        other = np.where(keep, y, y + 1.0)
        for f in (EXPECTED, LOG_PREDICTIVE):
            a, b = f(likelihood, y, keep, MEAN, V), f(likelihood, other, keep, MEAN, V)
            for x, x_other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
                assert np.array_equal(x, x_other)
    value, g_mean, g_V = EXPECTED(likelihood, y, none, MEAN, V)
    log_densities = LOG_PREDICTIVE(likelihood, y, none, MEAN, V), LOG_PROB(likelihood, y, none, MEAN)
    for nothing in (value, g_mean, g_V, *log_densities):
        assert_close(nothing, np.zeros(np.shape(nothing)), "exact", size=1.0)


def predictive_moments(reference):
    """E y and Cov y = E Cov(y | z) + Cov E(y | z), by the grid."""
    z, w = nodes()
    mean, cov = reference[1](z)
    average = w @ mean
    e = mean - average
    return average, np.einsum("n,nij->ij", w, cov) + np.einsum("n,ni,nj->ij", w, e, e)


@pytest.mark.parametrize(("likelihood", "y", "reference"), CASES)
def test_predictive_mean_and_variances_are_the_integrals(likelihood, y, reference):
    wanted_mean, wanted_cov = predictive_moments(reference)
    mean, cov = PREDICTIVE(likelihood, MEAN, V)
    assert_close(mean, wanted_mean, "integral", "mean")
    assert_close(np.diagonal(cov), np.diagonal(wanted_cov), "integral", "variances")


@pytest.mark.parametrize(("likelihood", "y", "reference"), CASES)
def test_predictive_covariance_between_outputs_is_the_integral(likelihood, y, reference):
    _, cov = PREDICTIVE(likelihood, MEAN, V)
    assert_close(cov, predictive_moments(reference)[1], "integral")


@pytest.mark.parametrize(("likelihood", "y", "reference"), CASES)
def test_samples_have_the_conditional_moments(likelihood, y, reference):
    z, n = np.array([0.7, -0.4]), 20_000
    draw = compiled(lambda lik, keys, z: jax.vmap(lambda k: lik.sample(k, z))(keys))
    draws = np.asarray(draw(likelihood, jax.random.split(jax.random.key(3), n), jnp.asarray(z)))
    assert draws.shape == (n, 2)
    assert draws.dtype == np.float64
    mean, cov = (np.asarray(a)[0] for a in reference[1](z[None]))
    five = TOLERANCES["standard_errors"]
    assert (np.abs(draws.mean(0) - mean) < five * np.sqrt(np.diag(cov) / n)).all()
    products = np.einsum("ni,nj->nij", draws - mean, draws - mean)
    assert (np.abs(products.mean(0) - cov) < five * products.std(0) / np.sqrt(n)).all()
    likelihood.check(draws, np.ones_like(draws, bool))  # what it draws it accepts


@pytest.mark.parametrize(("likelihood", "y", "reference"), CASES)
def test_start_is_a_density(likelihood, y, reference):
    mean, precision = likelihood.start(jnp.asarray(y))
    assert mean.shape == precision.shape == (2,)
    assert np.isfinite(np.asarray(mean)).all()
    assert (np.asarray(precision) > 0).all()


def by_common_factor(log_density, width, y, mean, sd, share):
    """log E Π p(y_i | z_i) for z_i = mean_i + sd_i (√share x + √(1 − share) e_i), by fine panels of Gauss–Legendre.

    Given x the entries are independent; at share = 1 they are functions of x. `width` is the smallest scale of p in z.
    """
    nodes, weights = np.polynomial.legendre.leggauss(8)

    def panels(step):
        ends = np.arange(-9.0, 9.0 + step, step)
        return (ends[:-1, None] + 0.5 * step * (nodes + 1.0)).ravel(), np.tile(0.5 * step * weights, len(ends) - 1)

    def step(scale):  # of panels that resolve the width of p and the normal density
        return 1.0 if scale <= 2.0 * width else 2.0 * width / scale

    x, w = panels(step(np.sqrt(share) * sd.max()))
    e, w_e = panels(step(np.sqrt(1.0 - share) * sd.max())) if share < 1.0 else (np.zeros(1), np.ones(1))
    log_w_e = np.log(w_e) + (scipy.stats.norm.logpdf(e) if share < 1.0 else 0.0)
    total = scipy.stats.norm.logpdf(x) + np.log(w)
    for i in range(len(y)):
        centre = mean[i] + sd[i] * np.sqrt(share) * x
        z = centre[:, None] + sd[i] * np.sqrt(1.0 - share) * e
        total += scipy.special.logsumexp(log_density(y[i], z) + log_w_e, axis=1)
    return scipy.special.logsumexp(total)


def poisson_entry(exposure):
    return lambda y, z: y * (z + np.log(exposure)) - exposure * np.exp(z) - scipy.special.gammaln(y + 1.0)


def student_entry(scale, df):
    return lambda y, z: scipy.stats.t.logpdf(y, df, loc=z, scale=scale)


def bernoulli_entry(y, z):
    return -np.logaddexp(0.0, np.where(y > 0.5, -z, z))


# likelihood, its log density in SciPy and the smallest scale of it, standard deviation of z
SEVERAL = {
    "limits": (Censored(0.04, low=0.0), lambda y, z: scipy.stats.norm.logcdf(-z / 0.2), 0.2, 3.0),
    "few counts": (Poisson(1.0), poisson_entry(1.0), 0.5, 3.0),
    "counts": (Poisson(100.0), poisson_entry(100.0), 0.05, 1.0),
    "many counts": (Poisson(1e4), poisson_entry(1e4), 0.008, 0.3),
    "nearly known rates": (Poisson(100.0), poisson_entry(100.0), 0.05, 0.01),
    "classes": (Bernoulli(), bernoulli_entry, 1.0, 10.0),
    "little noise": (StudentT(0.02, 3.0), student_entry(0.02, 3.0), 0.02, 0.5),
    "heavy tails": (StudentT(0.05, 1.0), student_entry(0.05, 1.0), 0.05, 1.0),
    "much noise": (StudentT(3.0, 30.0), student_entry(3.0, 30.0), 2.0, 2.0),
}
SPREAD, OWN = np.array([1.0, 0.7, 1.2, 0.9, 0.5]), np.array([0.5, -1.0, 0.3, 0.9, -0.4])
NOISE = np.array([0.4, -9.0, 0.8, -0.3, 1.1])  # of Student-t readings, in units of the scale: the second is an outlier


def several(name, D, share):
    """log E p(y | z) by the library and by brute force, for data that the model could have made."""
    likelihood, log_density, width, sd = SEVERAL[name]
    mean, sd = np.linspace(0.2, -0.3, D), sd * SPREAD[:D]
    z = mean + sd * (np.sqrt(share) * 0.8 + np.sqrt(1.0 - share) * OWN[:D])
    if isinstance(likelihood, Censored):
        y = np.zeros(D)  # all below the limit, wherever they were expected
    elif isinstance(likelihood, Poisson):
        y = np.round(likelihood.exposure * np.exp(z))
    else:
        y = np.where(z > 0.0, 1.0, 0.0) if isinstance(likelihood, Bernoulli) else z + likelihood.scale * NOISE[:D]
    V = np.outer(sd, sd) * np.where(np.eye(D, dtype=bool), 1.0, share)
    got = LOG_PREDICTIVE(likelihood, y, np.ones(D, bool), mean, V)
    return float(got), by_common_factor(log_density, width, y, mean, sd, share)


@pytest.mark.parametrize("share", [0.0, 0.6, 0.99, 1.0])
@pytest.mark.parametrize("name", SEVERAL)
def test_log_predictive_density_of_several_outputs(name, share):
    """Independent, correlated and (emission with more rows than the state) perfectly dependent z."""
    for D in (1, 2, 3):
        got, wanted = several(name, D, share)
        assert abs(got - wanted) < TOLERANCES["nlpd"], (D, got, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.6, 1.0])
@pytest.mark.parametrize("D", [4, pytest.param(5, marks=pytest.mark.slow)])
def test_log_predictive_density_of_many_outputs(D, share):
    for name in ("counts", "classes", "little noise"):
        got, wanted = several(name, D, share)
        assert abs(got - wanted) < TOLERANCES["nlpd_sampled"], (name, got, wanted)


def test_many_observations_are_scored_in_parts(monkeypatch):
    monkeypatch.setattr(predictive, "_AT_ONCE", 3 * predictive._POINTS**2)
    y = np.stack([COUNT] * 7) + np.arange(7.0)[:, None]
    rows = [np.broadcast_to(a, (7, *a.shape)) for a in (BOTH, MEAN, V)]
    got = compiled(lambda lik, *args: lik.log_predictives(*args))(Poisson(), y, *rows)
    for value, y_row in zip(got, y, strict=True):
        assert_close(value, LOG_PREDICTIVE(Poisson(), y_row, BOTH, MEAN, V), "exact")


def test_a_z_without_variance_is_known():
    for likelihood, y in ((Poisson(), COUNT), (Bernoulli(), BINARY), (StudentT(0.1, 4.0), REAL)):
        got = LOG_PREDICTIVE(likelihood, y, BOTH, MEAN, np.zeros((2, 2)))
        assert abs(float(got - LOG_PROB(likelihood, y, BOTH, MEAN))) < TOLERANCES["integral"]


def test_moments_of_counts_and_classes_under_a_broad_marginal():
    var = 100.0
    mean, cov = PREDICTIVE(Poisson(3.0), np.zeros(2), np.array([[var, 5.0], [5.0, 1.0]]))
    assert_close(mean / (3.0 * np.exp([50.0, 0.5])), np.ones(2), "exact")
    assert_close(cov[0, 1] / (9.0 * np.exp(50.5) * np.expm1(5.0)), 1.0, "exact")
    mean, cov = PREDICTIVE(Bernoulli(), np.array([4.0, 4.0]), np.full((2, 2), var))
    z, step = np.linspace(-96.0, 104.0, 20_001, retstep=True)
    w = scipy.stats.norm.pdf(z, 4.0, 10.0) * step
    p = w @ sigmoid(z)
    assert abs(float(mean[0]) - p) < TOLERANCES["nlpd"]
    assert abs(float(cov[0, 1]) - (w @ sigmoid(z) ** 2 - p**2)) < TOLERANCES["nlpd"]


@pytest.mark.parametrize(("scale", "df"), [(0.01, 2.0), (0.01, 30.0), (0.1, 4.0), (1.0, 4.0)])
def test_expected_log_density_where_the_noise_is_narrower_than_the_state(scale, df):
    """E log p under N(0.1, 1) with gradients by Gaussian weights, on a grid that is fine about the reading."""
    y, mean = 0.4, 0.1
    t = np.linspace(-1.0, 1.0, 400_001) * np.arcsinh(13.0 / scale)
    z = y + scale * np.sinh(t)
    w = scipy.stats.norm.pdf(z, mean) * scale * np.cosh(t) * (t[1] - t[0])
    f, xi = scipy.stats.t.logpdf(y, df, loc=z, scale=scale), z - mean
    wanted = w @ f, (w * xi) @ f, 0.5 * (w * (xi**2 - 1.0)) @ f
    got = EXPECTED(StudentT(scale, df), np.array([y]), BOTH[:1], np.array([mean]), np.eye(1))
    for a, b in zip(got, wanted, strict=True):
        assert abs(float(np.squeeze(a)) - b) < TOLERANCES["nlpd"]


DF = np.geomspace(1e-2, 1e15, 35)


def test_student_s_density_for_every_number_of_degrees_of_freedom():
    """Value and derivative in df in 60 digits, and the Gaussian in the limit."""

    def exact(df):
        nu, r2 = mpmath.mpf(float(df)), (mpmath.mpf(1.7) / mpmath.mpf(0.3)) ** 2
        norm = mpmath.loggamma((nu + 1) / 2) - mpmath.loggamma(nu / 2) - mpmath.log(nu * mpmath.pi) / 2
        value = norm - mpmath.log(mpmath.mpf(0.3)) - (nu + 1) / 2 * mpmath.log1p(r2 / nu)
        slope = (mpmath.digamma((nu + 1) / 2) - mpmath.digamma(nu / 2) - 1 / nu) / 2
        slope += ((nu + 1) * r2 / (nu * (nu + r2)) - mpmath.log1p(r2 / nu)) / 2
        return float(value), float(slope)

    def density(df):
        return StudentT(0.3, df).log_density(jnp.array([1.7]), jnp.zeros(1))[0]

    with mpmath.workdps(60):
        values, slopes = np.array([exact(df) for df in DF]).T
    got, got_slopes = jax.jit(jax.vmap(jax.value_and_grad(density)))(DF)
    assert_close(got, values, "exact")
    # in log df, as learning sees it: rounding must not make a slope of its own
    assert_close(DF * got_slopes, DF * slopes, "exact")
    assert_close(got[-1], scipy.stats.norm.logpdf(1.7, scale=0.3), "exact")


@pytest.mark.parametrize("n", [0.0, 1.0, 3.0, 250.0, 1e5])
def test_rising_factorials_are_exact_for_every_size(n):
    """log Γ(x + n) − log Γ(x) − n log x, and its derivative in log x, in 60 digits."""
    x = np.geomspace(1e-4, 1e14, 19)
    with mpmath.workdps(60):
        at = [mpmath.mpf(float(v)) for v in x]
        values = [float(mpmath.loggamma(v + n) - mpmath.loggamma(v) - n * mpmath.log(v)) for v in at]
        slopes = [float(v * (mpmath.digamma(v + n) - mpmath.digamma(v)) - n) for v in at]
    got, slope = jax.jit(jax.vmap(jax.value_and_grad(lambda v: log_rising(v, jnp.asarray(n)))))(x)
    # of counts with a mean of n, to which rounding is in proportion
    assert np.abs(np.asarray(got) - values).max() <= TOLERANCES["exact"] * max(1.0, np.abs(values).max())
    assert np.abs(x * np.asarray(slope) - slopes).max() <= TOLERANCES["exact"] * max(1.0, n)


def test_an_output_that_does_not_depend_on_the_state_is_no_trouble():
    """A row of zeros in the emission: z has no variance, and the gradients are still finite."""
    v = np.array([[0.3, 0.0], [0.0, 0.0]])
    for likelihood in (Poisson(), Bernoulli(), StudentT(0.5, 4.0), Censored(0.5, 0.0), Binomial(3)):
        value, g_mean, g_V = EXPECTED(likelihood, BINARY, BOTH, np.zeros(2), v)
        for a in (value, g_mean, g_V):
            assert np.isfinite(np.asarray(a)).all(), likelihood
        for a in PREDICTIVE(likelihood, np.zeros(2), v):
            assert np.isfinite(np.asarray(a)).all(), likelihood
