"""`post.refine` against the exact smoother, dense conditioning, and a posterior with two modes of which q has one."""

import dataclasses

import jax
import numpy as np
import pytest
from support import condition, linear_joint, split_dense
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.baselines import exact_smoother
from girsanov.baselines.particle_smoother import diagnostics
from girsanov.result import refine as refining

ERRORS = TOLERANCES["effective_errors"]
GRID = {"dt": 0.1, "span": (0.0, 4.0)}
HELD_OUT = [0.8, 1.7, 2.9]
LINEAR = gv.Model(gv.OrnsteinUhlenbeck(0.7), 0.5, gv.GaussianState(0.3, 0.2), gv.likelihoods.Gaussian(0.05))
SERIES = gv.TimeSeries([0.5, 1.2, 3.1], [0.4, -0.2, 0.6])


def assert_moments(got, mean, sd, evidence) -> None:
    """Means and variances at every node and the evidence, in standard errors at the effective number of draws."""
    assert np.abs((got.mean - mean) / sd).max() < ERRORS / np.sqrt(got.ess)
    assert np.abs(got.std**2 / sd**2 - 1.0).max() < ERRORS * np.sqrt(3.0 / got.ess)
    assert abs(got.log_evidence - evidence) < ERRORS * got.standard_error + TOLERANCES["optimum"]


@pytest.fixture(scope="module")
def linear():
    """A small linear model, its posterior, and draws from it."""
    post = gv.infer(LINEAR, SERIES, **GRID, progress=False)
    return post, post.refine(key=jax.random.key(0), progress=False)


def test_a_linear_model_has_the_posterior_of_its_kalman_smoother(linear):
    post, got = linear
    M = len(post.times) - 1
    joint = linear_joint(
        np.full((M, 1, 1), -0.7), np.zeros((M, 1)), np.array([[0.5]]), np.array([0.3]), np.array([[0.2]]), post.times
    )
    mean, cov, evidence = condition(*joint, np.eye(1), np.array([[0.05]]), post.node, SERIES.values)
    m, S, _ = split_dense(mean, cov, 1)
    assert got.status == "converged" and got.converged and got.rhat <= 1.02 and got.ess >= 400
    assert got.standard_error <= 0.03
    assert_moments(got, m, np.sqrt(S[:, :, 0]), evidence)


@pytest.mark.slow
def test_a_linear_model_of_two_states_of_which_one_sum_is_seen():
    A, b, Q = np.array([[-0.8, 0.6], [-0.9, -0.3]]), np.array([0.2, -0.1]), np.array([[0.7, 0.2], [0.2, 0.5]])
    mean0, H = np.array([0.3, -0.2]), np.array([[1.0, 0.5]])
    model = gv.Model(gv.Linear(A, b), Q, gv.GaussianState(mean0, 0.2), gv.likelihoods.Gaussian(0.05), emission=H)
    post = gv.infer(model, SERIES, **GRID, progress=False)
    got = post.refine(key=jax.random.key(3), progress=False)
    M = len(post.times) - 1
    joint = linear_joint(np.stack([A] * M), np.tile(b, (M, 1)), Q, mean0, 0.2 * np.eye(2), post.times)
    mean, cov, evidence = condition(*joint, H, np.array([[0.05]]), post.node, SERIES.values)
    m, S, _ = split_dense(mean, cov, 2)
    assert got.converged
    assert_moments(got, m, np.sqrt(np.diagonal(S, axis1=1, axis2=2)), evidence)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["double well", "counts", "state noise"])
def test_the_exact_posterior_of_a_scalar_state(name):
    model = {
        "double well": gv.Model(
            gv.DoubleWell(2.0, 1.0), 0.8, gv.GaussianState(1.0, 0.2), gv.likelihoods.Gaussian(0.04)
        ),
        "counts": gv.Model(gv.Sine(1.0), 1.0, gv.GaussianState(0.0, 0.5), gv.likelihoods.Poisson()),
        "state noise": gv.Model(
            lambda x, t: 1.0 - x,
            gv.diffusions.Proportional(0.6),
            gv.GaussianState(1.0, 0.01),
            gv.likelihoods.Gaussian(0.02),
        ),
    }[name]
    series = gv.TimeSeries(
        SERIES.times, {"counts": [0.0, 3.0, 1.0], "state noise": [1.6, 0.5, 0.9]}.get(name, [1.1, -0.4, 0.9])
    )
    exact = exact_smoother(model, series, **GRID, at=HELD_OUT)
    post = gv.infer(model, series, grid=exact.times, progress=False)
    got = post.refine(key=jax.random.key(5), ess=800, progress=False)
    assert got.converged
    assert_moments(got, exact.mean, exact.std, exact.log_evidence)
    state = exact.marginals(HELD_OUT)
    values = np.ones(3) if name == "counts" else state.mean[:, 0] + 0.5 * state.std[:, 0]
    test = gv.TimeSeries(HELD_OUT, values)
    # The scores use the bridge between the neighbours of a node, which costs O(dt^1.5).
    assert abs(got.nlpd(test) - exact.nlpd(test)) < ERRORS / np.sqrt(got.ess) + TOLERANCES["bridge"]
    if name == "state noise":  # the observation is the state: the mean of w, its logarithm, is not the mean of x
        wanted, error = got.marginals(HELD_OUT), TOLERANCES["nlpd"]
        assert np.abs(got.predict(HELD_OUT).mean - wanted.mean).max() < error
        assert np.abs(got.predict(HELD_OUT).cov - wanted.cov - 0.02).max() < error


