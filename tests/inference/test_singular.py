"""Noise that is singular: oscillators, moving objects and Matérn priors, exact where the drift is linear."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
from support import assert_close, assert_gaussian, pose
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.data.grid import make_grid
from girsanov.inference.conditioning import scale_at_fault
from girsanov.likelihoods import Gaussian, Poisson

TIMES = np.array([0.0, 0.31, 0.8, 0.85, 1.9, 2.4, 2.41, 3.3])
VALUES = np.sin(1.7 * TIMES) + 0.1 * np.cos(9.0 * TIMES)
NOISE = 0.02
OSCILLATOR = np.array([[0.0, 1.0], [-2.0, -0.3]])


def oscillator(noise=0.5, likelihood=None, **options):
    likelihood = likelihood or Gaussian(NOISE)
    return gv.Model(gv.Linear(OSCILLATOR), [0.0, noise], likelihood=likelihood, emission=[[1.0, 0.0]], **options)


def matern_matrices(order, lengthscale, variance):
    """Drift matrix and noise of a Matérn process, written out."""
    rate = np.sqrt(2.0 * order) / lengthscale
    if order == 1.5:
        return np.array([[0.0, 1.0], [-(rate**2), -2.0 * rate]]), np.diag([0.0, 4.0 * variance * rate**3])
    A = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-(rate**3), -3.0 * rate**2, -3.0 * rate]])
    return A, np.diag([0.0, 0.0, 16.0 / 3.0 * variance * rate**5])


def spread(A, Q, gap):
    """Covariance that the noise adds over a gap, by Van Loan's exponential."""
    d = len(A)
    E = scipy.linalg.expm(gap * np.block([[-A, Q], [np.zeros((d, d)), A.T]]))
    Sigma = E[d:, d:].T @ E[:d, d:]
    return 0.5 * (Sigma + Sigma.T)


def exact(A, Q, cov, times, at, noise=NOISE):
    """Means and covariances at the times `at` and the log evidence, by conditioning the joint Gaussian of all states.

    Without an initial covariance the process is stationary.
    """
    d, every = len(A), np.concatenate([times, at])
    stationary = scipy.linalg.solve_continuous_lyapunov(A, -Q) if cov is None else None

    def variance(t):
        if stationary is not None:
            return stationary
        Phi = scipy.linalg.expm(t * A)
        return Phi @ cov @ Phi.T + (spread(A, Q, t) if t > 0.0 else 0.0)

    def joint(s, t):
        """Cov(x_s, x_t)."""
        return (
            scipy.linalg.expm((s - t) * A) @ variance(t) if s >= t else variance(s) @ scipy.linalg.expm((t - s) * A).T
        )

    K = np.block([[joint(s, t) for t in every] for s in every])
    seen = d * np.arange(len(times))
    V = K[np.ix_(seen, seen)] + noise * np.eye(len(times))
    gain = np.linalg.solve(V, K[seen]).T
    y = np.interp(times, TIMES, VALUES)
    mean, after = gain @ y, K - gain @ K[seen]
    rows = [slice(d * (len(times) + i), d * (len(times) + i + 1)) for i in range(len(at))]
    evidence = -0.5 * (y @ np.linalg.solve(V, y) + np.linalg.slogdet(2.0 * np.pi * V)[1])
    return np.stack([mean[r] for r in rows]), np.stack([after[r, r] for r in rows]), evidence


LINEAR = {
    "oscillator": (oscillator(), OSCILLATOR, np.diag([0.0, 0.5]), np.eye(2)),
    "constant velocity": (
        gv.Model(gv.ConstantVelocity(), [0.0, 0.5], likelihood=Gaussian(NOISE), emission=[[1.0, 0.0]]),
        np.eye(2, k=1),
        np.diag([0.0, 0.5]),
        np.eye(2),
    ),
    **{
        f"Matérn {order}": (
            gv.matern(order, 0.7, 1.3, likelihood=Gaussian(NOISE)),
            *matern_matrices(order, 0.7, 1.3),
            None,
        )
        for order in (1.5, 2.5)
    },
}


@functools.cache
def posterior(name, dt):
    return gv.infer(LINEAR[name][0], gv.TimeSeries(TIMES, VALUES), dt=dt)


STEPS = [0.2, pytest.param(0.02, marks=pytest.mark.slow), pytest.param(0.001, marks=pytest.mark.slow)]


