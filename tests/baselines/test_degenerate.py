"""Particles for singular noise and non-linear emissions, against dense conditioning and importance weights."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from support import condition, split_dense
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.baselines import annealed_importance_sampling, exact_smoother, particle_smoother
from girsanov.model.path_model import exact_path_model

ERRORS = TOLERANCES["effective_errors"]
A, NOISE, VARIANCE = np.array([[0.0, 1.0], [-2.0, -0.3]]), 0.5, 0.02
TIMES = np.array([0.31, 0.8, 0.85, 1.9, 2.4])
SERIES = gv.TimeSeries(TIMES, np.sin(1.7 * TIMES))
SPAN = (0.0, 2.5)
QUICK = {"particles": 10, "samples": 4, "chains": 1, "burn_in": 0}  # for the evidence alone


def oscillator(**options) -> gv.Model:
    return gv.Model(
        gv.Linear(A), [0.0, NOISE], likelihood=gv.likelihoods.Gaussian(VARIANCE), emission=[[1.0, 0.0]], **options
    )


@functools.cache
def posterior(dt: float) -> gv.Posterior:
    return gv.infer(oscillator(), SERIES, dt, SPAN, progress=False)


def smoothed(post: gv.Posterior, dt: float, span=SPAN, **options):
    settings = {"particles": 40, "samples": 800, "chains": 4, "burn_in": 20, "progress": False, **options}
    return particle_smoother(post.model, post.series, dt, span, key=jax.random.key(0), guided=post, **settings)


def dense(times: np.ndarray):
    """Posterior moments and evidence of the oscillator at these times, from the joint Gaussian of all states."""
    N = len(times)
    joint = np.zeros((N, 2, N, 2))
    joint[0, :, 0] = np.eye(2)
    for k, gap in enumerate(np.diff(times)):
        # Van Loan's exponential
        E = scipy.linalg.expm(gap * np.block([[-A, np.diag([0.0, NOISE])], [np.zeros((2, 2)), A.T]]))
        T = E[2:, 2:].T
        joint[k + 1, :, : k + 1] = np.einsum("ij,jnk->ink", T, joint[k, :, : k + 1])
        joint[: k + 1, :, k + 1] = np.moveaxis(joint[k + 1, :, : k + 1], 0, -1)
        joint[k + 1, :, k + 1] = T @ joint[k, :, k] @ T.T + T @ E[:2, 2:]
    node = np.searchsorted(times, TIMES - 1e-9)
    mean, cov, evidence = condition(
        np.zeros(2 * N), joint.reshape(2 * N, 2 * N), np.array([[1.0, 0.0]]), VARIANCE * np.eye(1), node, SERIES.values
    )
    return *split_dense(mean, cov, 2), evidence


@pytest.mark.parametrize("dt", [0.1, pytest.param(0.005, marks=pytest.mark.slow)])
def test_an_oscillator_with_noise_on_its_velocity_alone(dt):
    got = smoothed(posterior(dt), dt)
    m, S, C, evidence = dense(got.times)
    assert got.rhat < 1.05 and got.ess > 200.0 and got.acceptance.min() > 0.8
    sd = np.sqrt(np.diagonal(S, axis1=1, axis2=2))
    assert np.abs((got.mean - m) / sd).max() < ERRORS / np.sqrt(got.ess)
    assert np.abs(got.std**2 / sd**2 - 1.0).max() < ERRORS * np.sqrt(2.0 / got.ess)
    assert np.abs((got.lag_cov - C) / (sd[1:, :, None] * sd[:-1, None])).max() < ERRORS * np.sqrt(2.0 / got.ess)
    assert 0.0 < got.standard_error < 0.5 and abs(got.log_evidence - evidence) < ERRORS * got.standard_error


@pytest.mark.parametrize("dt", [0.1, pytest.param(1e-3, marks=pytest.mark.slow)])
def test_messages_that_are_those_of_the_posterior_leave_nothing_to_weigh(dt):
    """With trust=1 and a linear drift the proposal is the posterior: every path has the evidence as its weight."""
    got = smoothed(posterior(dt), dt, trust=1.0, **(QUICK if dt < 0.1 else {}))
    *_, evidence = dense(got.times)
    assert got.standard_error < TOLERANCES["optimum"]
    assert abs(got.log_evidence - evidence) < TOLERANCES["optimum"]


def test_a_constant_force_moves_position_and_velocity():
    """A force that the base lacks: `moved` has the mean of the exact transition, and steps the exact density."""
    model, force, gap = oscillator(), 3.0, 0.1
    pushed = gv.Model(lambda x, t: jnp.asarray(A) @ x + jnp.array([0.0, force]), [0.0, NOISE], emission=[[1.0, 0.0]])
    post = posterior(0.1)
    with jax.enable_x64(True):
        exact = exact_path_model(model, SERIES, post.grid, post.target.base)
        path = exact_path_model(pushed, SERIES, post.grid, post.target.base)
        x = np.array([0.4, -0.3])
        got = np.asarray(path.moved(0, x) - exact.moved(0, x))
        after = np.asarray(path.moved(0, x) + path.noise(0, np.array([0.4, -1.2])))
        tilt = float(path.log_step(0, x, after) - exact.log_step(0, x, after))
    E = scipy.linalg.expm(gap * np.block([[A, np.array([[0.0], [force]])], [np.zeros((1, 3))]]))
    shift = E[:2, 2]
    np.testing.assert_allclose(got, shift, rtol=TOLERANCES["exact"])
    V = scipy.linalg.expm(gap * np.block([[-A, np.diag([0.0, NOISE])], [np.zeros((2, 2)), A.T]]))
    Sigma = V[2:, 2:].T @ V[:2, 2:]
    e = after - V[2:, 2:].T @ x
    wanted = shift @ np.linalg.solve(Sigma, e - 0.5 * shift)
    assert abs(wanted) > 0.5  # far more than what the trapezoidal rule leaves
    assert abs(tilt - wanted) < TOLERANCES["coarse_moments"] * abs(wanted)


@functools.cache
def switching(dt: float) -> gv.Posterior:
    model = gv.Model(
        gv.Langevin(gv.DoubleWell(4.0), 0.8),
        [0.0, 0.7],
        likelihood=gv.likelihoods.Gaussian(0.05),
        emission=[[1.0, 0.0]],
    )
    series = gv.simulate(model, np.linspace(0.25, 5.0, 20), key=jax.random.key(3), start=0.0).series
    return gv.infer(model, series, dt, (0.0, 5.0), progress=False)


def bootstrap_evidence(series: gv.TimeSeries, n: int, rng: np.random.Generator, substeps: int = 10) -> float:
    """Log evidence of the double well by a bootstrap filter in NumPy, with the splitting BAOAB for the steps."""
    x, v = rng.standard_normal((2, n))
    total, h = 0.0, 0.25 / substeps
    keep = np.exp(-0.8 * h)
    for y in series.values[:, 0]:
        for _ in range(substeps):
            v = v + 0.5 * h * 4.0 * x * (1.0 - x**2)
            x = x + 0.5 * h * v
            v = keep * v + np.sqrt(0.7 * (1.0 - keep**2) / 1.6) * rng.standard_normal(n)
            x = x + 0.5 * h * v
            v = v + 0.5 * h * 4.0 * x * (1.0 - x**2)
        w = np.exp(-0.5 * (y - x) ** 2 / 0.05) / np.sqrt(2.0 * np.pi * 0.05)
        total += np.log(w.mean())
        index = np.searchsorted(np.cumsum(w), (np.arange(n) + rng.random()) / n * w.sum()).clip(0, n - 1)
        x, v = x[index], v[index]
    return float(total)


@pytest.mark.slow
def test_the_evidence_of_a_langevin_double_well():
    """Guided particles agree with an independent filter and with the weights of q's paths, and not with the bound."""
    post = switching(0.1)
    runs = np.exp([bootstrap_evidence(post.series, 100_000, np.random.default_rng(i)) for i in range(8)])
    wanted, spread = np.log(runs.mean()), runs.std(ddof=1) / runs.mean() / np.sqrt(8)
    weighed = post.diagnose(key=jax.random.key(1))
    got = smoothed(post, 0.1, (0.0, 5.0), trust=0.8, **{**QUICK, "particles": 400})
    error = np.hypot(got.standard_error, weighed.standard_error)
    assert error < 0.05 and abs(got.log_evidence - weighed.log_evidence) < ERRORS * error
    assert post.elbo < got.log_evidence
    error = np.hypot(got.standard_error, spread)
    assert error < 0.06 and abs(got.log_evidence - wanted) < ERRORS * error