@pytest.mark.slow
def test_a_mode_that_q_misses_is_found():
    """A path falls from the ridge to either well, and the data cannot tell: q, led to one well, has a half of it."""
    model = gv.Model(gv.DoubleWell(4.0, 1.0), 1.0, gv.GaussianState(0.0, 0.01), gv.likelihoods.Gaussian(1.0))
    grid = {"dt": 0.05, "span": (0.0, 3.0)}
    leaning = gv.infer(model, gv.TimeSeries([3.0], [1.5]), **grid, progress=False)
    series = gv.TimeSeries([3.0], [0.2])
    post = gv.infer(model, series, **grid, start=leaning, progress=False)
    exact = exact_smoother(model, series, **grid)
    assert post.mean[-1, 0] > 2.0 * post.std[-1, 0] and exact.std[-1, 0] > 2.0 * post.std[-1, 0]  # q is wrong
    got = post.refine(key=jax.random.key(1), progress=False)
    assert got.converged
    assert_moments(got, exact.mean, exact.std, exact.log_evidence)


@pytest.mark.slow
def test_singular_noise_in_continuous_time():
    """A hidden velocity; the model is linear, so that q is exact (tests/inference/test_singular.py has the oracle)."""
    model = gv.Model(
        gv.HarmonicOscillator(2.0, 0.5),
        [0.0, 1.0],
        gv.GaussianState([0.5, 0.0], 0.2),
        gv.likelihoods.Gaussian(0.05),
        emission=[[1.0, 0.0]],
    )
    post = gv.infer(model, SERIES, **GRID, method=gv.CVIDP(time="continuous"), progress=False)
    got = post.refine(key=jax.random.key(2), progress=False)
    assert got.converged
    assert_moments(got, post.mean, post.std, post.elbo)


