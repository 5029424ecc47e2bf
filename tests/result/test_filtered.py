"""`gv.filter` against a Kalman filter in NumPy, and against sums over a grid of states."""

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest
import scipy.linalg
import scipy.stats
from support import assert_close
from tolerances import TOLERANCES

import girsanov as gv

A = np.array([[-0.5, 1.0], [-1.0, -0.3]])
B = np.array([0.1, 0.2])
H = np.array([[1.0, 0.0], [0.5, 1.0]])
M0, P0, R = np.array([1.0, 0.0]), np.array([[0.3, 0.1], [0.1, 0.2]]), np.array([0.1, 0.2])
DT, COUNT = 0.1, 20


def linear(Q) -> gv.Model:
    return gv.Model(gv.Linear(A, B), Q, gv.GaussianState(M0, P0), gv.likelihoods.Gaussian(np.diag(R)), H)


def data() -> gv.TimeSeries:
    """Every other node is observed; some entries are missing, and one whole observation is."""
    y = np.random.default_rng(0).normal(size=(COUNT, 2))
    y[3, 0] = y[7, 1] = np.nan
    y[5] = np.nan
    return gv.TimeSeries(2 * DT * np.arange(1, COUNT + 1), y)


def euler(Q):
    return np.eye(2) + DT * A, DT * B, DT * Q


def exact(Q):
    """Van Loan's exponential for the covariance, and one for the offset."""
    Phi = scipy.linalg.expm(DT * A)
    block = scipy.linalg.expm(DT * np.block([[-A, Q], [np.zeros((2, 2)), A.T]]))
    return Phi, np.linalg.solve(A, (Phi - np.eye(2)) @ B), Phi @ block[:2, 2:]


def kalman(series, step):
    """Means and covariances before every observation, and log scores, with two steps between observations."""
    Phi, c, Sigma = step
    m, P = M0, P0
    means, covs, scores = [], [], []
    for y in series.values:
        for _ in range(2):
            m, P = Phi @ m + c, Phi @ P @ Phi.T + Sigma
        means.append(m)
        covs.append(P)
        seen = ~np.isnan(y)
        scores.append(0.0)
        if seen.any():
            G, e = H[seen], y[seen] - H[seen] @ m
            V = G @ P @ G.T + np.diag(R[seen])
            scores[-1] = scipy.stats.multivariate_normal(np.zeros(seen.sum()), V).logpdf(e)
            K = P @ G.T @ np.linalg.inv(V)
            m, P = m + K @ e, P - K @ V @ K.T
    return np.array(means), np.array(covs), np.array(scores)


@pytest.mark.parametrize(
    ("Q", "method", "step"),
    [
        (np.diag([0.4, 0.2]), None, euler),
        (np.diag([0.4, 0.2]), gv.CVIDP(time="continuous"), exact),
        (np.diag([0.0, 0.2]), None, exact),
    ],
    ids=["discrete", "continuous", "singular noise"],
)
def test_a_linear_model_has_the_predictions_of_the_kalman_filter(Q, method, step):
    series = data()
    found = gv.filter(linear(np.diag(Q)), series, DT, (0.0, 2 * DT * COUNT), method=method)
    mean, cov, scores = kalman(series, step(Q))
    assert_close(found.mean, mean, "exact")
    assert_close(found.cov, cov, "exact")
    assert np.abs(found.log_scores - scores).max() < TOLERANCES["exact"]
    assert abs(found.total - scores.sum()) < TOLERANCES["exact"]
    assert found.log_scores[5] == 0.0
    assert_close(found.predicted.mean, mean @ H.T, "exact")
    assert_close(found.predicted.cov, H @ cov @ H.T + np.diag(R), "exact")


def test_the_moments_after_an_observation_are_those_of_an_integral():
    """The drift is linear, so that the moments one step later are exact too."""
    model = gv.Model(gv.OrnsteinUhlenbeck(1.5), 0.8, gv.GaussianState(0.5, 0.4), gv.likelihoods.Poisson())
    found = gv.filter(model, gv.TimeSeries([0.0, 0.1], [4.0, 2.0]), 0.1)
    x = np.linspace(-6.0, 6.0, 20_001)
    p = scipy.stats.norm(0.5, np.sqrt(0.4)).pdf(x) * scipy.stats.poisson(np.exp(x)).pmf(4)
    total = np.trapezoid(p, x)
    mean, variance = moments(x, p / total, 0.85 * x)
    assert abs(found.log_scores[0] - np.log(total)) < TOLERANCES["integral"]
    assert abs(found.mean[1, 0] - mean) < TOLERANCES["integral"]
    assert abs(found.cov[1, 0, 0] - variance - 0.1 * 0.8) < TOLERANCES["integral"]