@pytest.mark.slow
def test_paths_of_a_langevin_double_well():
    """Means by particles agree with those of q's paths, weighted."""
    post = switching(0.1)
    got = smoothed(post, 0.1, (0.0, 5.0), trust=0.8, samples=2000)
    paths = post.sample(jax.random.key(5), 4000)
    with jax.enable_x64(True):
        path = jax.tree.map(jnp.asarray, exact_path_model(post.model, post.series, post.grid, post.target.base))
        log_p = np.asarray(jax.lax.map(path.log_joint, paths, batch_size=100))
        T, root = (np.moveaxis(np.asarray(a), -1, 0) for a in (post.transitions.T, post.transitions.root))
    e = paths - post.mean
    e[:, 1:] -= np.einsum("mij,nmj->nmi", T, paths[:, :-1] - post.mean[:-1])
    log_q = -0.5 * (np.einsum("mij,nmj->nmi", np.linalg.inv(root), e) ** 2).sum((1, 2))
    w = np.exp(log_p - log_q - (log_p - log_q).max())
    w /= w.sum()
    mean = np.einsum("n,nmi->mi", w, paths)
    error = np.sqrt(np.einsum("n,nmi->mi", w**2, (paths - mean) ** 2) + got.std**2 / got.ess)
    assert got.rhat < 1.05 and np.abs((got.mean - mean) / error).max() < ERRORS


