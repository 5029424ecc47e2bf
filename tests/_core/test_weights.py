"""Averages of weights given by their logarithms."""

import numpy as np
from support import assert_close

from girsanov._core.weights import log_mean


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
