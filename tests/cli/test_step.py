"""The step that the command line chooses where none is given."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

import girsanov as gv
from girsanov.cli.step import chosen_step, first_step, halved


def first_order(dt, per_dt=1.0, converged=True):
    """A posterior whose mean is off by a multiple of the step, with a standard deviation of one."""
    mean = np.array([[1.0 + per_dt * dt], [2.0]])
    return SimpleNamespace(mean=mean, cov=np.ones((2, 1, 1)), node=np.array([0, 1]), elbo=-dt, converged=converged)


@pytest.mark.parametrize(("per_dt", "dt"), [(0.1, 1.0), (0.5, 0.25), (2.0, 0.0625), (6.0, 1 / 32)])
def test_a_step_is_halved_until_the_posterior_no_longer_changes(per_dt, dt):
    """Halving changes the mean by per_dt · dt / 2, which must be at most a tenth."""
    ran = []
    found = halved(1.0, lambda step: ran.append(step) or first_order(step, per_dt), 1e-9)
    assert found.dt == dt and "half of it changes" in found.line and len(ran) == len(set(ran)) <= 4
    assert per_dt * dt / 2 <= 0.1 + 1e-9 < per_dt * dt or dt == 1.0


def test_a_step_that_could_not_be_checked_is_said():
    never = halved(1.0, lambda step: first_order(step, converged=False), 1e-9)
    assert "it could not be checked: compare with a smaller --dt" in never.line
    much = halved(1.0, lambda step: first_order(step, 1e3), 1e-9)
    assert much.dt == 2.0**-5 and "the last halving changed" in much.line
    assert halved(1.0, first_order, 0.6).dt == 1.0  # a grid that would be too large


def test_the_first_step_suits_the_data():
    regular = 0.3 * np.arange(11)
    assert first_step(regular, 0.0, 3.0) == pytest.approx(0.075)  # divides the gap
    assert first_step(0.3 * np.arange(1001), 0.0, 300.0) == pytest.approx(0.3)
    irregular = np.array([0.0, 0.1, 3.0, 9.0, 40.0])
    assert first_step(irregular, 0.0, 40.0) == 1.0
    assert first_step(np.array([2.0]), 0.0, 8.0) == 0.2


def test_a_step_is_found_for_a_model_and_data():
    """For a linear model the bound is the log evidence on the grid: it tells what halving changes."""
    model = gv.Model(gv.OrnsteinUhlenbeck(2.0), likelihood=gv.likelihoods.Gaussian(0.1))
    series = gv.TimeSeries([0.0, 1.0, 2.0, 3.0], [0.5, -0.4, 1.0, 0.2])
    found = chosen_step(model, series, None, None)
    one, other = (gv.infer(model, series, dt=step) for step in (found.dt, found.dt / 2))
    apart = np.abs(one.mean[one.node] - other.mean[other.node]) / other.std[other.node]
    assert apart.max() <= 0.1 and abs(one.elbo - other.elbo) <= 0.5
    assert f"dt = {found.dt:g}, since half of it" in found.line
    assert math.isclose(1.0 / found.dt, round(1.0 / found.dt))