def radar(x, t):
    return jnp.stack([jnp.hypot(x[0], x[1]), jnp.arctan2(x[1], x[0])])


@functools.cache
def tracked(dt: float) -> gv.Posterior:
    model = gv.Model(
        gv.ConstantVelocity(2),
        [0.0, 0.0, 0.2, 0.2],
        gv.GaussianState([3.0, 1.0, -0.8, 0.5], [0.25, 0.25, 0.1, 0.1]),
        gv.likelihoods.Gaussian([0.02, 0.01]),
        emission=radar,
    )
    series = gv.simulate(model, np.linspace(0.5, 4.0, 8), key=jax.random.key(2), start=0.0).series
    return gv.infer(model, series, dt, (0.0, 4.0), progress=False)


@pytest.mark.slow
def test_a_moving_object_by_range_and_bearing():
    """Means of q within three Monte Carlo errors, and what a Gaussian posterior may be off."""
    post = tracked(0.25)
    got = smoothed(post, 0.25, (0.0, 4.0), trust=0.8)
    assert post.model.noise.is_singular and got.rhat < 1.05 and got.ess > 200.0
    off = np.abs(post.mean - got.mean) / got.std
    assert off.max() < 3.0 / np.sqrt(got.ess) + TOLERANCES["gaussian_bias"]
    assert abs(got.log_evidence - post.elbo) < TOLERANCES["trusted"] + ERRORS * got.standard_error


@pytest.mark.slow
def test_a_guide_in_continuous_time_draws_from_the_sde():
    """With regular noise too: an Ornstein–Uhlenbeck process has the evidence of the SDE at a coarse step."""
    model = gv.Model(gv.OrnsteinUhlenbeck(1.0), 0.8, likelihood=gv.likelihoods.Gaussian(VARIANCE))
    evidence = []
    for time in ("continuous", "discrete"):
        post = gv.infer(model, SERIES, 0.25, SPAN, method=gv.CVIDP(time=time), progress=False)
        got = smoothed(post, 0.25, trust=1.0, **QUICK)
        assert abs(got.log_evidence - post.elbo) < TOLERANCES["optimum"]
        evidence.append(got.log_evidence)
    assert abs(evidence[0] - evidence[1]) > TOLERANCES["continuous_evidence"]


def test_refusals_say_what_to_use_instead():
    options = {"key": jax.random.key(0), "progress": False}
    for method in (particle_smoother, annealed_importance_sampling):
        with pytest.raises(ValueError, match=r"singular.*post\.diagnose.*particle_smoother\(\.\.\., guided=post\)"):
            method(oscillator(), SERIES, 0.1, SPAN, **options)
    with pytest.raises(ValueError, match=r"dimension 2\. With post = gv\.infer.*guided=post.*post\.diagnose"):
        exact_smoother(oscillator(), SERIES, 0.1, SPAN)


def test_messages_that_are_no_density_are_refused():
    post = posterior(0.1)
    wrong = eqx.tree_at(lambda s: s.data.precision, post.target, -1e4 * post.target.data.precision)
    post = dataclasses.replace(post, target=wrong, status="stalled")
    with pytest.raises(ValueError, match="'stalled', do not leave every step a density"):
        smoothed(post, 0.1)
