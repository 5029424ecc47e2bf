"""Draws of parameters: against quadrature on a Kalman filter and on exact evidence, and what goes wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from arviz_stats.base.array import array_stats
from numpyro.distributions import biject_to
from numpyro.distributions import constraints as nc
from support import assert_close, ou_log_likelihood
from tolerances import TOLERANCES

import girsanov as gv
from girsanov import baselines
from girsanov._core.precision import float64
from girsanov.inference.functional import lay_out
from girsanov.learning.correction import correct, resampled
from girsanov.learning.parameters import make_spec, to_vector
from girsanov.learning.reference import evaluate_near, make_reference
from girsanov.learning.target import Reference, Target
from girsanov.paper.data import inference_model, load_fold

xarray = pytest.importorskip("xarray")
# Tests of what does not depend on it draw too few for the chains to mix, and the result says so.
pytestmark = pytest.mark.filterwarnings("ignore:sample_parameters. the chains|sample_parameters. only")

DT, END = 0.05, 10.0
PRIORS = {"drift.decay": dist.LogNormal(0.0, 0.7), "diffusion": dist.LogNormal(0.0, 0.7)}
MEAN, SPREAD = 0.05, 0.05  # what the issue asks for: means in sds, and shares of sds


def ou_model(decay=1.0, diffusion=1.0) -> gv.Model:
    return gv.Model(gv.OrnsteinUhlenbeck(decay), diffusion, gv.GaussianState(0.0, 0.5), gv.likelihoods.Gaussian(0.1))


@pytest.fixture(scope="module")
def series() -> gv.TimeSeries:
    times = np.arange(1, 41) * 0.25
    y = gv.simulate(ou_model(), times, key=jax.random.key(3), dt=0.01, start=0.0).series.values.copy()
    y[7] = np.nan
    return gv.TimeSeries(times, y)


def kalman(series, decay, diffusion):
    """The log likelihood of Euler's steps of the OU process, for arrays of parameters of one shape."""
    return ou_log_likelihood(series, DT, END, decay, diffusion, noise=0.1, variance=0.5)


@pytest.fixture(scope="module")
def exact(series):
    """Means and standard deviations of decay and diffusion, by quadrature on a grid of their logarithms."""
    log_decay, log_diffusion = np.meshgrid(np.linspace(-4.0, 3.0, 281), np.linspace(-3.0, 3.0, 241), indexing="ij")
    decay, diffusion = np.exp(log_decay), np.exp(log_diffusion)
    log_p = kalman(series, decay, diffusion) - 0.5 * (log_decay**2 + log_diffusion**2) / 0.7**2
    w = np.exp(log_p - log_p.max())
    w /= w.sum()
    assert max(w[0].sum(), w[-1].sum(), w[:, 0].sum(), w[:, -1].sum()) < TOLERANCES["integral"]
    means = {"drift.decay": (w * decay).sum(), "diffusion": (w * diffusion).sum()}
    squares = {"drift.decay": (w * decay**2).sum(), "diffusion": (w * diffusion**2).sum()}
    return {name: (m, np.sqrt(squares[name] - m**2)) for name, m in means.items()}


def drawn(series, **options):
    options = {"priors": PRIORS, "key": jax.random.key(0), "draws": 400, "progress": False, **options}
    return gv.sample_parameters(ou_model(), series, DT, (0.0, END), **options)


@pytest.fixture(scope="module")
def tree(series):
    return drawn(series)


@pytest.mark.slow
def test_means_are_those_of_quadrature_on_a_kalman_filter(tree, exact):
    for name, (mean, sd) in exact.items():
        x = tree["posterior"][name].values
        error = sd / np.sqrt(array_stats.ess(x, chain_axis=0, draw_axis=1))
        assert abs(x.mean() - mean) < TOLERANCES["effective_errors"] * error


