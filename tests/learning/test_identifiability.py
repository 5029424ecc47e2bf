"""The directions that the data do not tell, against the covariance of the estimates, and in words."""

import jax
import numpy as np
import pytest
from support import assert_close

import girsanov as gv

QUIET = {"progress": False, "step_error": False}


def test_directions_are_those_of_the_covariance_in_logarithms():
    model = gv.Model(gv.OrnsteinUhlenbeck(1.0), 1.0, gv.GaussianState(0.0, 0.5), gv.likelihoods.Gaussian(0.1))
    series = gv.simulate(model, np.arange(1, 41) * 0.25, key=jax.random.key(3), dt=0.05, start=0.0).series
    fit = gv.learn(model, series, 0.05, (0.0, 10.0), trainable=["drift", "diffusion", "likelihood"], **QUIET)
    values = np.array([np.ravel(v)[0] for v in fit.parameters.values()])
    spreads, vectors = np.linalg.eigh(fit.covariance / np.outer(values, values))
    assert_close(np.array([d.spread for d in fit.directions]), np.sqrt(spreads[::-1]), "fitted")
    assert_close(np.abs(list(fit.directions[0].weights.values())), np.abs(vectors[:, -1]), "fitted", size=1.0)
    widest = fit.directions[0]
    assert widest.spread > fit.directions[-1].spread
    assert widest.sentence in fit.identifiability()


def test_noise_and_diffusion_of_dense_data_are_not_told_apart():
    """Two noises that enter the data only by their sum."""
    model = gv.Model(gv.Linear([[0.0]]), 1e-3, gv.GaussianState(0.0, 1.0), gv.likelihoods.Gaussian([1.0, 1.0]),
                     emission=[[1.0], [1.0]])  # fmt: skip
    rng = np.random.default_rng(0)
    y = np.where(np.arange(2) == 0, rng.normal(size=(30, 2)), np.nan)  # the second output was never seen
    series = gv.TimeSeries(np.arange(30.0), y)
    fit = gv.learn(model, series, 1.0, trainable=["likelihood"], **QUIET)
    assert fit.directions[0].spread > 100.0 and fit.directions[0].sentence.endswith("likelihood.variance[1]")
    assert "tell likelihood.variance[0]" in fit.identifiability() and fit.status == "flat"


@pytest.mark.slow
def test_entries_of_a_covariance_are_named_after_the_matrix():
    model = gv.Model(gv.Linear(-np.eye(2)), np.array([[1.0, 0.3], [0.3, 0.5]]), likelihood=gv.likelihoods.Gaussian(0.1))
    data = gv.simulate(model, np.arange(1, 61) * 0.2, key=jax.random.key(0), start=0.0).series
    fit = gv.learn(model, data, 0.2, trainable=["diffusion"], **QUIET)
    Q = fit.parameters["diffusion"]
    roots = np.sqrt(np.array([Q[0, 0] ** 2, Q[0, 0] * Q[1, 1], Q[1, 1] ** 2]))
    spreads = np.linalg.eigvalsh(fit.covariance / np.outer(roots, roots))
    assert_close(np.array([d.spread for d in fit.directions]), np.sqrt(spreads[::-1]), "fitted")
    assert set(fit.directions[0].weights) == {"diffusion[0, 0]", "diffusion[1, 0]", "diffusion[1, 1]"}
