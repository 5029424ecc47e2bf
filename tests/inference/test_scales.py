"""Models whose scales lie many orders apart, against a Kalman smoother in 150 digits: right, or said not to be."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from support import assert_close, assert_gaussian, condition, dense_natural, linear_joint, random_chain, split_dense
from tolerances import TOLERANCES

import girsanov as gv
from fuzz.extended import smoother
from girsanov.chain import blocks, square_root
from girsanov.chain.transitions import transitions

TIMES = np.linspace(0.0, 10.0, 40)
POSITION = np.array([[1.0, 0.0]])
VELOCITY = np.array([[0.0, 1.0], [0.0, 0.0]])


def linear(A, Q, mean, cov, noise, H=None, b=None):
    A = np.atleast_2d(A)
    d = len(A)
    return gv.Model(
        gv.Linear(A, np.zeros(d) if b is None else b),
        diffusion=Q,
        initial=gv.GaussianState(np.broadcast_to(mean, (d,)), cov),
        likelihood=gv.likelihoods.Gaussian(noise),
        emission=np.eye(d) if H is None else H,
    )


def exact(model, post, series):
    R = np.broadcast_to(model.likelihood.variance, (series.dim,))
    A, b, H = model.drift.A, model.drift.b, model.emission
    initial = model.initial
    return smoother(
        A, b, model.diffusion, initial.mean, initial.cov, H, np.diag(R), post.times, post.node, series.values
    )


def assert_exact(model, series, **options):
    """Converged, and equal to the exact posterior in every mean, standard deviation and lag-one covariance."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        post = gv.infer(model, series, **options)
    truth = exact(model, post, series)
    assert post.status == "converged"
    assert np.abs(post.elbo - truth.evidence) <= TOLERANCES["scales"] * max(1.0, abs(truth.evidence))
    assert (np.abs(post.mean - truth.mean - truth.tail) / truth.std).max() < TOLERANCES["scales"]
    assert np.abs(post.std / truth.std - 1).max() < TOLERANCES["scales"]
    sizes = truth.std[1:, :, None] * truth.std[:-1, None]
    assert (np.abs(post.lag_cov - truth.lag) / sizes).max() < TOLERANCES["scales"]
    assert np.isfinite(post.sample(jax.random.key(0), 3)).all()
    return post


def wave(size=1.0, noise=0.1, times=TIMES, seed=0):
    return gv.TimeSeries(times, size * np.sin(times) + noise * np.random.default_rng(seed).normal(size=len(times)))


EVERYDAY = {
    "constant velocity, wide start": (linear(VELOCITY, [1e-4, 1.0], 0.0, 1e4, 0.01, POSITION), wave()),
    "hardly any diffusion": (linear(-1.0, 1e-10, 0.0, 1.0, 0.01), wave()),
    "a level and hardly any diffusion": (
        linear(-1.0, 1e-10, 1e5, 1.0, 0.01, b=[1e5]),
        gv.TimeSeries(TIMES, 1e5 + 0.1 * np.random.default_rng(1).normal(size=40)),
    ),
    "a start far from the data": (linear(0.0, 1.0, 1e6, 1e-4, 0.01), wave()),
    "sharp observations": (linear(-1.0, 1.0, 0.0, 1e6, 1e-10), wave()),
}


@pytest.mark.parametrize("name", EVERYDAY)
def test_linear_models_are_solved_exactly(name):
    assert_exact(*EVERYDAY[name], dt=0.1)


@pytest.mark.parametrize("noise", [1e-6, 1e-8, 1e-10])
def test_two_sharp_sensors_of_four_states(noise):
    """An inverse that loses the best known directions of a block made this wrong from 1e-8 on."""
    rng = np.random.default_rng(2)
    A, H = rng.normal(size=(4, 4)) - 2.0 * np.eye(4), rng.normal(size=(2, 4))
    times = np.linspace(0.1, 2.0, 20)
    model = linear(A, 1.0, 0.0, 1.0, noise, H)
    series = gv.simulate(model, times, key=jax.random.key(3), dt=0.05, start=0.0).series
    assert_exact(model, series, dt=0.05, span=(0.0, 2.0))


def test_pendulum_with_a_wide_start():
    """Non-linear: the two algorithms and a plain natural descent agree."""
    swing = gv.Model(
        lambda x, t: jnp.stack([x[1], -9.81 * jnp.sin(x[0])]),
        [1e-6, 0.1],
        gv.GaussianState(0.0, 100.0),
        gv.likelihoods.Gaussian(0.01),
        POSITION,
        dim=2,
    )
    post = gv.infer(swing, wave(0.3, 0.0), dt=0.05)
    plain = gv.infer(swing, wave(0.3, 0.0), dt=0.05, method=gv.CVIDP(rho=1.0))
    assert post.converged and plain.converged
    assert_close(post.elbo, plain.elbo, "optimum")


