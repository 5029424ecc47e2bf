"""Particles and importance weights against dense Gaussian conditioning and the exact scalar smoother; fixed seeds."""

import jax
import numpy as np
import pytest
from support import condition, linear_joint, split_dense
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.baselines import (
    annealed_importance_sampling,
    annealing,
    exact_smoother,
    optimal_gaussian,
    particle_smoother,
)

A2, Q2 = np.array([[-0.8, 0.6], [-0.9, -0.3]]), np.array([[0.7, 0.2], [0.2, 0.5]])
SPAN, DT = (0.0, 2.0), 0.1
ERRORS = TOLERANCES["effective_errors"]


def linear_model() -> gv.Model:
    return gv.Model(
        gv.Linear(A2, np.array([0.2, -0.1])),
        Q2,
        gv.GaussianState(np.array([0.3, -0.2]), 0.2),
        gv.likelihoods.Gaussian(0.05),
        emission=np.array([[1.0, 0.5]]),
    )


def linear_series() -> gv.TimeSeries:
    return gv.TimeSeries([0.35, 0.8, 1.3, 1.75], [0.4, -0.2, 0.5, 0.1])


def dense(model: gv.Model, series: gv.TimeSeries, times: np.ndarray):
    """Posterior mean, covariances, lag-one covariances and evidence of the linear chain."""
    M = len(times) - 1
    joint = linear_joint(
        np.stack([A2] * M), np.tile([0.2, -0.1], (M, 1)), Q2, np.array([0.3, -0.2]), 0.2 * np.eye(2), times
    )
    node = np.searchsorted(times, series.times - 1e-9)
    mean, cov, evidence = condition(*joint, model.emission, np.array([[0.05]]), node, series.values)
    return *split_dense(mean, cov, 2), evidence


@pytest.mark.parametrize(
    ("guided", "trust"), [(False, 0.5), *(pytest.param(True, trust, marks=pytest.mark.slow) for trust in (0.5, 1.0))]
)
def test_the_posterior_of_a_linear_model_is_invariant(guided, trust):
    """Means, variances and lag-one covariances within four standard errors, at the chains' effective sample size."""
    model, series = linear_model(), linear_series()
    post = gv.infer(model, series, DT, SPAN, progress=False) if guided else None
    options = {"particles": 60, "samples": 3200, "chains": 8, "guided": post, "trust": trust, "progress": False}
    got = particle_smoother(model, series, DT, SPAN, key=jax.random.key(3), **options)
    m, S, C, evidence = dense(model, series, got.times)
    assert got.samples.shape == (3200, len(got.times), 2) and got.rhat < 1.05
    sd = np.sqrt(np.diagonal(S, axis1=1, axis2=2))
    assert np.abs((got.mean - m) / sd).max() < ERRORS / np.sqrt(got.ess)
    assert np.abs(got.std**2 / sd**2 - 1.0).max() < ERRORS * np.sqrt(2.0 / got.ess)
    scale = sd[1:, :, None] * sd[:-1, None]
    assert np.abs((got.lag_cov - C) / scale).max() < ERRORS * np.sqrt(2.0 / got.ess)
    assert abs(got.log_evidence - evidence) < max(ERRORS * got.standard_error, TOLERANCES["optimum"])
    if guided and trust == 1.0:  # q is the posterior: every path weighs the same
        assert got.standard_error < TOLERANCES["optimum"]


SCALAR = {
    "double well": (gv.DoubleWell(1.0, 1.0), 1.0),
    "sine": (gv.Sine(1.0, 0.3), 0.0),
    "square root": (gv.SquareRoot(1.0), 0.5),
}


QUICK = {("double well", False)}


