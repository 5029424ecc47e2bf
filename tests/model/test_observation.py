"""Emissions with an offset or without a matrix, known errors, and outputs with likelihoods of different kinds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
from support import assert_close, assert_gaussian, condition, linear_joint, split_dense
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.data.rows import Rows
from girsanov.likelihoods import (
    Binomial,
    Censored,
    Gamma,
    Gaussian,
    Joint,
    LogNormal,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StochasticVolatility,
    StudentT,
)
from girsanov.model.nonlinear import expectations, log_predictives, predictive
from girsanov.model.quadrature import GaussHermite

TIMES = np.array([0.0, 0.3, 0.5, 0.9, 1.4, 1.5, 2.0])
RNG = np.random.default_rng(0)
TWO = RNG.normal(size=(7, 2))
A = np.array([[-0.7, 0.4], [-0.3, -0.5]])
H = np.array([[1.0, 0.5], [0.0, 2.0]])


def linear(**options):
    return gv.Model(gv.Linear(A), 0.8, **options)


def dense(post, R, y, H=H):
    """Moments and evidence of the discretised model by dense conditioning; R is (n, D, D)."""
    M = len(post.times) - 1
    joint = linear_joint(
        np.broadcast_to(A, (M, 2, 2)), np.zeros((M, 2)), 0.8 * np.eye(2), np.zeros(2), np.eye(2), post.times
    )
    scale = [np.linalg.inv(np.linalg.cholesky(r)) for r in R]
    # Every observation is divided by the root of its own noise, and the evidence gets the Jacobian.
    mean, cov, evidence = joint[0], joint[1], 0.0
    for i, m in enumerate(post.node):
        mean, cov, value = condition(mean, cov, scale[i] @ H, np.eye(len(H)), [m], (scale[i] @ y[i])[None])
        evidence += value + np.linalg.slogdet(scale[i])[1]
    return (*split_dense(mean, cov, 2), evidence)


def test_an_offset_shifts_the_data():
    offset = np.array([3.0, -40.0])
    post = gv.infer(linear(emission=H, offset=offset), gv.TimeSeries(TIMES, TWO + offset), dt=0.25)
    plain = gv.infer(linear(emission=H), gv.TimeSeries(TIMES, TWO), dt=0.25)
    assert_close(post.elbo, plain.elbo, "evidence", size=1.0)
    assert_gaussian((post.mean, post.cov), (plain.mean, plain.cov), "evidence")
    assert_close(post.predict([0.4]).mean, plain.predict([0.4]).mean + offset, "evidence")
    test = gv.TimeSeries([0.4], [[1.0, 2.0]])
    moved = gv.TimeSeries([0.4], test.values + offset)
    assert_close(post.nlpd(moved), plain.nlpd(test), "evidence")


def test_known_errors_are_the_noise_of_each_observation():
    errors = RNG.uniform(0.05, 1.0, size=(7, 2))
    series = gv.TimeSeries(TIMES, TWO, errors=errors)
    alone = gv.infer(linear(emission=H), series, dt=0.25)
    m, S, C, evidence = dense(alone, [np.diag(e**2) for e in errors], TWO)
    assert_close(alone.elbo, evidence, "evidence", size=1.0)
    assert_gaussian((alone.mean, alone.cov, alone.lag_cov), (m, S, C), "evidence")
    assert alone.model.likelihood.variance is None
    more = gv.infer(linear(emission=H, likelihood=Gaussian(0.3)), series, dt=0.25)
    evidence = dense(more, [np.diag(e**2 + 0.3) for e in errors], TWO)[-1]
    assert_close(more.elbo, evidence, "evidence", size=1.0)


def test_a_model_without_stated_noise_has_variance_one_where_there_are_no_errors():
    post = gv.infer(linear(), gv.TimeSeries(TIMES, TWO), dt=0.25)
    assert_close(post.elbo, dense(post, [np.eye(2)] * 7, TWO, np.eye(2))[-1], "evidence", size=1.0)


@pytest.mark.slow
def test_errors_of_held_out_data_and_in_other_places(tmp_path):
    errors = RNG.uniform(0.1, 0.5, size=(7, 2))
    series = gv.TimeSeries(TIMES, TWO, errors=errors)
    post = gv.infer(linear(emission=H), series, dt=0.25)
    test = gv.TimeSeries([0.4], [[0.3, -0.2]], errors=[[0.5, 0.1]])
    state = post.marginals([0.4])
    law = scipy.stats.multivariate_normal(H @ state.mean[0], H @ state.cov[0] @ H.T + np.diag([0.25, 0.01]))
    assert_close(post.nlpd(test), -law.logpdf([0.3, -0.2]), "score", size=1.0)
    again = gv.load(post.save(tmp_path / "run.gv"))
    np.testing.assert_array_equal(again.series.errors, errors)
    assert again.nlpd(test) == post.nlpd(test)
    np.testing.assert_array_equal(series.subset(slice(2)).errors, errors[:2])
    with jax.enable_x64(True):
        solution = gv.solve(linear(emission=H), gv.prepare(linear(emission=H), series, dt=0.25))
    assert_close(float(solution.elbo), post.elbo, "functional", size=1.0)


def test_errors_from_a_file(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text("t,y,sd\n0,1.0,0.1\n1,,\n2,3.0,0.2\n")
    series = gv.TimeSeries.from_csv(path, errors="sd")
    np.testing.assert_array_equal(series.values[:, 0], [1.0, np.nan, 3.0])
    np.testing.assert_array_equal(series.errors[:, 0], [0.1, np.nan, 0.2])
    twice = gv.TimeSeries.from_csv(path, values=["y"], errors=["sd"])
    np.testing.assert_array_equal(twice.errors, series.errors)
    with pytest.raises(ValueError, match=r"errors=\['sd', 'sd'\] names 2 columns for the 1 columns of values"):
        gv.TimeSeries.from_csv(path, values="y", errors=["sd", "sd"])
    with pytest.raises(ValueError, match=r"column 'y' is named in both values=\['y'\] and errors=\['y'\]"):
        gv.TimeSeries.from_csv(path, values="y", errors="y")


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("-0.2", r"run\.csv, line 4, column 'sd': the error of 'y' is negative \(-0\.2\).*leave the value out"),
        ("", r"run\.csv, line 4, column 'sd': the error of 'y' is missing"),
        ("inf", r"run\.csv, line 4, column 'sd': the error of 'y' is infinite"),
        ("high", r"run\.csv, line 4, column 'sd': 'high' is not a number"),
    ],
)
def test_a_bad_error_in_a_file_is_named_by_its_line(tmp_path, cell, says):
    path = tmp_path / "run.csv"
    path.write_text(f"t,y,sd\n0,1.0,0.1\n\n1,2.0,{cell}\n")  # blank lines count
    with pytest.raises(ValueError, match=says):
        gv.TimeSeries.from_csv(path, errors="sd")


def test_errors_from_a_table():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"t": [0.0, 1.0], "a": [1.0, 2.0], "b": [3.0, np.nan], "sa": [0.1, 0.2], "sb": [0.3, np.nan]}
    )
    series = gv.TimeSeries.from_dataframe(frame, errors=["sa", "sb"])
    np.testing.assert_array_equal(series.errors, [[0.1, 0.3], [0.2, np.nan]])
    frame.loc[1, "sa"] = -0.2
    with pytest.raises(ValueError, match=r"the table, column 'sa', row 1: the error of 'a' is negative \(-0\.2\)"):
        gv.TimeSeries.from_dataframe(frame, errors=["sa", "sb"])
    with pytest.raises(ValueError, match=r"'t' is the column of the times and cannot be one of the errors"):
        gv.TimeSeries.from_dataframe(frame, errors=["t", "sb"])


def test_censored_values_with_errors():
    series = gv.TimeSeries(TIMES, np.clip(TWO[:, :1], -0.5, None), errors=np.full((7, 1), 0.3))
    model = gv.Model(gv.OrnsteinUhlenbeck(1.0), likelihood=Censored(0.1, low=-0.5))
    same = gv.Model(gv.OrnsteinUhlenbeck(1.0), likelihood=Censored(0.1 + 0.09, low=-0.5))
    one = gv.infer(model, series, dt=0.25)
    other = gv.infer(same, gv.TimeSeries(TIMES, series.values), dt=0.25)
    assert_close(one.elbo, other.elbo, "optimum", size=1.0)


# --- an emission without a matrix


def bearing(x, t):
    return jnp.stack([jnp.sqrt(x[0] ** 2 + x[1] ** 2 + 1.0), jnp.sin(x[0]) + t * x[1]])


@pytest.mark.slow
def test_a_callable_that_is_linear_equals_its_matrix():
    series = gv.TimeSeries(TIMES, np.where(RNG.uniform(size=(7, 2)) < 0.2, np.nan, TWO))
    model = linear(emission=lambda x, t: jnp.asarray(H) @ x, likelihood=Gaussian(0.1))
    post = gv.infer(model, series, dt=0.25)
    plain = gv.infer(linear(emission=H, likelihood=Gaussian(0.1)), series, dt=0.25)
    assert_close(post.elbo, plain.elbo, "optimum", size=1.0)
    assert_gaussian((post.mean, post.cov), (plain.mean, plain.cov), "optimum")
    for a, b in zip(post.predict([0.4]), plain.predict([0.4]), strict=True):
        assert_close(a, b, "optimum")
    test = gv.TimeSeries([0.4, 1.0], [[0.3, -0.2], [np.nan, 5.0]])
    assert_close(post.nlpd_values(test), plain.nlpd_values(test), "score", size=1.0)


M, S = np.array([0.4, -0.3]), np.array([[0.3, 0.1], [0.1, 0.2]])
ROW = Rows(np.array([0.7]), np.array([[1.4, 2.0]]), np.array([[True, True]]))
LIKELIHOOD = Joint([Gaussian(0.2), Poisson()])


def log_prob(row, x):
    return LIKELIHOOD.log_prob(row.y, row.observed, bearing(x, row.t))


def on_a_grid(fn, m=M, S=S):
    """E fn(x) under N(m, S) by a fine grid."""
    axis = np.linspace(-8.0, 8.0, 801)
    weight = np.outer(*[scipy.stats.norm.pdf(axis) * (axis[1] - axis[0])] * 2).ravel()
    xi = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    return np.einsum("n,n...->...", weight, np.asarray(jax.vmap(fn)(m + xi @ np.linalg.cholesky(S).T)))


def test_expectations_through_an_emission_are_integrals_and_their_derivatives():
    with jax.enable_x64(True):
        rule = GaussHermite(24).rule(2)

        def expected(m, S):
            return expectations(log_prob, ROW, m[None], S[None], rule)

        value, g, G = (np.asarray(a[0]) for a in expected(M, S))
        row = jax.tree.map(lambda a: a[0], ROW)
        assert_close(value, on_a_grid(lambda x: log_prob(row, x)), "integral")
        for i in range(2):
            step = 1e-5 * np.eye(2)[i]
            wanted = (expected(M + step, S)[0] - expected(M - step, S)[0])[0] / 2e-5
            assert_close(g[i], wanted, "gradient", size=np.abs(g).max())
            for j in range(2):
                step = np.zeros((2, 2))
                step[i, j] = step[j, i] = 1e-5
                wanted = (expected(M, S + step)[0] - expected(M, S - step)[0])[0] / 2e-5
                assert_close((G * (step != 0.0)).sum(), wanted, "gradient", size=np.abs(G).max())


def test_predictions_through_an_emission_are_integrals():
    with jax.enable_x64(True):
        row = jax.tree.map(lambda a: a[0], ROW)
        got = float(log_predictives(log_prob, ROW, M[None], S[None])[0])
        assert abs(got - np.log(on_a_grid(lambda x: jnp.exp(log_prob(row, x))))) < TOLERANCES["nlpd"]
        mean, cov = predictive(lambda t, x: bearing(x, t), LIKELIHOOD.given, ROW.t, M[None], S[None])

        def moments(x):
            z = bearing(x, 0.7)
            mu, var = jnp.stack([z[0], jnp.exp(z[1])]), jnp.stack([jnp.asarray(0.2), jnp.exp(z[1])])
            return jnp.concatenate([mu, (jnp.diag(var) + jnp.outer(mu, mu)).ravel()])

        wanted = on_a_grid(moments)
        assert_close(mean[0], wanted[:2], "integral")
        assert_close(cov[0], wanted[2:].reshape(2, 2) - np.outer(wanted[:2], wanted[:2]), "integral")


def test_a_sharp_observation_is_resolved_by_its_prediction():
    """The state is known a thousand times worse than the observation measures it."""
    with jax.enable_x64(True):
        row = Rows(np.array([0.0]), np.array([[1.3]]), np.array([[True]]))

        def sharp(row, x):
            return Gaussian(1e-6).log_prob(row.y, row.observed, jnp.sinh(x))

        got = float(log_predictives(sharp, row, np.zeros((1, 1)), np.ones((1, 1, 1)))[0])
    wanted = scipy.stats.norm.logpdf(np.arcsinh(1.3)) - 0.5 * np.log1p(1.3**2)
    assert abs(got - wanted) < TOLERANCES["nlpd"]


@pytest.mark.slow
def test_tracking_by_range_and_bearing_finds_the_path():
    def sensor(x, t):
        return jnp.stack([jnp.sqrt(x[0] ** 2 + x[1] ** 2), jnp.arctan2(x[1], x[0])])

    drift = gv.OrnsteinUhlenbeck(0.1)
    start = gv.GaussianState([3.0, 1.0], 0.1)
    model = gv.Model(drift, 0.3, initial=start, emission=sensor, likelihood=Gaussian([0.01, 0.001]))
    truth = gv.simulate(model, np.linspace(0.2, 3.0, 15), key=jax.random.key(0), start=0.0)
    post = gv.infer(model, truth.series, dt=0.1, span=(0.0, 3.0))
    assert post.converged
    off = (post.mean[post.node] - truth.path) / post.std[post.node]
    assert np.sqrt(np.mean(off**2)) < 1.5
    verdict = post.diagnose(key=jax.random.key(1), n=500)
    assert verdict.elbo <= verdict.log_evidence + 3.0 * verdict.standard_error + TOLERANCES["trusted"]
    assert "trust" in verdict.verdict


# --- outputs of different kinds


def mixed_series():
    y = np.stack([TWO[:, 0], RNG.poisson(2.0, 7), RNG.binomial(5, 0.4, 7)], 1).astype(float)
    y[1, 0] = y[3, 1] = y[4, 2] = np.nan  # one of each kind alone,
    y[5, :2] = y[2] = np.nan  # two at once, and a time without any
    return gv.TimeSeries(TIMES, y)


def test_a_gaussian_a_poisson_and_a_binomial_output_reach_the_optimum_of_the_dense_bound():
    """The bound of the discretised model over all Gaussians of the joint state, by quadrature and L-BFGS in SciPy."""
    H3 = np.array([[1.0, 0.2], [0.3, 0.8], [-0.4, 1.0]])
    series, offset = mixed_series(), np.array([0.4, 0.5, -0.6])
    model = linear(emission=H3, offset=offset, likelihood=[Gaussian(0.1), Poisson(), Binomial(5)])
    post = gv.infer(model, series, dt=0.25)
    n = len(post.times)
    assert n >= 12
    prior = linear_joint(
        np.broadcast_to(A, (n - 1, 2, 2)), np.zeros((n - 1, 2)), 0.8 * np.eye(2), np.zeros(2), np.eye(2), post.times
    )
    P = np.linalg.inv(prior[1])
    x, w = np.polynomial.hermite_e.hermegauss(40)
    w = w / w.sum()
    below = np.tril_indices(2 * n, -1)

    def densities(z, i):
        y = series.values[i]
        parts = [
            scipy.stats.norm.logpdf(y[0], z[0], np.sqrt(0.1)),
            y[1] * z[1] - np.exp(z[1]) - scipy.special.gammaln(y[1] + 1.0),
            np.log(scipy.special.binom(5, y[2])) + y[2] * z[2] - 5.0 * np.logaddexp(0.0, z[2]),
        ]
        slopes = [(y[0] - z[0]) / 0.1, y[1] - np.exp(z[1]), y[2] - 5.0 * scipy.special.expit(z[2])]
        seen = ~np.isnan(y)
        return [np.where(s, p, 0.0) for s, p in zip(seen, parts, strict=True)], [
            np.where(s, p, 0.0) for s, p in zip(seen, slopes, strict=True)
        ]

    def minus_bound(theta):
        m, L = theta[: 2 * n], np.diag(np.exp(theta[2 * n : 4 * n]))
        L[below] = theta[4 * n :]
        value = -0.5 * (m @ P @ m + np.sum(L * (P @ L))) + theta[2 * n : 4 * n].sum() + n
        value += 0.5 * np.linalg.slogdet(P)[1]
        g_m, g_L = -P @ m, -P @ L
        for i, node in enumerate(post.node):
            rows = slice(2 * node, 2 * node + 2)
            h, B = H3 @ m[rows] + offset, H3 @ L[rows]
            sd = np.sqrt((B**2).sum(1))
            p, slope = densities([h[k] + sd[k] * x for k in range(3)], i)
            for k in range(3):
                value += w @ p[k]
                g_m[rows] += (w @ slope[k]) * H3[k]
                g_L[rows] += (w @ (slope[k] * x)) / sd[k] * np.outer(H3[k], B[k])
        scale = np.diag(g_L) * np.diag(L) + 1.0
        return -value, -np.concatenate([g_m, scale, g_L[below]])

    start = np.concatenate([np.zeros(2 * n), np.full(2 * n, -1.0), np.zeros(len(below[0]))])
    best = scipy.optimize.minimize(
        minus_bound,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 20000, "maxfun": 40000, "gtol": 1e-7, "ftol": 1e-15},
    )
    assert np.abs(best.jac).max() < TOLERANCES["stationary"]
    assert_close(post.elbo, -best.fun, "optimum", size=1.0)
    assert_close(post.mean.ravel(), best.x[: 2 * n], "optimum_moments")


def test_parameters_of_one_output_are_learnt_under_its_name():
    series = mixed_series()
    model = linear(emission=np.ones((3, 2)), likelihood=[Gaussian(0.5), Poisson(), Binomial(5)])
    fit = gv.learn(model, series, dt=0.5, trainable="likelihood[0].variance")
    assert fit.trainable == ("likelihood[0].variance",)
    assert fit.posterior.elbo > gv.infer(model, series, dt=0.5).elbo


def test_a_list_is_saved_and_loaded(tmp_path):
    post = gv.infer(linear(likelihood=[Gaussian(0.1), Poisson()]), gv.TimeSeries(TIMES, np.abs(TWO).round()), dt=0.5)
    again = gv.load(post.save(tmp_path / "run.gv"))
    assert isinstance(again.model.likelihood, Joint)
    np.testing.assert_array_equal(again.predict([0.4]).cov, post.predict([0.4]).cov)


def test_a_callable_emission_must_be_given_to_load(tmp_path):
    model = linear(emission=bearing, offset=[0.1, 0.2], likelihood=Gaussian(0.1))
    post = gv.infer(model, gv.TimeSeries(TIMES, TWO), dt=0.5)
    path = post.save(tmp_path / "run.gv")
    with pytest.raises(ValueError, match=r"emission of your own.*emission="):
        gv.load(path)
    again = gv.load(path, emission=bearing)
    np.testing.assert_array_equal(again.predict([0.4]).mean, post.predict([0.4]).mean)


# --- learning emission and offset


def test_emission_and_offset_are_learnt_from_principal_components():
    model = gv.Model(gv.OrnsteinUhlenbeck(0.5), 1.0, emission=[[2.0], [-1.0], [0.5]], offset=[5.0, 0.0, -3.0],
                     likelihood=Gaussian(0.05), initial="stationary")  # fmt: skip
    times = np.linspace(0.0, 30.0, 120)
    series = gv.simulate(model, times, key=jax.random.key(4)).series
    H0, offset = gv.start_emission(series, 1)
    assert H0.shape == (3, 1) and offset.shape == (3,)
    assert_close(offset, series.values.mean(0), "exact")
    start = gv.Model(gv.OrnsteinUhlenbeck(0.5), 1.0, emission=H0, offset=offset, likelihood=Gaussian(0.05),
                     initial="stationary")  # fmt: skip
    fit = gv.learn(start, series, dt=0.25, trainable=["emission", "offset"])
    assert fit.status == "converged"
    assert fit.posterior.elbo >= gv.infer(model, series, dt=0.25).elbo
    true, found = np.array([2.0, -1.0, 0.5]), np.asarray(fit.model.emission)[:, 0]
    error = np.array([fit.standard_errors[f"emission[{i}, 0]"] for i in range(3)])
    assert (np.abs(found * np.sign(found[0]) - true) < 4.0 * error).all()


@pytest.mark.slow
@pytest.mark.paper
def test_emission_and_offset_of_the_duffing_data_predict_as_well_as_the_true_ones(data_dir):
    """The first trial of data that another tool published: ten outputs of two states, one observation in five held out.

    Learning must leave the many lower maxima, where the coordinates have the wrong orientation or lie on the ridge.
    """
    from benchmarks.duffing import learnt, load, with_truth

    try:
        trial = load(data_dir, trial=0, held_out=60, seed=0)
    except FileNotFoundError:
        pytest.skip(f"there is no peers/duffing.npz in {data_dir}")
    true, (fits, found) = with_truth(trial), learnt(trial)
    assert true.status == found.status == "converged"
    assert found.elbo > true.elbo > min(fit.elbo for fit in fits)
    assert found.nlpd < true.nlpd + TOLERANCES["learnt_emission"]


# --- bad input


OU = gv.OrnsteinUhlenbeck(1.0)


def observed(likelihood, values, **options):
    series = gv.TimeSeries(0.5 * np.arange(len(values)), values, **options)
    return gv.infer(gv.Model(OU, likelihood=likelihood), series, dt=0.5)


BAD = {
    "emission is text": (lambda: linear(emission="identity"), r"emission must be numbers, not text such as 'identity'"),
    "emission is a vector": (lambda: linear(emission=[1.0, 0.0]), r"emission must be a matrix.*\(2,\); write \[\[1\.0"),
    "emission returns a list": (
        lambda: linear(emission=lambda x, t: [x[0], x[1]]),
        r"emission must return an array of shape \(D,\).*got list; use jnp\.stack",
    ),
    "emission is not finite at the start": (
        lambda: gv.infer(
            gv.Model(OU, emission=lambda x, t: jnp.log(x)), gv.TimeSeries([0.5], [0.1]), dt=0.5, span=(0, 1)
        ),
        r"emission returned \[-inf\] at state \[0\.0\], the mean of the initial state, and time 0\.5.*GaussianState",
    ),
    "offset is text": (lambda: linear(offset="high"), r"offset must be numbers, not text such as 'high'"),
    "offset is a matrix": (
        lambda: linear(offset=np.ones((2, 2))),
        r"offset must be a scalar or of shape \(2,\).*\(2, 2\)",
    ),
    "offset is a function": (lambda: linear(offset=lambda t: t), r"offset must be .*got a function.*emission\(x, t\)"),
    "too many likelihoods": (
        lambda: gv.Model(OU, likelihood=[Poisson(), Poisson()]),
        r"has 2 entries, but an observation has 1 outputs; give one for each, or an emission with 2 rows",
    ),
    "a class that was not called": (lambda: linear(likelihood=Poisson), r"got the class Poisson: call it, Poisson\("),
    "a class in the list": (
        lambda: linear(likelihood=[Gaussian(1.0), Poisson]),
        r"likelihood\[1\] must come .*got the class Poisson: call it",
    ),
    "one error for all": (
        lambda: gv.TimeSeries([0.0, 1.0], [1.0, 2.0], errors=0.1),
        r"errors must have the shape of the values, \(2, 1\), got \(\); .*np\.full_like",
    ),
    "errors turned round": (
        lambda: gv.TimeSeries(TIMES, TWO, errors=np.ones((2, 7))),
        r"shape of the values, \(7, 2\), got \(2, 7\)",
    ),
    "errors in words": (lambda: gv.TimeSeries([0.0], [1.0], errors=["low"]), r"errors must be numbers, not text.*low"),
    "an infinite error": (
        lambda: gv.TimeSeries([0.0, 1.0], [1.0, 2.0], errors=[0.1, np.inf]),
        r"errors\[1, 0\] is infinite \(inf\) at time 1; .*make the value NaN",
    ),
    "errors of one output that takes none": (
        lambda: gv.infer(
            linear(likelihood=[Gaussian(0.1), Poisson()]), gv.TimeSeries([0.0], [[1.0, 2.0]], errors=[[0.1, 0.2]]), dt=1
        ),
        r"errors\[0, 1\] is 0\.2, but the likelihood Poisson has no Gaussian noise.*give zeros there",
    ),
    "errors of heavy tails": (
        lambda: observed(StudentT(1.0), [1.0, 2.0], errors=[0.1, 0.1]),
        r"errors\[0, 0\] is 0\.1, but the likelihood StudentT has no Gaussian noise",
    ),
    "fewer than no counts": (
        lambda: observed(NegativeBinomial(1.0), [1.0, -1.0]),
        r"NegativeBinomial .* a count: 0, 1, 2, …; values\[1, 0\] is -1\.0 \(row 1, output 0\)\. Make it NaN",
    ),
    "half a success": (lambda: observed(Binomial(3), [1.0, 0.5]), r"Binomial .* from 0 to 3; values\[1, 0\] is 0\.5"),
    "half a category": (
        lambda: observed(Ordinal([0.0]), [1.0, 0.5]),
        r"Ordinal .* from 0 to 1; values\[1, 0\] is 0\.5",
    ),
    "a negative amount": (lambda: observed(Gamma(), [1.0, -2.0]), r"Gamma .* positive; values\[1, 0\] is -2\.0"),
    "the logarithm of zero": (
        lambda: observed(LogNormal(1.0), [1.0, 0.0]),
        r"LogNormal .* positive; values\[1, 0\] is 0",
    ),
    "only missing returns": (lambda: observed(StochasticVolatility(), [np.nan] * 2), r"every value is missing"),
    "half a trial": (lambda: Binomial(2.5), r"trials must be a whole number ≥ 1, got 2\.5"),
    "trials in a list": (
        lambda: Binomial([3, 4]),
        r"trials must be one whole number, got \[3, 4\]; .*list of likelihoods",
    ),
    "trials in words": (lambda: Binomial("5"), r"trials must be a whole number ≥ 1, got '5'"),
    "no categories": (lambda: Ordinal([]), r"cutpoints must have shape \(K,\) with K ≥ 1, got \(0,\)"),
    "a limit for each output": (
        lambda: Censored(1.0, low=[0.0, 1.0]),
        r"a detection limit must be one number, got \[0\.0, 1\.0\]; .*list of likelihoods",
    ),
    "a limit in words": (
        lambda: Censored(1.0, low="none"),
        r"a detection limit must be numbers, not text such as 'none'",
    ),
    "a limit that is not a number": (lambda: Censored(1.0, low=np.nan), r"low < high, got low = nan.*leave one out"),
    "noise of a negative variance at a limit": (lambda: Censored(-1.0), r"variance must be positive.*-1"),
    "a shape that is negative": (lambda: Gamma(-1.0), r"shape must be positive and finite, got -1"),
    "a variance of logarithms that is negative": (lambda: LogNormal(-1.0), r"variance must be positive.*-1"),
    "a held-out value outside the support": (
        lambda: observed(Poisson(), [1.0, 2.0]).nlpd(gv.TimeSeries([0.25], [-1.0])),
        r"Poisson observations must be a count.*values\[0, 0\] is -1\.0",
    ),
    "held-out values without noise": (
        lambda: observed(None, [1.0, 2.0], errors=[0.1, 0.1]).nlpd(gv.TimeSeries([0.25], [1.0])),
        r"Gaussian likelihood has no variance, and the series has no errors",
    ),
    "offset of the wrong length": (lambda: linear(offset=[1.0]), r"offset must be a scalar or of shape \(2,\).*\(1,\)"),
    "offset is not finite": (lambda: linear(offset=np.nan), r"offset must be finite"),
    "emission that is a number": (
        lambda: linear(emission=lambda x, t: x[0]),
        r"emission must return an array of shape \(D,\).*got \(\)",
    ),
    "emission fails": (lambda: linear(emission=lambda x: x), r"the emission failed on a state of shape \(2,\)"),
    "emission in whole numbers": (lambda: linear(emission=lambda x, t: jnp.ones(2, int)), r"real floating-point.*int"),
    "too few likelihoods": (
        lambda: linear(likelihood=[Gaussian(1.0)]),
        r"list of likelihoods has 1 entries, but an observation has 2 outputs",
    ),
    "an empty list": (lambda: linear(likelihood=[]), r"list of likelihoods is empty"),
    "not a likelihood in the list": (
        lambda: linear(likelihood=[Gaussian(1.0), 0.1]),
        r"likelihood\[1\] must come from girsanov\.likelihoods.*got 0\.1",
    ),
    "a vector in the list": (
        lambda: linear(likelihood=[Gaussian([1.0, 1.0]), Poisson()]),
        r"likelihood\[0\]\.variance has shape \(2,\), but an observation has 1 entry",
    ),
    "a value outside one output's support": (
        lambda: gv.infer(linear(likelihood=[Gaussian(1.0), Poisson()]), gv.TimeSeries(TIMES, TWO), dt=0.5),
        r"Poisson observations must be .*values\[\d, 1\]",
    ),
    "errors of the wrong shape": (
        lambda: gv.TimeSeries(TIMES, TWO, errors=np.ones(7)),
        r"errors must have the shape of the values, \(7, 2\), got \(7,\)",
    ),
    "a negative error": (
        lambda: gv.TimeSeries([0.0, 1.0], [1.0, 2.0], errors=[0.1, -0.2]),
        r"errors\[1, 0\] is negative \(-0\.2\) at time 1",
    ),
    "a missing error": (
        lambda: gv.TimeSeries([0.0, 1.0], [1.0, 2.0], errors=[0.1, np.nan]),
        r"errors\[1, 0\] is missing \(nan\) at time 1",
    ),
    "errors of counts": (
        lambda: gv.infer(
            gv.Model(gv.OrnsteinUhlenbeck(1.0), likelihood=Poisson()),
            gv.TimeSeries([0.0, 1.0], [1.0, 2.0], errors=[0.0, 0.1]),
            dt=0.5,
        ),
        r"errors\[1, 0\] is 0\.1, but the likelihood Poisson has no Gaussian noise",
    ),
    "no noise anywhere": (
        lambda: gv.infer(gv.Model(gv.OrnsteinUhlenbeck(1.0), likelihood=Gaussian()), gv.TimeSeries([0.0], [1.0]), dt=1),
        r"Gaussian likelihood has no variance, and the series has no errors",
    ),
    "an error of zero": (
        lambda: gv.infer(
            gv.Model(gv.OrnsteinUhlenbeck(1.0)), gv.TimeSeries([0.0, 1.0], [1.0, 2.0], errors=[0.1, 0.0]), dt=0.5
        ),
        r"errors\[1, 0\] is 0, and the likelihood adds no noise to it",
    ),
    "principal components of too few outputs": (
        lambda: gv.start_emission(gv.TimeSeries(TIMES, TWO), 2),
        r"fewer coordinates than the 2 outputs, but dim = 2",
    ),
}


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("name", BAD)
def test_bad_input_says_what_to_do(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_log_normal_outputs_in_a_list_equal_one_for_all():
    y = np.exp(TWO)
    one = gv.infer(linear(likelihood=LogNormal(0.2)), gv.TimeSeries(TIMES, y), dt=0.5)
    many = gv.infer(linear(likelihood=[LogNormal(0.2), LogNormal(0.2)]), gv.TimeSeries(TIMES, y), dt=0.5)
    test = gv.TimeSeries([0.4], [[0.7, np.nan]])
    assert_close(many.elbo, one.elbo, "optimum", size=1.0)
    assert_close(many.nlpd(test), one.nlpd(test), "score", size=1.0)
    assert_close(many.predict([0.4]).cov, one.predict([0.4]).cov, "integral")