def test_samples_of_nodes_that_almost_coincide():
    times = np.array([0.0, 0.5, 0.5 + 1e-9, 1.0, 1.0 + 1e-9, 2.0])
    post = gv.infer(linear(-1.0, 1.0, 0.0, 1.0, 0.1), gv.TimeSeries(times, np.sin(times)), dt=0.1)
    paths, n = post.sample(jax.random.key(0), 2000), 2000
    assert np.isfinite(paths).all()
    assert np.abs(paths.std(0) / post.std - 1).max() < TOLERANCES["standard_errors"] / np.sqrt(2 * n)
    for close in (0.5, 1.0):  # and the states of two such nodes differ by the diffusion over 1e-9
        m = np.flatnonzero(post.times == close)[0]
        step = paths[:, m + 1, 0] - paths[:, m, 0]
        assert abs(step.std() / np.sqrt(post.times[m + 1] - close) - 1) < TOLERANCES["standard_errors"] / np.sqrt(2 * n)


def sharp_sensor_across_the_axes():
    """One sensor with sd 2e-5 of a mixture of two states with sd 20; J is then singular to eleven digits."""
    A, b = [[0.0, 0.049], [0.0, 0.0]], [0.0088, 0.0133]
    model = linear(A, 23.4, [-0.64, -1.87], [[0.023, -0.0032], [-0.0032, 0.0058]], 3.4e-10, [[-0.8533, -0.3056]], b)
    times = 13.8091 + 17.6171 * np.arange(5)
    y = [[1.3037018], [-9.2059167], [3.6330263], [-5.7159194], [-10.5325131]]
    return model, gv.TimeSeries(times, y), {"dt": 3.0435, "span": (0.0, 88.262)}


def test_means_that_the_smoother_cannot_resolve_are_noticed():
    """With a step size of the user's, the natural parameters are all there is: their solution is checked, not trusted.

    The error of the mean, 1e-5 of each state's sd, is half an sd along the sensor, which costs some tenths of a nat.
    """
    model, series, options = sharp_sensor_across_the_axes()
    good = assert_exact(model, series, **options)
    with pytest.warns(UserWarning, match="in the direction that is known best"):
        post = gv.infer(model, series, **options, method=gv.CVIDP(rho=1.0))
    assert abs(post.elbo - good.elbo) > 0.05
    assert post.status == "ill_conditioned"
    with jax.enable_x64(True):
        found = jax.jit(gv.solve)(model, gv.prepare(model, series, **options))
    assert abs(float(found.elbo) - good.elbo) < 1e-3 or not found.converged


def test_what_no_precision_can_hold_is_said():
    """A start 1e12 standard deviations away: rounding of the state itself exceeds its standard deviation."""
    model = linear(-0.05, 1e-12, 1e6, 1e-12, 1e-10)
    with pytest.warns(UserWarning, match="ill_conditioned"):
        post = gv.infer(model, gv.TimeSeries(TIMES, 1e6 * np.cos(TIMES)), dt=0.1)
    assert not post.converged and post.status == "ill_conditioned"
    assert "subtract a constant level" in post.message or "initial" in post.message


# The square-root chain itself


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


SOLVE = jax.jit(square_root.solve)


def random_problem(rng, d, N, D=2):
    T = rng.normal(size=(N, d, d)) / np.sqrt(d)
    T[0] = 0.0
    e, X = rng.normal(size=(N, d)), rng.normal(size=(N, D, d))
    R = np.tril(rng.normal(size=(N, d, d))) + 2.0 * np.eye(d)
    G = rng.normal(size=(N, d, d))
    J = 0.05 * (G + np.swapaxes(G, 1, 2)) / d  # small, of either sign
    return square_root.Step(T, e, R), square_root.NodeSites(rng.normal(size=(N, d)), J, X)


def dense_solution(steps, sites):
    """Mean, covariance and log constant by dense algebra."""
    N, d = steps.e.shape
    F, noise = np.eye(N * d), np.zeros((N * d, N * d))
    for m in range(N):
        at = slice(m * d, (m + 1) * d)
        noise[at, at] = steps.R[m] @ steps.R[m].T
        if m:
            F[at, (m - 1) * d : m * d] = -steps.T[m]
    cov = np.linalg.inv(F) @ noise @ np.linalg.inv(F).T
    mean, h = np.linalg.solve(F, steps.e.ravel()), sites.h.ravel()
    J = np.zeros_like(cov)
    for m in range(N):
        at = slice(m * d, (m + 1) * d)
        J[at, at] = sites.J[m] + sites.X[m].T @ sites.X[m]
    prior = np.linalg.inv(cov)
    after = np.linalg.inv(prior + J)
    centre = after @ (prior @ mean + h)
    log_z = 0.5 * (np.linalg.slogdet(prior)[1] + np.linalg.slogdet(after)[1])
    log_z += 0.5 * (centre @ (prior + J) @ centre - mean @ prior @ mean)
    return centre, after, log_z