def test_the_moments_after_a_step_are_those_of_an_integral():
    model = gv.Model(gv.DoubleWell(2.0, 1.0), 0.8, gv.GaussianState(0.5, 0.4), gv.likelihoods.Gaussian(0.1))
    found = gv.filter(model, gv.TimeSeries([0.1, 0.2], [0.4, np.nan]), 0.1, (0.0, 0.2))
    x = np.linspace(-6.0, 6.0, 20_001)
    mean, variance = moments(x, scipy.stats.norm(0.5, np.sqrt(0.4)).pdf(x), x + 0.1 * 2.0 * x * (1.0 - x**2))
    assert abs(found.mean[0, 0] - mean) < TOLERANCES["integral"]
    assert abs(found.cov[0, 0, 0] - variance - 0.1 * 0.8) < TOLERANCES["integral"]


def moments(x, p, value) -> tuple[float, float]:
    mean = np.trapezoid(p * value, x)
    return mean, np.trapezoid(p * (value - mean) ** 2, x)


def grid_scores(series, dt, scale, Q, noise) -> np.ndarray:
    """Scores of a double well by the densities of the state on a grid, moved by steps of Euler–Maruyama."""
    x = np.linspace(-3.0, 3.0, 601)
    h = x[1] - x[0]
    kernel = scipy.stats.norm(x + dt * scale * x * (1.0 - x**2), np.sqrt(dt * Q)).pdf(x[:, None]) * h
    p, t, scores = scipy.stats.norm(0.5, np.sqrt(0.2)).pdf(x), 0.0, []
    for time, y in zip(series.times, series.values[:, 0], strict=True):
        for _ in range(round((time - t) / dt)):
            p = kernel @ p
        t = time
        joint = p * scipy.stats.norm(x, np.sqrt(noise)).pdf(y)
        scores.append(np.log(joint.sum() * h))
        p = joint / (joint.sum() * h)
    return np.array(scores)


def test_a_double_well_is_near_the_exact_predictions():
    model = gv.Model(gv.DoubleWell(2.0, 1.0), 0.8, gv.GaussianState(0.5, 0.2), gv.likelihoods.Gaussian(0.05))
    series = gv.simulate(model, np.arange(1, 61) * 0.2, key=jax.random.key(2), start=0.0, dt=0.01).series
    found = gv.filter(model, series, 0.05, (0.0, 12.0))
    wanted = grid_scores(series, 0.05, 2.0, 0.8, 0.05)
    assert abs(found.total - wanted.sum()) / len(series) < TOLERANCES["gaussian_bias"]


def test_a_filter_in_positive_states_and_its_figure():
    model = gv.Model(gv.Polynomial([1.0, -1.0]), gv.diffusions.Proportional(0.3), gv.GaussianState(1.0, 0.01))
    series = gv.TimeSeries([0.5, 1.0], [1.2, 0.9], errors=[0.1, 0.1], unit=None)
    found = gv.filter(model, series, 0.1, (0.0, 1.0))
    assert (found.mean > 0.0).all()
    assert found.cov.shape == (2, 1, 1)
    assert np.array_equal(found.times, series.times)
    assert repr(found) == f"Filtered(n=2, d=1, total={found.total:.6g})"
    figure = found.plot()
    assert [ax.get_ylabel() for ax in figure.axes] == ["$y$", "log score"]
    plt.close(figure)


@pytest.mark.slow
def test_inputs_and_their_impulses_move_the_predictions():
    """For a linear model the sum of the scores is the bound of the posterior, which is exact."""
    doses = gv.Inputs([0.0, 0.7], [2.0, 1.0], kind="impulse")
    drift = gv.Linear([[-1.0]], [0.2], [[1.0]])
    model = gv.Model(drift, 0.1, gv.GaussianState(0.0, 0.1), gv.likelihoods.Gaussian(0.05))
    times = 0.25 * np.arange(1, 9)
    series = gv.simulate(model, times, key=jax.random.key(0), start=0.0, dt=0.01, inputs=doses).series
    for method in (gv.CVIDP(), gv.CVIDP(time="continuous")):
        found = gv.filter(model, series, 0.05, (0.0, 2.0), method=method)
        post = gv.infer(model, series, 0.05, (0.0, 2.0), method=method)
        assert abs(found.total - post.elbo) < TOLERANCES["evidence"]


def test_what_cannot_be_filtered(as_a_user):
    model, series = linear([0.4, 0.2]), data()
    with pytest.raises(ValueError, match=r"filter takes method=gv.CVIDP"):
        gv.filter(model, series, DT, method=gv.VDP())
    with pytest.raises(ValueError, match=r"filter takes one gv.TimeSeries, got Panel; for a panel use"):
        gv.filter(model, gv.Panel([series]), DT)
    steep = gv.Model(lambda x, t: 1e200 * x**3, 1.0, likelihood=gv.likelihoods.Gaussian(0.1))
    with pytest.raises(ValueError, match=r"at time 0.1 the filter has no Gaussian law of the state any more"):
        gv.filter(steep, gv.TimeSeries([0.0, 0.1, 0.2], [0.0, 1.0, 2.0]), 0.1)