@pytest.mark.slow
def test_with_many_draws_means_and_standard_deviations_are_exact(series, exact):
    many = drawn(series, draws=2500, correct=False)
    for name, (mean, sd) in exact.items():
        x = many["posterior"][name].values
        print(f"{name}: {x.mean():.4f} ± {x.std():.4f}, exactly {mean:.4f} ± {sd:.4f}")
        assert abs(x.mean() - mean) < MEAN * sd
        assert abs(x.std() / sd - 1.0) < SPREAD


@pytest.mark.slow
def test_the_tree_has_the_groups_of_arviz(tree, series):
    shape = (4, 400)
    assert set(tree.children) == {
        "posterior", "sample_stats", "posterior_predictive", "log_likelihood", "observed_data", "corrected",
    }  # fmt: skip
    assert all(tree["posterior"][name].shape == shape for name in PRIORS)
    assert tree["posterior_predictive"]["y"].shape == (*shape, 40, 1)
    assert tree["log_likelihood"]["y"].shape == (*shape, 39)  # one observation is missing
    np.testing.assert_array_equal(tree["observed_data"]["y"].values, series.values)
    assert {"lp", "diverging", "n_steps", "acceptance_rate", "energy", "step_size", "bound"} <= set(
        tree["sample_stats"]
    )
    assert tree.attrs["divergences"] == int(tree["sample_stats"]["diverging"].sum())
    assert tree.attrs["girsanov_version"] == gv.__version__ and len(tree.attrs["data_sha256"]) == 64
    for group in ("posterior", "sample_stats", "posterior_predictive", "log_likelihood", "corrected"):
        assert all(np.isfinite(v.values).all() for v in tree[group].data_vars.values()), group


@pytest.mark.slow
def test_the_bound_of_a_linear_model_is_its_likelihood_and_needs_no_correction(tree, series):
    decay, diffusion = (tree["posterior"][name].values for name in PRIORS)
    bound = tree["sample_stats"]["bound"].values
    assert_close(bound, kalman(series, decay, diffusion), "converged", size=1.0)
    corrected = tree["corrected"]
    assert corrected.attrs["verdict"] == "trust the bound" and corrected.attrs["k_hat"] < 0.5
    # The estimates of the evidence are unbiased: the mean of the weights is one.
    w = np.exp(corrected["log_weight"].values)
    assert abs(w.mean() - 1.0) < TOLERANCES["standard_errors"] * w.std() / np.sqrt(w.size)
    assert abs(corrected["log_weight"].values.std() / corrected.attrs["noise"] - 1.0) < 0.5


@pytest.mark.slow
def test_scores_are_those_of_leaving_one_out(tree, series):
    decay, diffusion = (float(tree["posterior"][name].values[2, 17]) for name in PRIORS)
    nodes = np.round(series.times / DT).astype(int)
    a = 1.0 - DT * decay
    var = [0.5]
    for _ in range(nodes[-1]):
        var.append(a * a * var[-1] + DT * diffusion)
    early = np.minimum.outer(nodes, nodes)
    K = a ** np.abs(np.subtract.outer(nodes, nodes)) * np.array(var)[early] + 0.1 * np.eye(len(nodes))
    seen = series.observed[:, 0]
    y, inverse = series.values[seen, 0], np.linalg.inv(K[np.ix_(seen, seen)])
    v = 1.0 / np.diagonal(inverse)
    wanted = -0.5 * (v * (inverse @ y) ** 2 + np.log(2.0 * np.pi * v))
    assert_close(tree["log_likelihood"]["y"].values[2, 17], wanted, "converged", size=1.0)


@pytest.mark.slow
def test_replicates_have_the_moments_of_the_predictive(tree, series):
    y = tree["posterior_predictive"]["y"].values[..., 0]
    post = gv.infer(ou_model(), series, DT, (0.0, END))
    mean = post.predict(series.times).mean[:, 0]
    assert np.abs(y.mean((0, 1)) - mean).max() < 0.3  # at other parameters, so only roughly
    assert y.std((0, 1)).min() > np.sqrt(0.1) * 0.9  # the noise of the observations is in them