@pytest.mark.parametrize(
    ("name", "guided"),
    [
        pytest.param(name, guided, marks=() if (name, guided) in QUICK else pytest.mark.slow)
        for name in SCALAR
        for guided in (False, True)
    ],
)
def test_the_exact_posterior_of_a_scalar_state(name, guided):
    drift, mean = SCALAR[name]
    model = gv.Model(drift, 0.8, gv.GaussianState(mean, 0.2), gv.likelihoods.Gaussian(0.04))
    times = np.array([0.5, 1.1, 1.9, 2.5])
    series = gv.simulate(model, times, key=jax.random.key(4), dt=0.01, start=0.0).series
    at = np.array([0.8, 1.5, 2.2])
    exact = exact_smoother(model, series, DT, (0.0, 3.0), at=at)
    state = exact.marginals(at)
    test = gv.TimeSeries(at, state.mean[:, 0] + 0.5 * state.std[:, 0])
    post = gv.infer(model, series, grid=exact.times, progress=False) if guided else None
    options = {"at": at, "guided": post, "particles": 60, "samples": 2000, "chains": 8, "progress": False}
    got = particle_smoother(model, series, DT, (0.0, 3.0), key=jax.random.key(5), **options)
    sd = exact.std[:, 0]
    assert np.array_equal(got.times, exact.times)
    assert np.abs((got.mean - exact.mean)[:, 0] / sd).max() < ERRORS / np.sqrt(got.ess)
    assert np.abs(got.std[:, 0] ** 2 / sd**2 - 1.0).max() < ERRORS * np.sqrt(3.0 / got.ess)
    assert abs(got.log_evidence - exact.log_evidence) < ERRORS * got.standard_error + TOLERANCES["nlpd"]
    # The scores use the bridge between the neighbours of a node, which costs O(dt^1.5).
    assert abs(got.nlpd(test) - exact.nlpd(test)) < ERRORS / np.sqrt(got.ess) + TOLERANCES["bridge"]
    assert got.rmse(test) == pytest.approx(exact.rmse(test), abs=TOLERANCES["coarse_moments"])


@pytest.mark.slow
def test_counts_are_observed_too():
    model = gv.Model(gv.Sine(1.0), 1.0, gv.GaussianState(0.0, 0.5), gv.likelihoods.Poisson())
    series = gv.TimeSeries([0.4, 0.9, 1.6], [2.0, np.nan, 5.0])
    exact = exact_smoother(model, series, DT, SPAN)
    got = particle_smoother(
        model, series, DT, SPAN, key=jax.random.key(0), particles=80, samples=2000, chains=8, progress=False
    )
    assert np.abs((got.mean - exact.mean) / exact.std).max() < ERRORS / np.sqrt(got.ess)
    assert abs(got.log_evidence - exact.log_evidence) < ERRORS * got.standard_error


def test_same_key_same_draws(recwarn):
    run = lambda key: particle_smoother(  # noqa: E731
        linear_model(), linear_series(), DT, SPAN, key=jax.random.key(key), particles=20, samples=40, progress=False
    )
    first = run(1)
    assert first.rhat > 1.1 and "the chains disagree: R̂ = 1." in str(recwarn.pop(UserWarning).message)  # 40 draws
    assert "\n" not in repr(first) and f"rhat={first.rhat:.6g}" in repr(first)
    assert np.array_equal(first.samples, run(1).samples)
    assert not np.array_equal(first.samples, run(2).samples)
    assert np.array_equal(np.concatenate([c.samples for c in first.by_chain()]), first.samples)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"particles": 1}, "particles must be a whole number ≥ 2"),
        ({"chains": 0}, "chains must be a whole number ≥ 1"),
        ({"burn_in": -1}, "burn_in must be a whole number ≥ 0, got -1"),
        ({"samples": 0}, "samples must be a whole number ≥ 1"),
        ({"key": 3}, "key must be a JAX random key"),
        ({"guided": 3}, "guided must be the gv.Posterior"),
        ({"trust": 0.0}, r"trust must be in \(0, 1\], got 0\.0"),
    ],
)
def test_bad_options(options, message):
    options = {"key": jax.random.key(0), "progress": False, **options}
    with pytest.raises(ValueError, match=message):
        particle_smoother(linear_model(), linear_series(), DT, SPAN, **options)


def test_a_guide_on_another_grid_is_named():
    post = gv.infer(linear_model(), linear_series(), 0.05, SPAN, progress=False)
    with pytest.raises(ValueError, match="infer it with the same dt and span"):
        particle_smoother(linear_model(), linear_series(), DT, SPAN, key=jax.random.key(0), guided=post)


# post.diagnose


def test_weights_of_a_linear_model_are_constant():
    post = gv.infer(linear_model(), linear_series(), DT, SPAN, progress=False)
    found = post.diagnose(key=jax.random.key(0), n=500)
    assert found.k_hat < 0.1 and found.verdict == "trust the bound"
    *_, evidence = dense(linear_model(), linear_series(), post.times)
    assert abs(found.log_evidence - evidence) < TOLERANCES["optimum"]
    assert found.ess == pytest.approx(500.0)


