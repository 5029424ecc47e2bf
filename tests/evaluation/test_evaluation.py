"""Splits of a series, scores over folds, grids of settings, cross-validation."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import assert_close

from girsanov import TimeSeries
from girsanov.evaluation import (
    Score,
    Split,
    block_folds,
    chunk_folds,
    cross_validate,
    random_folds,
    score,
    settings_grid,
)

SEEDS = st.integers(0, 2**32 - 1)
GAPS = st.lists(st.floats(0.01, 3.0), min_size=8, max_size=60)


def make_series(gaps: list[float], start: float = -2.0) -> TimeSeries:
    times = start + np.cumsum(gaps)
    return TimeSeries(times, np.stack([times, times**2], axis=1))


def assert_partition(series: TimeSeries, splits: list[Split], k: int) -> None:
    """Every observation is in exactly one test set, and in the training set of every other split."""
    assert len(splits) == k
    for part in splits:
        rows = np.concatenate([part.train.times, part.test.times])
        order = np.argsort(rows)
        np.testing.assert_array_equal(rows[order], series.times)
        values = np.concatenate([part.train.values, part.test.values])
        np.testing.assert_array_equal(values[order], series.values)
    np.testing.assert_array_equal(np.sort(np.concatenate([part.test.times for part in splits])), series.times)


@given(GAPS, st.integers(2, 8), SEEDS)
def test_random_folds(gaps, k, seed):
    series = make_series(gaps)
    splits = random_folds(series, k, seed=seed)
    assert_partition(series, splits, k)
    sizes = [len(part.test) for part in splits]
    assert max(sizes) - min(sizes) <= 1
    for one, again in zip(splits, random_folds(series, k, seed=seed), strict=True):
        np.testing.assert_array_equal(one.test.times, again.test.times)


@given(GAPS, st.integers(2, 8))
def test_block_folds(gaps, k):
    series = make_series(gaps)
    splits = block_folds(series, k)
    assert_partition(series, splits, k)
    sizes = [len(part.test) for part in splits]
    assert max(sizes) - min(sizes) <= 1
    np.testing.assert_array_equal(np.concatenate([part.test.times for part in splits]), series.times)


# Where in its chunk of time every observation lies, in hundredths of the chunk; some chunks have none.
CHUNKS = st.lists(st.lists(st.integers(1, 99), max_size=6, unique=True), min_size=4, max_size=12)


@given(CHUNKS, st.floats(0.5, 5.0), st.integers(2, 5), SEEDS)
def test_chunk_folds(chunks, duration, k, seed):
    placed = [(0, 0), *((i, place) for i, places in enumerate(chunks) for place in sorted(places))]
    chunk = np.array([i for i, _ in placed])  # counted from the first time
    times = -2.0 + duration * np.array([i + place / 100 for i, place in placed])
    series = TimeSeries(times, np.stack([times, times**2], axis=1))
    count = len(set(chunk))
    if count < k:
        with pytest.raises(ValueError, match=f"there are {count} chunks"):
            chunk_folds(series, k, duration, seed=seed)
        return
    splits = chunk_folds(series, k, duration, seed=seed)
    assert_partition(series, splits, k)
    held = [set(chunk[np.isin(series.times, part.test.times)]) for part in splits]
    assert sum(len(h) for h in held) == count, "a chunk is in two folds"
    assert max(map(len, held)) - min(map(len, held)) <= 1


def test_chunks_start_at_the_first_time_whatever_the_rounding():
    """With gaps of 0.1 and chunks of 0.3, three observations make a chunk, though 3 · 0.1 > 0.3 in floating point."""
    series = TimeSeries(0.1 * np.arange(30), np.arange(30.0))
    for part in chunk_folds(series, 5, 0.3, seed=1):
        rows = part.test.values[:, 0].astype(int)
        assert set(rows) == {3 * c + j for c in rows // 3 for j in range(3)}


def test_random_folds_depend_on_the_seed():
    series = make_series([1.0] * 50)
    a, b = (random_folds(series, 5, seed=s)[0].test.times for s in (0, 1))
    assert not np.array_equal(a, b)


@pytest.mark.parametrize(
    "split, message",
    [
        (lambda s: random_folds(s, 1, seed=0), "k is 1 and there are 10 observations; choose k from 2 to 10"),
        (lambda s: block_folds(s, 11), "k is 11 and there are 10 observations"),
        (lambda s: block_folds(s, cast(Any, 2.5)), "k is 2.5; .* whole number"),
        (lambda s: random_folds(s, 2, seed=-1), "seed is -1"),
        (lambda s: random_folds(s, 2, seed=cast(Any, None)), "seed is None"),
        (lambda s: chunk_folds(s, 3, 5.0, seed=0), "k is 3 and there are 2 chunks of duration 5"),
        (lambda s: chunk_folds(s, 2, 0.0, seed=0), "duration is 0.0"),
        (lambda s: chunk_folds(s, 2, float("nan"), seed=0), "duration is nan"),
    ],
)
def test_bad_folds(as_a_user, split, message):
    with pytest.raises(ValueError, match=message):
        split(TimeSeries(np.arange(10.0), np.arange(10.0)))


def test_fold_without_a_value():
    values = np.where(np.arange(10) < 5, np.nan, 1.0)
    with pytest.raises(ValueError, match="test set of fold 0 has only missing values"):
        block_folds(TimeSeries(np.arange(10.0), values), 2)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20))
def test_score_is_numpys_population_standard_deviation(values):
    found = score(values)
    mean = sum(values) / len(values)
    assert_close(found.mean, mean, "exact", size=values)
    assert_close(found.sd**2, sum((v - mean) ** 2 for v in values) / len(values), "exact", size=np.square(values))


def test_score_text():
    assert str(Score(0.3768, 0.2391)) == "0.377 ± 0.239"
    assert f"{score([1.0, 3.0])}" == "2.000 ± 1.000"


@pytest.mark.parametrize(
    "values, message",
    [
        ([], "empty"),
        ([1.0, float("nan")], r"values\[1\] is nan"),
        ([float("inf")], r"values\[0\] is inf"),
        ([1.0, None], r"values\[1\] is None"),
        ([[1.0], [2.0]], r"shape \(n,\)"),
    ],
)
def test_bad_score(as_a_user, values, message):
    with pytest.raises(ValueError, match=message):
        score(values)


def test_settings_grid():
    assert settings_grid(rho=[0.1, 0.5], omega=(1, 2, 3), name=["a"]) == [
        {"rho": rho, "omega": omega, "name": "a"} for rho in (0.1, 0.5) for omega in (1, 2, 3)
    ]
    assert settings_grid() == [{}]
    assert settings_grid(rho=np.array([0.5, 1.0])) == [{"rho": 0.5}, {"rho": 1.0}]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"rho": 0.5}, r"rho is 0.5; .*\[0.5\]"),
        ({"rho": "high"}, "rho is 'high'"),
        ({"a": [1], "rho": []}, "rho has no"),
    ],
)
def test_bad_grid(as_a_user, options, message):
    with pytest.raises(ValueError, match=message):
        settings_grid(**options)


class Constant:
    """Predicts the mean of what it was fitted to."""

    def __init__(self, train: TimeSeries):
        self.level = float(train.values.mean())

    def rmse(self, test: TimeSeries) -> float:
        return float(np.sqrt(np.mean((test.values - self.level) ** 2)))

    def nlpd(self, test: TimeSeries) -> float:
        return float(np.mean(0.5 * (test.values - self.level) ** 2 + 0.5 * np.log(2 * np.pi)))

    def broken(self, test: TimeSeries) -> float:
        return float("nan") if test.times[0] > 0 else 1.0


def test_cross_validate():
    t = np.arange(12.0)
    splits = block_folds(TimeSeries(t, t), 3)
    found = cross_validate(Constant, splits)
    assert list(found) == ["nlpd", "rmse"]
    errors = []
    for rows in np.split(t, 3):
        errors.append(np.sqrt(np.mean((rows - np.setdiff1d(t, rows).mean()) ** 2)))
    assert_close(found["rmse"].mean, np.mean(errors), "exact")
    assert_close(found["rmse"].sd, np.std(errors), "exact")
    assert list(cross_validate(Constant, splits, metrics=["rmse"])) == ["rmse"]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"metrics": ["broken"]}, r"broken\[1\] is nan"),
        ({"metrics": ["absent"]}, "Constant on split 0, which has no method 'absent'"),
        ({"metrics": "rmse"}, "metrics is 'rmse'"),
        ({"splits": []}, "there are no splits"),
    ],
)
def test_bad_cross_validation(options, message):
    splits = block_folds(TimeSeries(np.arange(12.0), np.arange(12.0)), 3)
    with pytest.raises(ValueError, match=message):
        cross_validate(Constant, **({"splits": splits} | options))