def test_the_verbs_of_a_posterior(linear, tmp_path):
    """Forecasts and quantiles against what the draws and the equation say; the file gives everything back."""
    post, got = linear
    later = got.forecast([4.5, 5.0], key=jax.random.key(1), n=4000, dt=0.01)
    last, fade = got.samples[:, -1, 0], np.exp(-0.7 * np.array([0.5, 1.0]))
    wanted, spread = fade * last.mean(), np.sqrt(fade**2 * last.var() + 0.5 * (1.0 - fade**2) / 1.4)
    assert np.abs((later[:, :, 0].mean(0) - wanted) / spread).max() < TOLERANCES["standard_errors"] / np.sqrt(4000)
    assert np.abs(later[:, :, 0].std(0) / spread - 1.0).max() < TOLERANCES["coarse_moments"]
    assert got.sample(jax.random.key(2), 5).shape == (5, len(post.times), 1)
    p = [0.1, 0.5, 0.9]
    at_node, between = got.quantiles([2.0, 2.05], p)[:, :, 0].T
    assert np.allclose(at_node, np.quantile(got.samples[:, 20, 0], p))
    mean, cov = got._conditional(np.array([2.05]))
    x = mean[:, 0, 0] + np.sqrt(cov[0, 0, 0]) * np.random.default_rng(0).normal(size=(400, len(mean)))
    assert np.abs((x[..., None] < between).mean((0, 1)) - p).max() < TOLERANCES["quantile_share"]
    with pytest.raises(ValueError, match="probabilities between 0 and 1"):
        got.quantiles([2.0], 1.5)
    back = gv.load(got.save(tmp_path / "refined.gv"))
    for field in dataclasses.fields(got):
        if field.name not in ("model", "series", "guide"):
            assert np.array_equal(getattr(back, field.name), getattr(got, field.name)), field.name
    assert np.array_equal(back.guide.mean, post.mean) and back.nlpd(SERIES) == got.nlpd(SERIES)
    data = got.to_xarray()
    assert data.samples.shape == (4, len(got.samples) // 4, len(post.times), 1) and data.attrs["converged"] == 1
    lines = {tuple(line.get_ydata()) for line in got.plot().axes[0].lines}
    assert tuple(SERIES.values[:, 0]) in lines


def test_the_time_limit_and_going_on(linear):
    post, _ = linear
    with pytest.warns(UserWarning, match=r"not converged \(time_limit\).*go on with"):
        short = post.refine(key=jax.random.key(4), seconds=1e-3, ess=5000, rhat=3.0, progress=False)
    assert short.status == "time_limit" and not short.converged and len(short.samples) < 100
    longer = post.refine(key=jax.random.key(5), ess=300, rhat=1.1, start=short, progress=False)
    assert longer.converged and longer.sweeps > short.sweeps and longer.seconds > short.seconds
    assert np.array_equal(longer.filtered, short.filtered) or len(longer.filtered) > len(short.filtered)
    other = gv.infer(LINEAR, gv.TimeSeries(SERIES.times, [0.0, 1.0, 2.0]), **GRID, progress=False)
    with pytest.raises(ValueError, match="start must be a result of this same posterior"):
        other.refine(key=jax.random.key(0), start=short)


def test_ctrl_c_keeps_what_was_drawn(linear, monkeypatch):
    post, _ = linear
    real, calls = refining._Chains.advance, []

    def interrupted(chains):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        real(chains)

    monkeypatch.setattr(refining._Chains, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        post.refine(key=jax.random.key(6), ess=5000, progress=False)
    kept = caught.value.kept  # pyright: ignore[reportAttributeAccessIssue]
    assert kept.status == "interrupted" and kept.sweeps == 25 and np.isfinite(kept.samples).all()
    assert "post.refine(key=..., start=" in kept.message
    assert post.refine(key=jax.random.key(7), start=kept, progress=False).converged


def test_the_time_left_is_that_of_the_draws_and_runs_that_are_missing():
    """A third of the wanted draws after 50 sweeps of 2 s: 200 s more. Twice the wanted error: four times the runs."""
    chains, filters = object.__new__(refining._Chains), object.__new__(refining._Filters)
    chains.pace, chains.sweeps, chains.rhat, chains.ess = 2.0, 50, 1.01, 100.0
    logs = np.tile([0.0, 0.4], 16)
    filters.pace, filters.logs = 0.5, logs
    error = filters.evidence()[1]
    targets = refining.Targets(1.02, 300.0, error / 2)
    assert chains.left(targets) == pytest.approx(200.0)
    assert filters.left(targets) == pytest.approx(0.5 * 3 * 32)
    text = refining._shown(chains, filters, targets, 400.0)
    assert text.endswith("about 4 min, at most 7 min left")
    assert chains.left(refining.Targets(1.005, 300.0, 1.0)) is None  # nothing tells when R̂ will be small enough
    assert refining._shown(chains, filters, refining.Targets(1.005, 300.0, 1.0), 90.0).endswith("; at most 90 s left")
    assert filters.left(refining.Targets(1.02, 300.0, 1.0)) == 0.0


def test_ctrl_c_before_there_are_draws(linear, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(refining._Filters, "advance", interrupted)
    monkeypatch.setattr(refining._Chains, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        linear[0].refine(key=jax.random.key(6), progress=False)
    assert not hasattr(caught.value, "kept") and "nothing to keep" in caught.value.__notes__[0]


def test_chains_that_disagree(linear, monkeypatch):
    monkeypatch.setattr(refining, "diagnostics", lambda draws: (3.0, 1.7))
    with pytest.warns(UserWarning, match="the chains are in different parts of the posterior"):
        got = linear[0].refine(key=jax.random.key(0), start=linear[1], seconds=1e-3, progress=False)
    assert got.status == "disagree"


def test_chains_that_never_move_have_no_effective_draws():
    """Each chain at a place of its own, in one of two coordinates; and a coordinate that is known needs no draws."""
    draws = np.random.default_rng(0).normal(size=(4, 50, 3, 2))
    fixed = np.array(draws)
    fixed[..., 1] = 2.0
    assert diagnostics(fixed)[0] > 100.0 and diagnostics(fixed)[1] < 1.1
    fixed[..., 1] = np.arange(4.0)[:, None, None]
    assert diagnostics(fixed) == (0.0, np.inf)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rhat": 1.0}, "rhat must be a number above 1"),
        ({"ess": 0}, "ess must be"),
        ({"error": -1.0}, "error must be"),
        ({"seconds": 0.0}, "seconds must be"),
        ({"particles": 1}, "particles must be"),
        ({"chains": 1}, "chains must be"),
        ({"start": 3}, "start must be what post.refine returned"),
        ({"key": 0}, "key must be a JAX random key"),
    ],
)
def test_wrong_arguments_are_refused(linear, wrong, message):
    with pytest.raises(ValueError, match=message):
        linear[0].refine(**{"key": jax.random.key(0), **wrong})
