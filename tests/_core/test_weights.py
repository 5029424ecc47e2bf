"""Averages of weights given by their logarithms."""

import numpy as np
import pytest
from support import assert_close

from girsanov._core.weights import log_mean, pareto_smoothed


def test_the_mean_of_weights_far_beyond_the_range_of_numbers():
    """Shifted by −5000 nats; the error by the delta method is that of the mean as a share of the mean."""
    w = np.array([1.0, 2.0, 4.0, 0.0])
    with np.errstate(divide="ignore"):
        found = log_mean(np.log(w) - 5000.0)
    assert_close(found.value + 5000.0, np.log(7.0 / 4.0), "exact", size=5000.0)
    assert_close(found.error, np.std(w, ddof=1) / 2.0 / (7.0 / 4.0), "exact")
    assert_close(found.effective, 49.0 / 21.0, "exact")


def test_one_weight_has_no_error():
    found = log_mean(np.array([3.0]))
    assert found.value == 3.0 and np.isnan(found.error) and found.effective == 1.0


@pytest.mark.parametrize("k", [0.2, 0.5, 1.0, 3.0])
def test_the_shape_is_that_of_the_upper_tail(k):
    """Weights exp(k E) with exponential E have a Pareto tail of shape k; one over them have a bounded one."""
    logs = k * np.random.default_rng(0).exponential(size=20_000)
    smoothed, shape = pareto_smoothed(logs - 3000.0)
    # The standard error of the shape is (1 + k)/√n with the n = 3√20000 = 424 weights of the tail.
    assert abs(shape - k) < 4.0 * (1.0 + k) / np.sqrt(424.0)
    below = np.sort(smoothed)[:-500] - np.sort(logs)[:-500]  # a constant factor changes nothing
    assert_close(below, np.full_like(below, below[0]), "roundtrip", size=1.0 + abs(below[0]))
    assert pareto_smoothed(-logs)[1] < 0.1


def test_tails_that_are_constant_or_beyond_numbers():
    assert pareto_smoothed(np.full(500, -7.0))[1] == 0.0
    assert pareto_smoothed(np.linspace(0.0, 1e5, 500))[1] == np.inf
    logs = np.concatenate([np.zeros(400), np.full(100, -np.inf)])
    assert pareto_smoothed(logs)[1] == 0.0
