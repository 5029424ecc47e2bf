"""What comes out of models with inputs: files, forecasts under other inputs, panels, draws, and learnt effects."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.baselines import exact_smoother

DOSES = gv.Inputs.impulses([0.0, 1.5, 2.5], [2.0, 1.0, -0.5])
T = np.linspace(0.25, 3.0, 12)
Y = np.random.default_rng(3).normal(1.0, 0.5, 12)
SERIES = gv.TimeSeries(T, Y, inputs=[DOSES, gv.Inputs([0.0, 1.1], [1.0, -1.0], "previous")])


def model(gain=0.8, push=0.5):
    return gv.Model(
        gv.Linear([[-0.7]], [0.1], [[gain, push]]), 0.2, gv.GaussianState(0.5, 0.3), gv.likelihoods.Gaussian(0.1)
    )


def close(got, expected, tolerance):
    expected = np.asarray(expected)
    assert np.max(np.abs(np.asarray(got) - expected)) <= TOLERANCES[tolerance] * max(1.0, np.max(np.abs(expected)))


@pytest.fixture(scope="module")
def post():
    return gv.infer(model(), SERIES, dt=0.1, span=(0.0, 3.0))


def test_a_file_has_the_inputs(post, tmp_path):
    again = gv.load(post.save(tmp_path / "post.gv"))
    np.testing.assert_array_equal(again.mean, post.mean)
    np.testing.assert_array_equal(again.marginals([1.49, 1.5]).mean, post.marginals([1.49, 1.5]).mean)
    np.testing.assert_array_equal(again.series.inputs.values([0.5, 2.0]), SERIES.inputs.values([0.5, 2.0]))
    continuous = gv.infer(model(), SERIES, dt=0.1, span=(0.0, 3.0), method=gv.CVIDP(time="continuous"))
    again = gv.load(continuous.save(tmp_path / "continuous.gv"))
    np.testing.assert_array_equal(again.marginals([1.09, 1.11]).mean, continuous.marginals([1.09, 1.11]).mean)


def test_forecasts_take_other_inputs(post):
    """Means of Euler's scheme by hand; the inputs of the series reach where they are steps and impulses."""

    def by_hand(push, doses, times, dt=0.1):
        x, out = post.mean[-1, 0], []
        for k in range(round((times[-1] - 3.0) / dt)):
            x += dt * (-0.7 * x + 0.1 + 0.5 * push)
            now = 3.0 + (k + 1) * dt
            x += 0.8 * sum(a for t, a in doses.items() if abs(t - now) < 1e-9)
            if np.abs(times - now).min() < 1e-9:
                out.append(x)
        return np.array(out)

    times, key, n = np.array([3.5, 4.0]), jax.random.key(0), 20_000
    for inputs, push, doses in (
        (None, -1.0, {}),
        ([gv.Inputs.impulses([2.0, 3.2], [50.0, 10.0]), gv.Inputs.constant(3.0)], 3.0, {3.2: 10.0}),
    ):
        paths = post.forecast(times, key=key, n=n, inputs=inputs)[..., 0]
        error = paths.std(0) / np.sqrt(n)
        assert (np.abs(paths.mean(0) - by_hand(push, doses, times)) < TOLERANCES["standard_errors"] * error).all()


def test_a_forecast_asks_for_inputs_that_are_not_known():
    known = SERIES.with_inputs([DOSES, gv.Inputs([0.0, 3.0], [1.0, 2.0])])
    post = gv.infer(model(), known, dt=0.1, span=(0.0, 3.0))
    with pytest.raises(ValueError, match=r"known from 0 to 3, but they are needed from 3 to 4.*inputs=\.\.\."):
        post.forecast([4.0], key=jax.random.key(0))
    with pytest.raises(ValueError, match="the inputs have 1 components, but those of the series have 2"):
        post.forecast([4.0], key=jax.random.key(0), inputs=gv.Inputs.constant(1.0))


def test_draws_and_predictions_are_of_the_state_itself(post):
    paths = post.sample(jax.random.key(1), 4000)
    error = paths.std(0) / np.sqrt(len(paths))
    assert (np.abs(paths.mean(0) - post.mean) < TOLERANCES["standard_errors"] * error).all()
    close(post.predict(T).mean, post.mean[post.node], "exact")
    low, high = post.band()
    close(0.5 * (low + high), post.mean, "exact")


def test_every_series_of_a_panel_has_its_own_inputs(post):
    without = SERIES.with_inputs([gv.Inputs.constant(0.0), gv.Inputs.constant(2.0)])
    posts = gv.infer(model(), gv.Panel({"a": SERIES, "b": without}), dt=0.1, span=(0.0, 3.0))
    close(posts["a"].mean, post.mean, "exact")
    alone = gv.infer(model(), without, dt=0.1, span=(0.0, 3.0))
    close(posts["b"].mean, alone.mean, "exact")
    close(posts.elbo, post.elbo + alone.elbo, "evidence")


@pytest.mark.slow
def test_effects_of_inputs_are_learnt_at_the_maximum_of_the_evidence(post):
    """The bound of a linear model is its evidence; at the maximum its differences are zero."""
    fit = gv.learn(model(), SERIES, dt=0.1, span=(0.0, 3.0), trainable=["drift.B"], progress=False)
    assert fit.status == "converged" and fit.model.inputs is None
    B, h = np.asarray(fit.model.drift.B)[0], 1e-3

    def evidence(gain, push):
        return gv.infer(model(gain, push), SERIES, dt=0.1, span=(0.0, 3.0)).elbo

    top = evidence(*B)
    assert all(evidence(*(B + move)) < top for move in (*np.eye(2) * h * 30, *-np.eye(2) * h * 30))
    close(fit.posterior.elbo, top, "optimum")


@pytest.mark.slow
def test_the_exact_smoother_takes_impulses():
    """A double well that is pushed over: the bound is below the evidence and close to it, and a linear model equal."""
    exact = exact_smoother(model(), SERIES, 0.1, (0.0, 3.0))
    post = gv.infer(model(), SERIES, dt=0.1, span=(0.0, 3.0))
    close(exact.log_evidence, post.elbo, "integral")
    close(exact.mean, post.mean, "integral")
    well = gv.Model(
        lambda x, t, u: 4.0 * x * (1.0 - x**2) + u[:1] + u[1:],
        0.2, gv.GaussianState(-1.0, 0.1), gv.likelihoods.Gaussian(0.1), dim=1,
    )  # fmt: skip
    bound, truth = gv.infer(well, SERIES, dt=0.02, span=(0.0, 3.0)), exact_smoother(well, SERIES, 0.02, (0.0, 3.0))
    assert truth.log_evidence - 1.0 < bound.elbo < truth.log_evidence
    assert jnp.isfinite(bound.elbo)
