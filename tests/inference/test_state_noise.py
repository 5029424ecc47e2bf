"""Inference and learning with noise that depends on the state, against log-normal and non-central χ² answers."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from support import assert_close, assert_gaussian, condition, split_dense
from tolerances import TOLERANCES

import girsanov as gv
from girsanov._core.precision import float64
from girsanov.learning.parameters import make_spec

RNG = np.random.default_rng(5)
TIMES = np.sort(RNG.uniform(0.0, 4.0, 15))
GROWTH, SCALE = np.array([0.3, -0.1]), np.array([0.4, 0.7])
R = np.array([[1.0, 0.5], [0.5, 1.0]])
START, SPREAD, NOISE = np.array([1.5, 0.8]), np.array([0.02, 0.01]), 0.02
SPAN = (0.0, 4.0)
OFF_GRID = np.array([0.0011, 0.7, 1.2345, 2.0 + 1e-9, 3.9999])
CONTINUOUS = gv.CVIDP(time="continuous", tolerance=1e-10)


class Growth(eqx.Module):
    rate: jax.Array

    def __call__(self, x, t):
        return self.rate * x


def logs(x, t):
    return jnp.log(x)


def geometric(d: int, **options) -> gv.Model:
    """Geometric Brownian motion, observed with log-normal noise."""
    correlation = R if d == 2 else None
    return gv.Model(
        Growth(GROWTH[:d]),
        diffusion=gv.diffusions.Proportional(SCALE[:d], correlation),
        initial=gv.GaussianState(START[:d], SPREAD[:d]),
        likelihood=gv.likelihoods.LogNormal(NOISE),
        **{"emission": logs, **options},
    )


def observations(d: int) -> np.ndarray:
    steps = np.sqrt(np.diff(TIMES, prepend=0.0))[:, None] * np.random.default_rng(d).normal(size=(len(TIMES), d))
    y = np.exp(0.3 + 2.0 * SCALE[:d] * steps.cumsum(0))
    y[4, d - 1] = np.nan
    return y


def dense(d: int, times: np.ndarray, growth=GROWTH, scale=SCALE):
    """Mean, covariance and lag covariance of log x at any times, and log p(y): a dense Gaussian in NumPy."""
    nodes = np.union1d(np.append(times, SPAN[0]), TIMES)
    Q = (scale[:d, None] * R[:d, :d] * scale[None, :d]) if d == 2 else np.diag(scale[:d] ** 2)
    m0, P0 = np.log(START[:d]), np.diag(SPREAD[:d] / START[:d] ** 2)
    mean = m0 + nodes[:, None] * (growth[:d] - 0.5 * scale[:d] ** 2)
    cov = np.kron(np.minimum(nodes[:, None], nodes), Q) + np.kron(np.ones((len(nodes),) * 2), P0)
    y = observations(d)
    at = np.searchsorted(nodes, TIMES)
    m, S, evidence = condition(mean.ravel(), cov, np.eye(d), NOISE * np.eye(d), at, np.log(y))
    evidence -= np.nansum(np.log(y))  # the Jacobian of the logarithm
    pick = (np.searchsorted(nodes, times)[:, None] * d + np.arange(d)).ravel()
    return *split_dense(m[pick], S[np.ix_(pick, pick)], d), evidence


@functools.cache
def inferred(d: int, dt: float = 0.1) -> gv.Posterior:
    return gv.infer(geometric(d), gv.TimeSeries(TIMES, observations(d)), dt=dt, span=SPAN, method=CONTINUOUS)


def log_normal(m, S):
    mean = np.exp(m + 0.5 * np.diagonal(S, axis1=1, axis2=2))
    return mean, mean[:, :, None] * mean[:, None, :] * np.expm1(S)


@pytest.mark.parametrize("d", [1, 2])
def test_geometric_brownian_motion_is_exact(d):
    post = inferred(d)
    m, S, C, evidence = dense(d, post.times)
    assert post.converged
    assert_close(post.elbo, evidence, "evidence", "evidence")
    mean, cov = log_normal(m, S)
    lag = mean[1:, :, None] * mean[:-1, None, :] * np.expm1(C)
    assert_gaussian((post.mean, post.cov, post.lag_cov), (mean, cov, lag), "identity")
    moments = log_normal(*dense(d, OFF_GRID)[:2])
    assert_gaussian(post.marginals(OFF_GRID), moments, "identity", "off the grid:")


@pytest.mark.parametrize("d", [1, 2])
def test_quantiles_are_those_of_the_log_normal(d):
    m, S, _, _ = dense(d, OFF_GRID)
    sd, q = np.sqrt(np.diagonal(S, axis1=1, axis2=2)), np.array([0.025, 0.5, 0.9])
    exact = np.exp(m + scipy.stats.norm.ppf(q)[:, None, None] * sd)
    got = inferred(d).quantiles(OFF_GRID, q)
    assert got.shape == (3, len(OFF_GRID), d)
    assert_close(got, exact, "identity", "quantiles")
    assert inferred(d).quantiles([1.0], 0.5).shape == (1, 1, d)


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, np.nan, [[0.5]]])
def test_quantiles_ask_for_probabilities(q):
    with pytest.raises(ValueError, match="q "):
        inferred(1).quantiles([1.0], q)


def test_quantiles_of_constant_noise_are_gaussian():
    post = gv.infer(gv.Model(gv.OrnsteinUhlenbeck(1.0)), gv.TimeSeries(TIMES, np.sin(TIMES)), dt=0.1)
    at = post.marginals([1.0])
    assert_close(post.quantiles([1.0], [0.1])[0], at.mean + scipy.stats.norm.ppf(0.1) * at.std, "exact", "quantile")


def test_predictions_are_those_of_the_observations():
    m, S, _, _ = dense(1, OFF_GRID)
    predicted = inferred(1).predict(OFF_GRID)
    mean, cov = log_normal(m, S + NOISE)
    assert_gaussian((predicted.mean, predicted.cov), (mean, cov), "identity")
    y = np.exp(m[:, 0] + 0.3)
    exact = scipy.stats.lognorm.logpdf(y, np.sqrt(S[:, 0, 0] + NOISE), scale=np.exp(m[:, 0]))
    assert_close(inferred(1).nlpd_values(gv.TimeSeries(OFF_GRID, y)), -exact, "score", "scores")


@pytest.mark.slow
def test_a_list_of_noises_is_each_of_them_alone():
    """A growing and an Ornstein–Uhlenbeck coordinate that do not touch each other: bounds add, moments are the same."""

    def drift(x, t):
        return jnp.stack([GROWTH[0] * x[0], -x[1]])

    both = gv.Model(
        drift,
        diffusion=[gv.diffusions.Proportional(SCALE[0]), 0.5],
        initial=gv.GaussianState([START[0], 0.0], [SPREAD[0], 1.0]),
        emission=lambda x, t: jnp.stack([jnp.log(x[0]), x[1]]),
        likelihood=[gv.likelihoods.LogNormal(NOISE), gv.likelihoods.Gaussian(0.1)],
    )
    alone = gv.Model(gv.OrnsteinUhlenbeck(1.0), diffusion=0.5, likelihood=gv.likelihoods.Gaussian(0.1))
    y, z = observations(1), np.cos(TIMES)
    post = gv.infer(both, gv.TimeSeries(TIMES, np.column_stack([y, z])), dt=0.1, span=SPAN, method=CONTINUOUS)
    other = gv.infer(alone, gv.TimeSeries(TIMES, z), dt=0.1, span=SPAN, method=CONTINUOUS)
    assert_close(post.elbo, inferred(1).elbo + other.elbo, "optimum", "bound", size=1.0)
    assert_close(post.mean, np.column_stack([inferred(1).mean, other.mean]), "functional", "means")
    assert_close(post.sample(jax.random.key(0), 3).shape, (3, len(post.times), 2), "exact")


def test_draws_and_forecasts_stay_positive_and_have_the_right_law():
    post = inferred(1)
    draws = np.log(post.sample(jax.random.key(0), 4000))
    m, S, _, _ = dense(1, post.times)
    error = np.sqrt(S[:, 0, 0] / 4000)
    assert (np.abs(draws.mean(0)[:, 0] - m[:, 0]) < TOLERANCES["standard_errors"] * error).all()
    ahead = np.log(post.forecast([4.5, 5.0], key=jax.random.key(1), n=4000, dt=0.05))
    mean = m[-1, 0] + (GROWTH[0] - 0.5 * SCALE[0] ** 2) * np.array([0.5, 1.0])
    var = S[-1, 0, 0] + SCALE[0] ** 2 * np.array([0.5, 1.0])
    assert (np.abs(ahead.mean(0)[:, 0] - mean) < TOLERANCES["standard_errors"] * np.sqrt(var / 4000)).all()


# --- Cox–Ingersoll–Ross, whose transition is a non-central χ²


class MeanReverting(eqx.Module):
    rate: jax.Array
    level: jax.Array

    def __call__(self, x, t):
        return self.rate * (self.level - x)


def cir(rate=1.0, level=1.0, scale=0.4, noise=0.01, start=(1.0, 0.01)) -> gv.Model:
    return gv.Model(
        MeanReverting(rate, level),
        diffusion=gv.diffusions.SquareRoot(scale),
        initial=gv.GaussianState(*start),
        likelihood=gv.likelihoods.Gaussian(noise),
    )


def cir_log_transition(x, after, gap, rate, level, scale):
    c = 2.0 * rate / (scale**2 * -np.expm1(-rate * gap))
    law = scipy.stats.ncx2(4.0 * rate * level / scale**2, 2.0 * c * x * np.exp(-rate * gap))
    return np.log(2.0 * c) + law.logpdf(2.0 * c * after)


def cir_evidence(times: np.ndarray, y: np.ndarray, n: int = 500) -> float:
    """log p(y) by a filter on points of w = 2√x, with the exact transitions from one observation to the next."""
    w = np.linspace(0.6, 3.6, n)
    x, weight = 0.25 * w**2, (w[1] - w[0]) * 0.5 * w  # dx = ½w dw
    w0 = scipy.stats.norm(2.0, np.sqrt(0.01)).pdf(w)  # Gaussian in w, with d w/d x = 1 at x = 1
    density, total, last = w0 / (0.5 * w), 0.0, 0.0
    for t, value in zip(times, y, strict=True):
        K = np.exp(cir_log_transition(x[:, None], x[None, :], t - last, 1.0, 1.0, 0.4))
        density = (density * weight) @ K * scipy.stats.norm(x, 0.1).pdf(value)
        norm = (density * weight).sum()
        density, total, last = density / norm, total + np.log(norm), t
    return total


@pytest.mark.slow
def test_the_evidence_of_cox_ingersoll_ross_is_that_of_its_exact_transitions():
    """By the exact smoother of the discretised equation of w as its steps shorten; the bound lies below."""
    times = TIMES[1::2]
    y = 1.0 + 0.3 * np.sin(2.0 * times)
    exact = cir_evidence(times, y)
    model, series = cir(), gv.TimeSeries(times, y)
    by_step = [gv.baselines.exact_smoother(model, series, dt=dt, span=(0.0, 4.0)).log_evidence for dt in (0.04, 0.02)]
    assert_close(2.0 * by_step[1] - by_step[0], exact, "converged", "evidence", size=10.0)
    post = gv.infer(model, series, dt=0.02, span=(0.0, 4.0), method=CONTINUOUS)
    assert exact - TOLERANCES["trusted"] < post.elbo < exact + TOLERANCES["converged"]
    assert post.converged


@pytest.mark.slow
def test_learning_from_precise_data_is_maximum_likelihood():
    """Simulated by exact transitions; estimates differ from the maximum by less than 0.2 standard errors."""
    rng, gap, n = np.random.default_rng(2), 0.25, 200
    truth, x = (1.2, 1.0, 0.5), [1.0]
    for _ in range(n):
        c = 2.0 * truth[0] / (truth[2] ** 2 * -np.expm1(-truth[0] * gap))
        law = scipy.stats.ncx2(4 * truth[0] * truth[1] / truth[2] ** 2, 2 * c * x[-1] * np.exp(-truth[0] * gap))
        x.append(law.rvs(random_state=rng) / (2 * c))
    x = np.array(x)
    found = scipy.optimize.minimize(
        lambda p: -cir_log_transition(x[:-1], x[1:], gap, *np.exp(p)).sum(), np.log(truth), method="Nelder-Mead",
        options={"xatol": 1e-8, "fatol": 1e-9},
    )  # fmt: skip
    start = cir(0.5, 2.0, 0.3, noise=1e-8, start=(x[0], 1e-8))
    series = gv.TimeSeries(gap * np.arange(n + 1), x)
    fit = gv.learn(start, series, dt=gap / 4, trainable=["drift", "diffusion"], method=gv.CVIDP(time="continuous"))
    assert fit.status == "converged"
    got = np.array([fit.model.drift.rate, fit.model.drift.level, fit.model.diffusion.scale])
    errors = np.array(list(fit.standard_errors.values()))
    assert list(fit.standard_errors) == ["drift.rate", "drift.level", "diffusion.scale"]
    assert (np.abs(got - np.exp(found.x)) < 0.2 * errors).all()


@pytest.mark.slow
def test_learning_of_growth_is_maximum_likelihood_of_the_log_normal():
    y = observations(1)

    def minus(p):
        return -dense(1, TIMES, np.array([p[0]]), np.exp(p[1:]))[3]

    found = scipy.optimize.minimize(
        minus, [0.3, np.log(0.4)], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-11}
    )
    fit = gv.learn(
        geometric(1),
        gv.TimeSeries(TIMES, y),
        dt=0.5,
        span=SPAN,
        trainable=["drift", "diffusion.scale"],
        method=CONTINUOUS,
    )
    assert fit.converged
    assert_close(fit.posterior.elbo, -found.fun, "likelihood_maximum", "maximum", size=1.0)
    assert_close(fit.model.drift.rate[0], found.x[0], "learnt", "growth")
    assert_close(fit.model.diffusion.scale[0], np.exp(found.x[1]), "learnt", "scale")


def test_names_of_parameters():
    model = gv.Model(
        lambda x, t: -x,
        diffusion=[gv.diffusions.Power(0.4, 0.8), 0.5],
        initial=gv.GaussianState([1.0, 0.0], 0.1),
        likelihood=gv.likelihoods.Gaussian(0.1),
    )
    spec = make_spec(model, ["diffusion[0].exponent", "diffusion[1]", "initial.mean"])
    kinds = {p.path: p.kind for p in spec}
    assert kinds == {"diffusion[0].exponent": "positive", "diffusion[1].spectral": "positive", "initial.mean": "real"}
    assert make_spec(cir(), "initial.mean")[0].kind == "positive"
    with pytest.raises(ValueError, match=r"diffusion\[0\].scale"):
        make_spec(model, "diffusion.scale")


# --- the rest of the library


@pytest.mark.slow
def test_the_bound_has_derivatives_in_the_noise():
    series = gv.TimeSeries(TIMES, 0.5 + observations(1) / 4)
    method = gv.CVIDP(tolerance=1e-12)
    with jax.enable_x64(True):

        def model(p):
            noise = gv.diffusions.Power(p[0], p[1])
            return gv.Model(lambda x, t: 1.0 - x, noise, gv.GaussianState(p[2:], 0.1), gv.likelihoods.Gaussian(0.05))

        p = jnp.array([0.4, 0.8, 1.1])
        problem = gv.prepare(model(p), series, dt=0.1, method=method)
        bound = jax.jit(lambda p: gv.bound(model(p), problem))
        assert_close(bound(p), gv.infer(model(p), series, dt=0.1, method=method).elbo, "functional", "bound")
        h = 1e-4
        steps = [(bound(p.at[i].add(h)) - bound(p.at[i].add(-h))) / (2 * h) for i in range(3)]
        assert_close(jax.grad(bound)(p), np.array(steps), "gradient", "gradient")
        solution = gv.solve(model(p), problem)
        post = gv.infer(model(p), series, dt=0.1, method=method)
    assert_close(np.asarray(solution.mean)[: len(post.times)], post.mean, "functional", "means in x")


NOISES = {
    "proportional": gv.diffusions.Proportional([0.3, 0.4], R),
    "square root": gv.diffusions.SquareRoot(0.3),
    "power": gv.diffusions.Power(0.3, [0.7, 1.2]),
    "bounded": gv.diffusions.Bounded(0.3, 0.0, 5.0),
    "list": [gv.diffusions.Proportional(0.3), 0.2],
    "correlated list": gv.diffusions.Each([gv.diffusions.SquareRoot(0.3), 0.2], R),
    "function": gv.diffusions.Scale(lambda x: 0.2 + 0.1 * x, 0.01, 10.0),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "correlated list" else pytest.mark.slow) for n in NOISES]
)
def test_saved_and_loaded(name, tmp_path):
    model = gv.Model(gv.OrnsteinUhlenbeck(1.0, 1.0), NOISES[name], gv.GaussianState([1.0, 1.2], 0.01))
    y = 1.0 + 0.1 * np.column_stack([np.sin(TIMES), np.cos(TIMES)])
    post = gv.infer(model, gv.TimeSeries(TIMES, y), dt=0.5, max_iterations=2)
    path = post.save(tmp_path / "run.gv")
    if name == "function":
        with pytest.raises(ValueError, match="diffusion of your own"):
            gv.load(path)
    back = gv.load(path, diffusion=NOISES[name]) if name == "function" else gv.load(path)
    assert np.array_equal(back.mean, post.mean) and np.array_equal(back.cov, post.cov)
    assert jax.tree.structure(back.model.noise) == jax.tree.structure(post.model.noise)
    assert np.array_equal(back.quantiles([1.0], 0.3), post.quantiles([1.0], 0.3))


@pytest.mark.filterwarnings("ignore:infer has not converged")
def test_a_posterior_at_the_end_of_the_states_says_so():
    times = np.linspace(0.0, 4.0, 20)
    series = gv.TimeSeries(times, np.full(20, 0.02))
    post = gv.infer(cir(1.0, 0.05, 0.5, noise=0.01, start=(0.05, 1e-4)), series, dt=0.05)
    assert post.status == "boundary"
    assert "of the end 0 at time" in post.message and "Proportional" in post.message


def test_messages_show_the_state_itself():
    """Not the coordinate of constant noise: a positive state is shown as a positive number."""
    series = gv.TimeSeries(TIMES, 1.0 + 0.1 * np.sin(TIMES))
    start = gv.GaussianState([1.0, 1.0], 0.1)
    bent = gv.Model(
        lambda x, t: jnp.stack([x[1], -x[0]]), [0.0, gv.diffusions.Proportional(0.2)], start, emission=[[1.0, 0.0]]
    )
    with pytest.raises(ValueError, match=r"row 0 of the drift has no noise .* at state \[[-.\d]+, \d"):
        gv.infer(bent, series, dt=0.2)
    bad = gv.Model(lambda x, t: jnp.log(x - 0.9), gv.diffusions.Proportional(0.3), gv.GaussianState(1.0, 0.1))
    with pytest.raises(ValueError, match=r"the drift returned \[nan\] at state \[0\.\d"):
        gv.infer(bad, series, dt=0.2)


@pytest.mark.slow
def test_diagnose_and_the_exact_smoother_know_the_state(tmp_path):
    series = gv.TimeSeries(TIMES, 1.0 + 0.3 * np.sin(2.0 * TIMES))
    post = gv.infer(cir(), series, dt=0.05)
    exact = gv.baselines.exact_smoother(cir(), series, dt=0.05)
    assert_close(post.mean, exact.mean, "learnt", "means")
    assert_close(post.std, exact.std, "learnt", "sds")
    assert post.elbo < exact.log_evidence
    found = post.diagnose(key=jax.random.key(0), n=500)
    assert abs(found.log_evidence - exact.log_evidence) < TOLERANCES["trusted"]
    x = np.linspace(0.01, 4.0, 4001)
    p = exact.density_at(20, x)
    assert_close(np.trapezoid(p, x), 1.0, "integral", "density")
    assert_close(np.trapezoid(x * p, x), exact.mean[20, 0], "integral", "mean by the density")
    assert exact.density_at(20, [-1.0]) == 0.0
    for estimate in (post, exact):
        low, high = estimate.band()
        assert (low > 0.0).all() and ((estimate.mean > low) & (estimate.mean < high)).all()
        estimate.plot().savefig(tmp_path / "plot.png")
    low, high = exact.band()
    assert_close(post.band()[0], low, "coarse_moments", "band")


@pytest.mark.slow
def test_particles_have_the_law_of_the_state():
    series = gv.TimeSeries(TIMES, 1.0 + 0.3 * np.sin(2.0 * TIMES))
    exact = gv.baselines.exact_smoother(cir(), series, dt=0.05)
    post = gv.infer(cir(), series, dt=0.05)
    options = {"key": jax.random.key(0), "samples": 800, "progress": False}
    drawn = gv.baselines.particle_smoother(cir(), series, dt=0.05, guided=post, **options)
    error = exact.std / np.sqrt(drawn.ess)
    assert (np.abs(drawn.mean - exact.mean) < TOLERANCES["standard_errors"] * error).all()
    assert abs(drawn.log_evidence - exact.log_evidence) < TOLERANCES["standard_errors"] * drawn.standard_error
    between = drawn.marginals([1.01])
    assert_close(between.mean, post.marginals([1.01]).mean, "coarse_moments", "between the nodes")
    assert_close(between.std, post.marginals([1.01]).std, "fitted_moments", "sd between the nodes")
    test = gv.TimeSeries([1.01], [1.2])
    assert abs(drawn.nlpd(test) - post.nlpd(test)) < TOLERANCES["bridge"]
    low, high = drawn.band()
    assert (low > 0.0).all() and (high > low).all()


@pytest.mark.slow
def test_vdp_runs_where_the_noise_is_constant():
    series = gv.TimeSeries(TIMES, 1.0 + 0.3 * np.sin(2.0 * TIMES))
    by_vdp, by_cvi = (gv.infer(cir(noise=0.1), series, dt=0.02, method=m) for m in (gv.VDP(), gv.CVIDP()))
    assert_close(by_vdp.mean, by_cvi.mean, "learnt", "means")
    with pytest.raises(ValueError, match="VDP cannot learn the diffusion"):
        gv.learn(cir(), series, dt=0.1, trainable="diffusion.scale", method=gv.VDP())


@float64
def test_the_model_of_constant_noise_is_itself():
    model = gv.Model(gv.OrnsteinUhlenbeck(1.0))
    assert model.latent is model
    assert geometric(1).latent.latent is not None and geometric(1).latent.noise.Q.shape == (1, 1)
