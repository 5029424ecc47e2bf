"""Standard errors of a fit against the curvature of an evidence that is computed densely."""

import jax
import numpy as np
from support import assert_close, condition, linear_joint

import girsanov as gv

DECAY, NOISE, DT = np.array([1.0, 0.5]), 0.05, 0.1
TIMES = 0.2 * np.arange(1, 16)
STEP = 1e-3  # of central differences, relative


def model(q: float) -> gv.Model:
    return gv.Model(gv.OrnsteinUhlenbeck(DECAY), q, gv.GaussianState(0.0, 0.5), gv.likelihoods.Gaussian(NOISE))


def log_evidence(q: float, series: gv.TimeSeries) -> float:
    times = DT * np.arange(31)
    A, b = np.tile(-np.diag(DECAY), (30, 1, 1)), np.zeros((30, 2))
    mean, cov = linear_joint(A, b, q * np.eye(2), np.zeros(2), 0.5 * np.eye(2), times)
    node = np.round(series.times / DT).astype(int)
    return condition(mean, cov, np.eye(2), NOISE * np.eye(2), node, series.values)[2]


def test_one_number_for_the_noise_of_two_coordinates():
    """A diffusion given as a number stays one, and its error is that of the number."""
    series = gv.simulate(model(0.8), TIMES, key=jax.random.key(0), start=0.0, dt=0.01).series
    fit = gv.learn(model(1.0), series, dt=DT, span=(0.0, 3.0), trainable="diffusion", progress=False)
    assert fit.converged
    Q = np.asarray(fit.model.diffusion)
    assert np.array_equal(Q, Q[0, 0] * np.eye(2))
    q, h = Q[0, 0], STEP * Q[0, 0]
    low, here, high = (log_evidence(q + s * h, series) for s in (-1.0, 0.0, 1.0))
    assert low < here > high
    assert_close(fit.standard_errors["diffusion"], h / np.sqrt(2.0 * here - low - high), "learnt")
    assert "diffusion" in fit.summary() and len(fit.covariance) == 1