@pytest.mark.parametrize("dt", STEPS)
@pytest.mark.parametrize("name", LINEAR)
def test_linear_models_are_exact_at_every_step(name, dt):
    _, A, Q, cov = LINEAR[name]
    post = posterior(name, dt)
    assert post.converged and post.time == "continuous"
    nodes = post.times[:: max(1, len(post.times) // 40)]
    mean, S, evidence = exact(A, Q, cov, TIMES, nodes)
    keep = np.isin(post.times, nodes)
    assert_close(post.elbo, evidence, "evidence", "bound", size=1.0)
    assert_gaussian((post.mean[keep], post.cov[keep]), (mean, S), "evidence", name)


@pytest.mark.parametrize("name", LINEAR)
def test_marginals_between_the_nodes_and_next_to_them(name):
    _, A, Q, cov = LINEAR[name]
    post = posterior(name, 0.2)
    near = [t + side * gap for t in (0.4, 0.85, 2.41) for gap in (1e-3, 1e-6, 1e-9, 1e-12) for side in (-1.0, 1.0)]
    at = np.sort(np.array([0.05, 0.51, 1.234, 3.29, *near]))
    mean, S, _ = exact(A, Q, cov, TIMES, at)
    assert_gaussian(post.marginals(at), (mean, S), "evidence", name)


def test_samples_have_the_moments_of_the_posterior():
    post = posterior("oscillator", 0.2)
    paths = post.sample(jax.random.key(0), 4000)
    error = post.std / np.sqrt(4000)
    assert (np.abs(paths.mean(0) - post.mean) < TOLERANCES["standard_errors"] * error).all()
    ratio = paths.std(0) / post.std
    assert np.abs(ratio - 1.0).max() < TOLERANCES["standard_errors"] / np.sqrt(8000)
    # the position is the integral of the velocity: over a short gap the two agree far better than either is known
    gap = np.diff(post.times)
    moved = np.diff(paths[..., 0], axis=1) - gap * 0.5 * (paths[:, 1:, 1] + paths[:, :-1, 1])
    assert np.abs(moved).std() < 0.1 * post.std[:, 0].mean()


def test_forecasts_begin_at_the_last_state_and_spread():
    post = posterior("oscillator", 0.2)
    end = post.times[-1]
    paths = post.forecast([end + 0.01, end + 1.0], key=jax.random.key(1), n=4000, dt=0.005)
    Phi = scipy.linalg.expm(OSCILLATOR)
    cov = Phi @ post.cov[-1] @ Phi.T + spread(OSCILLATOR, np.diag([0.0, 0.5]), 1.0)
    assert_close(paths[:, 1].mean(0), Phi @ post.mean[-1], "coarse_moments", size=np.sqrt(np.diag(cov)).max())
    assert_close(np.cov(paths[:, 1].T), cov, "coarse_moments")


def test_saved_and_loaded(tmp_path):
    post = posterior("Matérn 1.5", 0.2)
    again = gv.load(post.save(tmp_path / "run.gv"))
    assert again.model.noise.is_singular and again.time == "continuous"
    np.testing.assert_array_equal(again.marginals([0.05, 1.0]).cov, post.marginals([0.05, 1.0]).cov)


def langevin(scale=4.0, friction=0.8, noise=0.7):
    return gv.Model(
        gv.Langevin(gv.DoubleWell(scale), friction), [0.0, noise], likelihood=Gaussian(0.05), emission=[[1.0, 0.0]]
    )


@functools.cache
def switching():
    return gv.simulate(langevin(), np.linspace(0.25, 10.0, 40), key=jax.random.key(3), start=0.0).series


@pytest.mark.slow
def test_the_bound_of_a_langevin_double_well_converges_with_second_order():
    bounds = [gv.infer(langevin(), switching(), dt=dt, span=(0.0, 10.0)).elbo for dt in (0.2, 0.1, 0.05, 0.025)]
    steps = np.diff(bounds)
    order = np.log2(np.abs(steps[:-1] / steps[1:]))
    assert (order > 2.0 - TOLERANCES["order"]).all(), (bounds, order)


@pytest.mark.slow
def test_counts_of_a_moving_rate_climb_to_a_maximum():
    counts = gv.TimeSeries(TIMES, [1, 3, 4, 2, 0, 0, 1, 2])
    post = gv.infer(gv.matern(1.5, 0.7, 1.3, likelihood=Poisson()), counts, dt=0.2)
    assert post.converged
    assert np.diff(post.history.elbo).min() > -1e-3
    problem = gv.prepare(post.model, counts, dt=0.2)
    with jax.enable_x64(True):
        solution = gv.solve(post.model, problem)
    assert_close(float(solution.elbo), post.elbo, "functional", size=1.0)


# --- learning


def negative_log_evidence(noise, variance):
    Q = np.diag([0.0, noise])
    return -exact(OSCILLATOR, Q, np.eye(2), TIMES, TIMES[:1], variance)[2]


@pytest.mark.slow
def test_learnt_noise_is_that_of_maximum_likelihood_and_zeros_stay_zero():
    fit = gv.learn(
        oscillator(), gv.TimeSeries(TIMES, VALUES), dt=0.2, trainable=["diffusion", "likelihood"], check=False
    )
    assert fit.status == "converged"
    best = scipy.optimize.minimize(
        lambda u: negative_log_evidence(*np.exp(u)), np.log([0.5, NOISE]), method="Nelder-Mead", options={"xatol": 1e-7}
    )
    assert_close(fit.posterior.elbo, -best.fun, "likelihood_maximum", size=1.0)
    Q = np.asarray(fit.model.diffusion)
    assert_close(Q[1, 1], np.exp(best.x[0]), "learnt")
    assert (Q[0] == 0.0).all() and (Q[:, 0] == 0.0).all()
    assert list(fit.standard_errors) == ["diffusion[1, 1]", "likelihood.variance"]


@pytest.mark.slow
def test_the_gradient_of_the_bound_is_that_of_differences():
    problem = gv.prepare(langevin(), switching(), dt=0.05, span=(0.0, 10.0), method=gv.CVIDP(tolerance=1e-10))

    def bound(theta):
        return gv.bound(langevin(*theta), problem)

    theta = np.array([4.0, 0.8])
    with jax.enable_x64(True):
        gradient = jax.jit(jax.grad(bound))(theta)
        run = jax.jit(bound)
        for i in range(2):
            step = 1e-3 * np.eye(2)[i] * theta[i]
            wanted = (run(theta + step) - run(theta - step)) / (2.0 * step[i])
            assert_close(gradient[i], wanted, "envelope_continuous")


# --- what cannot be done


def test_a_coordinate_without_noise_is_not_the_scale_at_fault():
    """Its step has a noise of zero, as stated; the noise of the velocity is what is too small here."""
    model, series = oscillator(noise=1e-20), gv.TimeSeries(TIMES, VALUES)
    grid = make_grid(series, 0.2, None, None)
    problem = pose(model, series, grid, gv.CVIDP().rule(2))
    N = len(grid.times)
    said = scale_at_fault(problem, np.zeros((N, 2)), np.tile(np.eye(2), (N, 1, 1)))
    assert said.startswith("the noise of one step") and "= 0," not in said
    still = eqx.tree_at(lambda p: p.data.gaps, problem, 0.0 * problem.data.gaps)
    said = scale_at_fault(still, np.full((N, 2), 1e9), np.tile(np.eye(2), (N, 1, 1)))
    assert said.startswith("the state lies at 1e+09")  # where no step has noise, none is too small


def bent(x, t):
    return jnp.stack([x[1] ** 2, -x[0]])


def test_a_noise_free_row_that_is_not_affine_is_named():
    model = gv.Model(bent, [0.0, 1.0], emission=[[1.0, 0.0]])
    with pytest.raises(ValueError, match=r"row 0 of the drift has no noise and is not affine.*Give it a little noise"):
        gv.infer(model, gv.TimeSeries(TIMES, VALUES), dt=0.2)


def test_a_combination_without_noise_is_named():
    model = gv.Model(lambda x, t: jnp.stack([x[0] ** 2, -x[1]]), [[1.0, 1.0], [1.0, 1.0]])
    with pytest.raises(ValueError, match=r"the combination .*row 0 .*row 1 of the drift has no noise"):
        gv.infer(model, gv.TimeSeries(TIMES, np.stack([VALUES, VALUES], 1)), dt=0.2)


def test_a_coordinate_that_no_noise_reaches_is_named():
    model = gv.Model(gv.Linear([[-1.0, 0.0], [0.0, -1.0]]), [0.0, 1.0])
    with pytest.raises(ValueError, match=r"coordinate 0 has no noise, neither its own nor through the drift"):
        gv.infer(model, gv.TimeSeries(TIMES, np.stack([VALUES, VALUES], 1)), dt=0.2)


def test_vdp_needs_noise_everywhere():
    with pytest.raises(
        ValueError, match=r"diffusion of this model is singular, and VDP needs noise in every coordinate"
    ):
        gv.infer(oscillator(), gv.TimeSeries(TIMES, VALUES), dt=0.2, method=gv.VDP())


def test_particle_methods_say_what_to_use_instead():
    with pytest.raises(ValueError, match=r"diffusion of this model is singular.*post\.diagnose"):
        gv.baselines.particle_smoother(oscillator(), gv.TimeSeries(TIMES, VALUES), dt=0.2, key=jax.random.key(0))


def test_importance_weights_of_a_linear_model_are_constant():
    verdict = posterior("oscillator", 0.2).diagnose(key=jax.random.key(0), n=500)
    assert verdict.verdict == "trust the bound"
    assert_close(verdict.log_evidence, posterior("oscillator", 0.2).elbo, "evidence", size=1.0)
    assert abs(verdict.filter_evidence - verdict.log_evidence) < TOLERANCES["trusted"]


def test_two_coordinates_with_one_noise():
    """x and a multiple of it, rotated: the noise has rank one in no coordinate's direction."""
    turn = np.array([[0.8, -0.6], [0.6, 0.8]])
    A, Q = turn @ OSCILLATOR @ turn.T, turn @ np.diag([0.0, 0.5]) @ turn.T
    Q = 0.5 * (Q + Q.T)
    model = gv.Model(gv.Linear(A), Q, likelihood=Gaussian(NOISE), emission=turn[:, :1].T)
    assert model.noise.rank == 1 and model.noise.noisy == (0, 1)
    post = gv.infer(model, gv.TimeSeries(TIMES, VALUES), dt=0.2)
    assert_close(post.elbo, posterior("oscillator", 0.2).elbo, "evidence", size=1.0)
    assert_close(post.mean @ turn, posterior("oscillator", 0.2).mean, "evidence")
    with pytest.raises(ValueError, match="singular in directions that are not coordinates"):
        gv.learn(model, gv.TimeSeries(TIMES, VALUES), dt=0.2, trainable="diffusion")