@pytest.mark.slow
def test_a_key_gives_the_same_draws_whatever_the_threads_do(series):
    one, two = (drawn(series, draws=20, warmup=30, chains=2, correct=False) for _ in range(2))
    xarray.testing.assert_identical(one["posterior"].to_dataset(), two["posterior"].to_dataset())


@float64
def ou_target(series, tolerance=1e-6) -> tuple[Target, Reference]:
    model, method = ou_model(), gv.CVIDP(tolerance=tolerance)
    spec = make_spec(model, list(PRIORS))
    target = Target(spec, model, lay_out(model, series, DT, (0.0, END), None, method), PRIORS)
    return target, make_reference(target, to_vector(spec, model))


def double_well_target(data_dir, tolerance: float) -> tuple[Target, Reference]:
    fold = load_fold(data_dir, "double_well", 0)
    model = inference_model("double_well", fold)
    priors = {"drift.scale": dist.LogNormal(np.log(4.0), 0.5), "drift.well": dist.LogNormal(0.0, 0.5)}
    spec = make_spec(model, list(priors), dict.fromkeys(priors, "positive"))
    problem = lay_out(model, fold.train, 0.04, fold.span, None, gv.CVIDP(tolerance=tolerance))
    target = Target(spec, model, problem, priors)
    return target, make_reference(target, to_vector(spec, model))


@pytest.mark.paper
@float64
@pytest.mark.slow
def test_the_density_does_not_depend_on_the_start_of_inference(data_dir):
    target, fitted = double_well_target(data_dir, 1e-6)
    constant = Reference(fitted.centre, fitted.root, fitted.solution, jax.tree.map(lambda a: a[:1], fitted.sites))
    iterations = []
    for u in np.random.default_rng(0).normal(size=(5, 2)):
        by = [evaluate_near(target, reference, u) for reference in (fitted, constant)]
        assert abs(float(by[0].value) - float(by[1].value)) < TOLERANCES["converged"]
        iterations.append([int(e.solution.iterations) for e in by])
    assert np.mean(iterations, 0)[0] < np.mean(iterations, 0)[1]  # the prediction saves some


@float64
def test_the_gradient_is_that_of_the_density(series):
    target, reference = ou_target(series)
    u, h = np.array([0.4, -0.7]), 1e-4
    found = evaluate_near(target, reference, u)
    slopes = reference.root.T @ np.asarray(found.grad)
    for i, e in enumerate(np.eye(2)):
        up, down = (float(evaluate_near(target, reference, u + s * h * e).value) for s in (1.0, -1.0))
        assert abs((up - down) / (2.0 * h) - slopes[i]) < TOLERANCES["gradient"] * max(1.0, abs(slopes[i]))


@float64
def test_the_prior_of_the_free_coordinates_has_the_jacobian_of_the_constraint():
    drift = gv.Linear(np.array([[-1.0, 0.2], [0.0, -0.5]]), np.array([0.1, 0.3]))
    model = gv.Model(drift, np.array([[1.0, 0.2], [0.2, 0.5]]), likelihood=gv.likelihoods.Gaussian([0.1, 0.2]))
    flat = dist.Normal(0.0, 1e6)
    kinds = {"drift.b": (0.0, 1.0), "diffusion": "full", "likelihood.variance": "positive"}
    spec = make_spec(model, list(kinds), {"drift.b": (0.0, 1.0)})
    priors = dict.fromkeys(kinds, flat)
    data = gv.TimeSeries([0.0, 1.0], np.zeros((2, 2)))
    target = Target(spec, model, lay_out(model, data, 0.5, None, None, gv.CVIDP()), priors)
    theta = to_vector(spec, model)
    volume, start = 0.0, 0
    for p in spec:
        free = jnp.asarray(theta[start : start + p.size])
        start += p.size
        kind = {"full": nc.positive_definite, "positive": nc.positive}.get(p.kind, nc.interval(0.0, 1.0))
        bijection = biject_to(kind)
        volume += float(np.sum(bijection.log_abs_det_jacobian(free, bijection(free))))
    height = float(flat.log_prob(0.0))
    count = 2 + 4 + np.size(model.likelihood.variance)  # a prior of a full matrix is one for each of its four entries
    assert_close(float(target.log_prior(theta)), volume + count * height, "exact", size=1.0)