@pytest.mark.parametrize("d", [1, 3])
def test_square_root_chain_equals_dense_algebra(d, x64):
    steps, sites = random_problem(np.random.default_rng(d), d, 6)
    q, log_z, ok = SOLVE(steps, sites)
    mean, cov, constant = dense_solution(steps, sites)
    m, S, C = split_dense(mean, cov, d)
    assert bool(ok)
    assert_gaussian((q.m, q.S, q.C), (m, S, C), "exact")
    assert_close(log_z, constant, "exact", "log constant")
    T = np.concatenate([np.zeros((1, d, d)), C @ np.linalg.inv(S[:-1])])
    assert_close(q.T, T, "exact", "transitions")
    after = np.einsum("mij,mj->mi", steps.T[1:], m[:-1]) + steps.e[1:]
    assert_close(q.pull[1:], m[1:] - after, "exact", "pull")
    assert_close(q.turn, T - steps.T, "exact", "turn")


def test_square_root_divergence_equals_dense_kl(x64):
    rng = np.random.default_rng(5)
    chains = [SOLVE(*random_problem(rng, 2, 5))[0] for _ in range(2)]
    got = jax.jit(square_root.divergence)(*chains).sum()
    (m_q, S_q), (m_p, S_p) = (_joint(q) for q in chains)
    P = np.linalg.inv(S_p)
    e = m_q - m_p
    wanted = np.trace(P @ S_q) + e @ P @ e - len(e) + np.linalg.slogdet(S_p)[1] - np.linalg.slogdet(S_q)[1]
    assert_close(got, 0.5 * wanted, "exact")


def _joint(q):
    N, d = q.m.shape
    F, noise = np.eye(N * d), np.zeros((N * d, N * d))
    for m in range(N):
        at = slice(m * d, (m + 1) * d)
        noise[at, at] = q.root[m] @ q.root[m].T
        if m:
            F[at, (m - 1) * d : m * d] = -q.T[m]
    G = np.linalg.inv(F)
    return np.asarray(q.m).ravel(), G @ noise @ G.T


@pytest.mark.parametrize("d", [2, 5])
def test_transitions_reproduce_the_moments(d, x64):
    chain = random_chain(np.random.default_rng(d), d, 7)
    own, P = jax.jit(transitions)(chain), dense_natural(chain)[1]
    _, wanted, lag = split_dense(np.zeros(7 * d), np.linalg.inv(P), d)
    S = own.root[..., 0] @ own.root[..., 0].T
    for m in range(6):
        assert_close(S, wanted[m], "exact", "covariance")
        assert_close(own.T[..., m] @ S, lag[m], "exact", "lag-one covariance")
        S = own.T[..., m] @ S @ own.T[..., m].T + own.root[..., m + 1] @ own.root[..., m + 1].T
    assert_close(S, wanted[6], "exact", "last covariance")


@pytest.mark.parametrize("d", [3, 4, 6])
def test_inverse_keeps_the_best_known_directions(d, x64):
    """One direction a million times better known than the rest: its variance has nine digits still."""
    rng = np.random.default_rng(d)
    s = rng.normal(size=d)
    s /= np.linalg.norm(s)
    a = np.eye(d) + 1e6 * np.outer(s, s)
    P, _ = jax.jit(blocks.inverse)(a)
    assert abs(s @ np.asarray(P) @ s * (1 + 1e6) - 1) < 1e-8


def test_inverse_has_the_right_derivatives(x64):
    rng = np.random.default_rng(0)
    G, dG = rng.normal(size=(2, 5, 5))
    a, da = G @ G.T + np.eye(5), dG + dG.T

    tangents, step = jax.jit(lambda a, da: jax.jvp(blocks.inverse, (a,), (da,))[1])(a, da), 1e-6
    up, down = (jax.jit(blocks.inverse)(a + s * step * da) for s in (1, -1))
    for got, high, low in zip(tangents, up, down, strict=True):
        assert_close(got, (np.asarray(high) - np.asarray(low)) / (2 * step), "gradient")


# Learning


def maximum_likelihood(log_evidence, start):
    """By an independent optimiser from the estimate on: nothing better lies near it."""
    out = minimize(lambda v: -log_evidence(v), start, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12})
    return out.x, -out.fun


def dense_evidence(A, b, Q, mean, cov, H, R, post, values):
    M = len(post.times) - 1
    joint = linear_joint([A] * M, [b] * M, Q, mean, cov, post.times)
    return condition(*joint, H, R, post.node, values)[2]


