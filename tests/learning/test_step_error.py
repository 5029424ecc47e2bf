"""How far estimates depend on the time step: against learning with half the step."""

import jax
import numpy as np
import pytest
from tolerances import TOLERANCES

import girsanov as gv

QUIET = {"progress": False}


def values(fit: gv.Fit) -> dict[str, float]:
    return {name: float(np.ravel(value)[0]) for name, value in fit.parameters.items()}


@pytest.mark.parametrize("drift", [gv.OrnsteinUhlenbeck(2.0), gv.DoubleWell(4.0, 1.0)], ids=["linear", "double well"])
def test_the_change_is_that_of_half_the_step(drift):
    model = gv.Model(drift, 1.0, gv.GaussianState(1.0, 0.1), gv.likelihoods.Gaussian(0.01))
    times = np.sort(np.random.default_rng(0).uniform(0.1, 9.9, 60))
    series = gv.simulate(model, times, key=jax.random.key(0), dt=0.001, start=0.0).series
    coarse, fine = (
        gv.learn(model, series, dt, (0.0, 10.0), trainable=["drift", "diffusion"], **QUIET) for dt in (0.02, 0.01)
    )
    assert coarse.step_error.keys() == coarse.standard_errors.keys()
    for name, told in coarse.step_error.items():
        change = (values(fine)[name] - values(coarse)[name]) / coarse.standard_errors[name]
        assert abs(told - change) < TOLERANCES["step_error"] * max(abs(v) for v in coarse.step_error.values()), name
    assert max(coarse.step_error.values()) > 1.5 * max(fine.step_error.values())  # of first order


@pytest.mark.slow
def test_estimates_that_depend_on_the_step_are_warned_of():
    """Many precise observations of a fast decay: Euler's steps decay faster than the process."""
    model = gv.Model(gv.OrnsteinUhlenbeck(4.0), 1.0, gv.GaussianState(0.0, 1.0), gv.likelihoods.Gaussian(1e-4))
    series = gv.simulate(model, np.arange(1, 301) * 0.2, key=jax.random.key(0), dt=0.001, start=0.0).series
    settings = {"dt": 0.1, "span": (0.0, 60.0), "trainable": ["drift", "diffusion"], **QUIET}
    with pytest.warns(UserWarning, match=r"depends on dt: half the step would change it by about \+.*a smaller dt"):
        fit = gv.learn(model, series, **settings)
    assert fit.converged and max(fit.step_error.values()) > 0.5
    exact = gv.learn(model, series, method=gv.CVIDP(time="continuous"), **settings)
    assert exact.step_error is None
    with pytest.raises(ValueError, match=r"step_error=True is for gv.CVIDP in discrete time"):
        gv.learn(model, series, method=gv.CVIDP(time="continuous"), step_error=True, **settings)


def test_a_grid_of_observations_cannot_be_compared():
    model = gv.Model(gv.OrnsteinUhlenbeck(1.0), 1.0, gv.GaussianState(0.0, 1.0), gv.likelihoods.Gaussian(0.1))
    series = gv.simulate(model, np.arange(1, 31) * 0.1, key=jax.random.key(0), dt=0.1, start=0.0).series
    fit = gv.learn(model, series, 0.1, trainable=["drift"], **QUIET)
    assert fit.step_error is None
