"""Every likelihood of the library keeps the contract. A new class needs an example here, and nothing else.

The reference is brute force: a fine grid over both outputs and the log densities of SciPy.
"""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.special
import scipy.stats
from support import assert_close
from tolerances import TOLERANCES

import girsanov as gv
from girsanov import likelihoods
from girsanov._compile import compiled
from girsanov.likelihoods import LIKELIHOODS, Bernoulli, Elementwise, Gaussian, Likelihood, Poisson, StudentT

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
REAL, COUNT, BINARY = np.array([0.4, -0.9]), np.array([3.0, 0.0]), np.array([1.0, 0.0])
# class: [(example, data, (log density, conditional moments) in SciPy)]
EXAMPLES: dict[type[Likelihood], list] = {
    Gaussian: [
        (Gaussian(0.4), REAL, gaussian(0.4 * np.eye(2))),
        (Gaussian([0.4, 0.1]), REAL, gaussian(np.diag([0.4, 0.1]))),
        (Gaussian(R), REAL, gaussian(R)),
    ],
    Poisson: [(Poisson(), COUNT, poisson(1.0)), (Poisson([2.0, 0.5]), COUNT, poisson([2.0, 0.5]))],
    Bernoulli: [(Bernoulli(), BINARY, bernoulli)],
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
LOG_PREDICTIVE = compiled(lambda lik, *args: lik.log_predictive(*args))
PREDICTIVE = compiled(lambda lik, *args: lik.predictive(*args))
LOG_PROB = compiled(lambda lik, *args: lik.log_prob(*args))


def test_every_likelihood_is_registered_exported_and_has_an_example():
    defined = {
        c
        for parent in (Likelihood, Elementwise)
        for c in parent.__subclasses__()
        if c.__module__ == Likelihood.__module__ and c is not Elementwise
    }
    assert set(LIKELIHOODS) == defined
    assert set(EXAMPLES) == set(LIKELIHOODS)
    for kind in LIKELIHOODS:
        assert getattr(likelihoods, kind.__name__) is kind
        assert getattr(gv.likelihoods, kind.__name__) is kind
        assert kind.__doc__


@pytest.mark.parametrize(("likelihood", "y", "reference"), CASES)
def test_parameters_are_float64_arrays(likelihood, y, reference):
    for leaf in jax.tree.leaves(likelihood):
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
def test_gradients_of_the_expected_log_density(likelihood, y, reference):
    eps = 1e-5
    for keep in PATTERNS:
        _, g_mean, g_V = EXPECTED(likelihood, y, keep, MEAN, V)
        assert_close(g_V, np.asarray(g_V).T, "exact", "symmetry")
        for i in range(2):
            e = eps * np.eye(2)[i]
            up, down = (float(EXPECTED(likelihood, y, keep, MEAN + s * e, V)[0]) for s in (1, -1))
            assert_close(g_mean[i], (up - down) / (2 * eps), "gradient", f"mean {i}")
        for direction in (np.diag([1.0, 0.0]), np.diag([0.0, 1.0]), np.array([[0.0, 1.0], [1.0, 0.0]])):
            up, down = (float(EXPECTED(likelihood, y, keep, MEAN, V + s * eps * direction)[0]) for s in (1, -1))
            assert_close((g_V * direction).sum(), (up - down) / (2 * eps), "gradient", f"V along {direction}")


@pytest.mark.parametrize(("likelihood", "y", "reference"), CASES)
def test_log_predictive_density_is_the_integral(likelihood, y, reference):
    log_density, _ = reference
    z, w = nodes()
    for keep in PATTERNS:
        wanted = np.log(w @ np.exp(log_density(y, z, keep)))
        assert_close(LOG_PREDICTIVE(likelihood, y, keep, MEAN, V), wanted, "integral", str(keep))


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
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
    assert_close(value, 0.0, "exact")
    assert_close(g_mean, np.zeros(2), "exact")
    assert_close(g_V, np.zeros((2, 2)), "exact")
    assert_close(LOG_PREDICTIVE(likelihood, y, none, MEAN, V), 0.0, "exact")
    assert_close(LOG_PROB(likelihood, y, none, MEAN), 0.0, "exact")


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


@pytest.mark.parametrize("rows", [4, 5])
def test_more_outputs_than_a_tensor_rule_can_take(rows):
    """Above three outputs the predictive density is an average over draws: near the product of independent ones."""
    z, v = np.zeros(rows), 0.3 * np.eye(rows)
    y = np.arange(rows) % 2 * 1.0
    got = LOG_PREDICTIVE(Bernoulli(), y, np.ones(rows, bool), z, v)
    # p(y = 1) is ½ for every entry by symmetry; the draws' relative error of a product of `rows` factors sets the scale
    relative = np.sqrt(rows * 0.25 * 0.3 / 4 / 0.25 / likelihoods._PREDICTIVE_DRAWS)
    assert abs(float(got) - rows * np.log(0.5)) < TOLERANCES["standard_errors"] * relative


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


def test_an_output_that_does_not_depend_on_the_state_is_no_trouble():
    """A row of zeros in the emission: z has no variance, and the gradients are still finite."""
    v = np.array([[0.3, 0.0], [0.0, 0.0]])
    for likelihood in (Poisson(), Bernoulli(), StudentT(0.5, 4.0)):
        value, g_mean, g_V = EXPECTED(likelihood, BINARY, BOTH, np.zeros(2), v)
        for a in (value, g_mean, g_V):
            assert np.isfinite(np.asarray(a)).all(), likelihood
        for a in PREDICTIVE(likelihood, np.zeros(2), v):
            assert np.isfinite(np.asarray(a)).all(), likelihood