@pytest.mark.parametrize("name", ["constant velocity, wide start", "hardly any diffusion"])
def test_learning_noise_reaches_maximum_likelihood(name):
    model, series = EVERYDAY[name]
    fit = gv.learn(model, series, dt=0.25, trainable="likelihood", standard_errors=False)
    A, Q, H, start = model.drift.A, model.diffusion, model.emission, model.initial

    def evidence(v):
        R = np.exp(v[0]) * np.eye(1)
        return dense_evidence(A, model.drift.b, Q, start.mean, start.cov, H, R, fit.posterior, series.values)

    found = float(fit.parameters["likelihood.variance"])
    best, top = maximum_likelihood(evidence, [np.log(found)])
    variance = float(np.exp(best[0]))
    assert fit.status == "converged"
    assert_close(fit.elbo, top, "likelihood_maximum")
    # In standard errors of a variance from as many readings: k of them cost ½k² nats, and the bound is known to some
    # 1e-7, since the precisions of the states and of the data are 1e10 apart.
    assert_close(found, variance, "optimum_moments", size=variance * np.sqrt(2.0 / len(series)))


def test_rounding_of_an_m_step_does_not_end_learning_early():
    """Its objective sees no gain where the bound has a slope: the default then ends where the profile does."""
    model, series = EVERYDAY["hardly any diffusion"]
    options = {"trainable": "likelihood", "tolerance": 1e-9, "parameter_tolerance": 1e-6, "standard_errors": False}
    found = [gv.learn(model, series, dt=0.25, objective=name, **options) for name in ("modified", "profile")]
    assert [fit.status for fit in found] == ["converged"] * 2
    by_steps, by_profile = (float(fit.parameters["likelihood.variance"]) for fit in found)
    assert_close(by_steps, by_profile, "likelihood_maximum")


class ByLogarithms(eqx.Module):
    """−rate (x − mean), written so that it is not defined for negative states."""

    rate: jax.Array
    mean: jax.Array
    root: bool = eqx.field(static=True, default=False)

    def __call__(self, x, t):
        same = jnp.sqrt(x) ** 2 if self.root else jnp.exp(jnp.log(x))
        return -self.rate * (same - self.mean)


@pytest.mark.parametrize("root", [False, True])
def test_learning_a_drift_that_is_not_defined_everywhere(root):
    """The padding of a grid lay at states where such a drift is NaN, and so was its derivative."""
    drift = ByLogarithms(np.array(1.0), np.array(4.5), root)
    model = gv.Model(drift, 0.05, gv.GaussianState(5.0, 0.01), gv.likelihoods.Gaussian(0.01), dim=1)
    times = np.linspace(0.13, 8.0, 30)
    truth = linear(-1.5, 0.05, 5.0, 0.01, 0.01, b=[7.5])
    series = gv.simulate(truth, times, key=jax.random.key(5), start=0.0).series
    fit = gv.learn(model, series, dt=0.2, span=(0.0, 8.0), trainable="drift", standard_errors=False)

    def evidence(v):
        A, b = np.array([[-v[0]]]), np.array([v[0] * v[1]])
        return dense_evidence(
            A, b, 0.05 * np.eye(1), np.full(1, 5.0), 0.01 * np.eye(1), np.eye(1), 0.01 * np.eye(1),
            fit.posterior, series.values,
        )  # fmt: skip

    found = np.array([fit.parameters["drift.rate"], fit.parameters["drift.mean"]])
    best, top = maximum_likelihood(evidence, found)
    assert fit.status == "converged"
    assert_close(fit.elbo, top, "likelihood_maximum")
    assert_close(found / best, np.ones(2), "learnt")


def test_a_derivative_that_is_not_finite_is_an_error():
    class Cusp(eqx.Module):
        power: jax.Array

        def __call__(self, x, t):
            return -x * jnp.sqrt(jnp.abs(self.power))  # no derivative at zero

    model = gv.Model(Cusp(np.array(0.0)), 1.0, dim=1)
    with pytest.raises(ValueError, match=r"derivative in drift\.power"):
        gv.learn(model, gv.TimeSeries([0.0, 1.0, 2.0], [0.1, 0.3, 0.2]), dt=0.5, trainable="drift")


def test_a_run_cut_short_is_not_done_again_with_care():
    """Stopped by max_iterations while it still gains: rounding, though noticeable, does not explain that."""
    times = np.linspace(0.0, 5.0, 21)
    start, noise = gv.GaussianState(1.0, 0.1), gv.likelihoods.Gaussian(0.01)
    model = gv.Model(gv.DoubleWell(), diffusion=0.01, initial=start, likelihood=noise)
    post = gv.infer(
        model, gv.TimeSeries(times, np.cos(times)), dt=1e-3, method=gv.CVIDP(coarse_to_fine=False), max_iterations=1
    )
    assert post.status == "max_iterations"
    assert post.exact_transitions is None
    assert len(post.history) == 2