@pytest.mark.slow
def test_corrected_evidence_of_a_nonlinear_model():
    """Within three standard errors of the exact one; importance-weighted bounds rise from the bound towards it."""
    model = gv.Model(gv.Sine(1.5, 0.3), 1.0, gv.GaussianState(0.0, 0.2), gv.likelihoods.Gaussian(0.02))
    series = gv.TimeSeries([0.5, 1.2, 1.8], [0.6, 1.9, 2.4])
    post = gv.infer(model, series, 0.05, SPAN, progress=False)
    found = post.diagnose(key=jax.random.key(1), n=4000)
    exact = exact_smoother(model, series, 0.05, SPAN).log_evidence
    assert found.verdict in ("trust the bound", "trust the corrected estimate")
    assert abs(found.log_evidence - exact) < 3.0 * found.standard_error
    spread = found.log_weights.std() / np.sqrt(4000)
    assert abs(found.bounds[1] - post.elbo) < ERRORS * spread
    assert found.bounds[1] < found.bounds[10] < found.bounds[100] <= found.log_evidence + found.standard_error


TWO_MODES = gv.Model(gv.DoubleWell(4.0, 1.0), 1.0, gv.GaussianState(0.0, 0.01), gv.likelihoods.Gaussian(1.0))
UNDECIDED = gv.TimeSeries([5.0], [0.0])


@pytest.mark.slow
def test_a_posterior_with_two_modes_is_warned_of():
    post = gv.infer(TWO_MODES, UNDECIDED, dt=0.05, span=(0.0, 5.0), progress=False)
    found = post.diagnose(key=jax.random.key(0), n=1000)
    assert found.verdict == "use particles" and found.k_hat > 0.7
    assert "post.refine" in found.message and "use particles" in repr(found)


@pytest.mark.slow
def test_guided_particles_find_both_modes():
    grid = {"dt": 0.05, "span": (0.0, 5.0)}
    post = gv.infer(TWO_MODES, UNDECIDED, **grid, progress=False)
    guided = particle_smoother(
        TWO_MODES, UNDECIDED, **grid, key=jax.random.key(1), samples=40, guided=post, progress=False
    )
    exact = exact_smoother(TWO_MODES, UNDECIDED, **grid).log_evidence
    assert abs(guided.log_evidence - exact) < ERRORS * guided.standard_error


# Annealing, and the Gaussian with the right moments


def test_annealed_evidence_of_a_linear_model(tmp_path):
    """Within four errors of the exact one; and an interrupted climb goes on where it was, to the same number."""
    model, series = linear_model(), linear_series()
    options = {"steps": 120, "runs": 6, "sweeps": 2, "particles": 30, "progress": False}
    run = lambda **more: annealed_importance_sampling(  # noqa: E731
        model, series, DT, SPAN, key=jax.random.key(0), **options, **more
    )
    got = run()
    *_, evidence = dense(model, series, got.times)
    assert abs(got.log_evidence - evidence) < ERRORS * got.standard_error
    assert got.samples.shape == (6, len(got.times), 2)

    file = tmp_path / "climb.npz"
    keep, kept = annealing._keep, []

    def interrupted(*state):
        keep(*state)
        kept.append(state[2])
        if len(kept) == 5:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(annealing, "_keep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(checkpoint=file)
    assert kept[-1] < 120
    assert run(checkpoint=file).log_evidence == got.log_evidence
    with pytest.raises(ValueError, match="belongs to another model, series, key or setting"):
        annealed_importance_sampling(model, series, DT, SPAN, key=jax.random.key(1), checkpoint=file, **options)


def test_the_optimal_gaussian_has_the_moments_it_was_given():
    model, series = linear_model(), linear_series()
    post = gv.infer(model, series, DT, SPAN, progress=False)
    best = optimal_gaussian(post)
    test = gv.TimeSeries([0.5, 1.0], [0.1, 0.2])
    assert np.array_equal(best.mean, post.mean) and np.array_equal(best.lag_cov, post.lag_cov)
    assert best.nlpd(test) == pytest.approx(post.nlpd(test), abs=TOLERANCES["bridge"])
    with pytest.raises(ValueError, match="needs the mean of a particle or exact posterior"):
        optimal_gaussian(3.0)