@pytest.mark.slow
def test_several_entries_have_their_names():
    model = gv.Model(
        gv.Linear(-np.eye(2), np.zeros(2)), [1.0, 0.5], gv.GaussianState(np.zeros(2), np.ones(2)),
        gv.likelihoods.Gaussian(0.1),
    )  # fmt: skip
    data = gv.simulate(model, np.arange(1, 11) * 0.2, key=jax.random.key(0), start=0.0).series
    few = gv.sample_parameters(
        model, data, 0.1, (0.0, 2.0), priors={"diffusion": dist.LogNormal(0.0, 0.3)}, key=jax.random.key(1),
        draws=4, warmup=5, chains=1, correct=False, progress=False,
    )  # fmt: skip
    assert few["posterior"]["diffusion"].dims == ("chain", "draw", "diffusion_entry")
    assert few["posterior"]["diffusion_entry"].values.tolist() == ["diffusion[0, 0]", "diffusion[1, 1]"]
    assert "corrected" not in few.children


@pytest.mark.slow
@pytest.mark.parametrize("drift", ["integrated", "double well"])
def test_continuous_time_and_singular_noise(drift):
    if drift == "integrated":
        model = gv.Model(gv.IntegratedOU(1.0), [0.0, 1.0], gv.GaussianState(np.zeros(2), 0.5), emission=[[1.0, 0.0]],
                         likelihood=gv.likelihoods.Gaussian(0.05))  # fmt: skip
        priors, method = {"drift.decay": dist.LogNormal(0.0, 0.5)}, None
    else:
        model = gv.Model(gv.DoubleWell(2.0, 1.0), 1.0, gv.GaussianState(1.0, 0.1), gv.likelihoods.Gaussian(0.05))
        priors, method = {"drift.scale": dist.Normal(2.0, 0.5)}, gv.CVIDP(time="continuous", tolerance=1e-4)
    data = gv.simulate(model, np.arange(1, 21) * 0.2, key=jax.random.key(0), start=0.0).series
    few = gv.sample_parameters(
        model, data, 0.1, (0.0, 4.0), priors=priors, key=jax.random.key(1), draws=150, warmup=60, method=method,
        progress=False,
    )  # fmt: skip
    corrected = few["corrected"]
    assert corrected.attrs["k_hat"] < 0.7 and corrected.attrs["verdict"] != "trust neither"
    if drift == "integrated":  # linear: the bound is the evidence, and the mean of the weights one
        w = np.exp(corrected["log_weight"].values)
        assert abs(w.mean() - 1.0) < TOLERANCES["standard_errors"] * w.std() / np.sqrt(w.size)


@pytest.mark.slow
@pytest.mark.paper
def test_corrected_draws_are_those_of_the_exact_evidence(data_dir):
    fold, path, centre = load_fold(data_dir, "sine", 0), "drift.scale", 1.0
    model = inference_model("sine", fold)
    prior = dist.LogNormal(np.log(centre), 0.5)
    grid = centre * np.exp(np.linspace(-2.0, 2.0, 25))

    def with_scale(s):
        return gv.Model(gv.Sine(s, 0.0), model.diffusion, model.initial, model.likelihood)

    evidence = [baselines.exact_smoother(with_scale(s), fold.train, 0.05, fold.span).log_evidence for s in grid]
    log_p = np.array(evidence) - 0.5 * (np.log(grid / centre) / 0.5) ** 2  # in log s, where the grid is even
    w = np.exp(log_p - log_p.max())
    w /= w.sum()
    mean = w @ grid
    sd = np.sqrt(w @ (grid - mean) ** 2)
    many = gv.sample_parameters(
        with_scale(centre), fold.train, 0.05, fold.span, priors={path: prior}, constraints={path: "positive"},
        key=jax.random.key(0), draws=500, progress=False,
    )  # fmt: skip
    before, weights = many["posterior"][path].values, many["corrected"]["weight"].values
    after = (weights * before).sum()
    spread = np.sqrt((weights * (before - after) ** 2).sum())
    print(f"exact {mean:.4f} ± {sd:.4f}; the bound's {before.mean():.4f} ± {before.std():.4f}; corrected "
          f"{after:.4f} ± {spread:.4f}; {many['corrected'].attrs}")  # fmt: skip
    assert many["corrected"].attrs["verdict"] != "trust neither"
    errors = TOLERANCES["effective_errors"] / np.sqrt(many["corrected"].attrs["effective"])
    assert abs(after - mean) < errors * sd
    assert abs(spread / sd - 1.0) < errors
    assert abs(many["corrected"][path].values.mean() - after) < errors * sd


def test_uneven_weights_are_not_trusted():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(4, 500, 1))
    even = correct(0.1 * rng.normal(size=(4, 500)), values, 1.0)
    tilted = correct(0.5 * values[..., 0], values, 1.0)
    heavy = correct(4.0 * rng.standard_exponential(size=(4, 500)), values, 1.0)
    lost = correct(np.full((4, 500), -np.inf), values, 1.0)
    verdicts = [c.verdict for c in (even, tilted, heavy, lost)]
    assert verdicts == ["trust the bound", "trust the corrected posterior", "trust neither", "trust neither"]
    # Weights exp(x/2) move a standard normal by one half.
    again = values.reshape(-1)[resampled(tilted.weights, rng)]
    assert abs(again.mean() - 0.5) < 0.1
    some = correct(np.where(np.arange(500) < 100, -np.inf, np.zeros((4, 500))), values, 1.0)
    assert (some.weights[:, :100] == 0.0).all() and abs(some.weights.sum() - 1.0) < TOLERANCES["exact"]


def test_inference_that_fails_at_the_model_is_an_error(series):
    with pytest.raises(ValueError, match="has not converged at the parameters of the model"):
        drawn(series, method=gv.CVIDP(max_iterations=1, rho=0.01))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priors": {}}, "priors must name at least one parameter"),
        ({"priors": {"drift.rate": dist.Normal(0.0, 1.0)}}, "no parameter 'drift.rate'; it has .*drift.decay"),
        ({"priors": {"drift": dist.LogNormal(0.0, 1.0)}}, "no trainable parameter 'drift'.*drift.decay"),
        ({"priors": {"drift.decay": dist.Uniform(0.5, 2.0)}}, r"covers .* set its range, e.g. constraints="),
        ({"priors": {"drift.decay": dist.ImproperUniform(nc.positive, (), ())}}, "is improper: give one"),
        ({"priors": {"drift.decay": 1.0}}, "must be a numpyro distribution"),
        ({"trainable": ["drift", "diffusion", "likelihood"]}, "likelihood.variance has no prior"),
        ({"key": 0}, "key must be a JAX random key"),
        ({"draws": 0}, "draws must be a whole number"),
        ({"draws": 3}, "draws must be a whole number ≥ 4"),
        ({"chains": 0}, "chains must be a whole number"),
        ({"warmup": -1}, "warmup must be a whole number"),
        ({"particles": 1}, "particles must be a whole number"),
        ({"target_accept": 1.0}, "target_accept must be between 0 and 1"),
        ({"method": gv.VDP()}, "takes method=gv.CVIDP"),
        ({"samples": 10}, "samples"),
    ],
)
def test_bad_input_names_the_remedy(series, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        drawn(series, **options)
