"""Cross-validation: ways to split a series, scores over the folds, and grids of settings."""

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from girsanov.data.grid import rounding
from girsanov.data.series import TimeSeries


class Split(NamedTuple):
    """A split of a series.

    Attributes:
        train: the observations to fit a model to.
        test: the held-out observations to score the fit by.
    """

    train: TimeSeries
    test: TimeSeries


class Score(NamedTuple):
    """A score over folds.

    Attributes:
        mean: the mean over the folds.
        sd: the population standard deviation over the folds (with divisor n, not n − 1).
    """

    mean: float
    sd: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.sd:.3f}"


def random_folds(series: TimeSeries, k: int, *, seed: int) -> list[Split]:
    """Split a series k times; the test sets are random, disjoint and together contain all observations.

    Args:
        series: the observations.
        k: number of splits, at least 2. The sizes of the test sets differ by at most one.
        seed: seed of the random numbers, a whole number ≥ 0.

    Returns:
        The k splits.
    """
    k = _fold_count(k, len(series), "observations")
    order = np.random.default_rng(_seed(seed)).permutation(len(series))
    fold = np.empty(len(series), dtype=int)
    fold[order] = np.arange(len(series)) % k
    return _splits(series, fold, k)


def block_folds(series: TimeSeries, k: int) -> list[Split]:
    """Split a series k times; the test sets are contiguous blocks of observations.

    Args:
        series: the observations.
        k: number of splits, at least 2. The sizes of the test sets differ by at most one.

    Returns:
        The k splits, in the order of time.
    """
    k = _fold_count(k, len(series), "observations")
    return _splits(series, np.arange(len(series)) * k // len(series), k)


def chunk_folds(series: TimeSeries, k: int, duration: float, *, seed: int) -> list[Split]:
    """Split a series k times; the test sets are random sets of chunks of time, each of which is held out as a whole.

    Args:
        series: the observations.
        k: number of splits, at least 2. The numbers of chunks in the test sets differ by at most one.
        duration: length of a chunk, in the time unit of the series. Chunks are counted from the first observation;
            those without an observation are left out.
        seed: seed of the random numbers, a whole number ≥ 0.

    Returns:
        The k splits.
    """
    if not (math.isfinite(duration) and duration > 0):
        raise ValueError(f"duration is {duration}; give a positive length of time")
    # A time that equals the start of a chunk up to rounding belongs to that chunk, hence the slack.
    slack = max(1e-9, rounding(series.times) / duration)
    place = np.floor((series.times - series.times[0]) / duration + slack)
    chunks, chunk_of = np.unique(place, return_inverse=True)
    k = _fold_count(k, len(chunks), f"chunks of duration {duration:g} with an observation")
    fold = np.empty(len(chunks), dtype=int)
    fold[np.random.default_rng(_seed(seed)).permutation(len(chunks))] = np.arange(len(chunks)) % k
    return _splits(series, fold[chunk_of], k)


def score(values: Iterable[float]) -> Score:
    """Return the mean and the population standard deviation of some values.

    Args:
        values: one finite number for each fold.

    Returns:
        The score, with `mean` and `sd`.
    """
    return _score(list(values), "values")


def settings_grid(**options: Sequence[Any] | np.ndarray) -> list[dict[str, Any]]:
    """Return every combination of some options.

    Args:
        **options: for each option, a list of the values to try.

    Returns:
        A dictionary for each combination; the last option varies fastest.

    >>> settings_grid(rho=[0.1, 0.5], omega=[1, 2])[1]
    {'rho': 0.1, 'omega': 2}
    """
    for name, choices in options.items():
        if isinstance(choices, str) or not isinstance(choices, Sequence | np.ndarray):
            raise ValueError(f"{name} is {choices!r}; give a list of the values to try, [{choices!r}] for one")
        if len(choices) == 0:
            raise ValueError(f"{name} has no values to try; give at least one or leave it out")
    choices = [c.tolist() if isinstance(c, np.ndarray) else list(c) for c in options.values()]
    return [dict(zip(options, combination, strict=True)) for combination in itertools.product(*choices)]


def cross_validate(
    fit: Callable[[TimeSeries], Any], splits: Sequence[Split], *, metrics: Sequence[str] = ("nlpd", "rmse")
) -> dict[str, Score]:
    """Fit on every training set, score on its test set, and summarise the scores over the folds.

    Args:
        fit: a function of the training series. It returns an object that has the metrics as methods of the test series,
            such as a posterior, with `nlpd(test)` and `rmse(test)`.
        splits: the splits, from `random_folds`, `block_folds` or `chunk_folds`.
        metrics: names of the metrics; default ("nlpd", "rmse").

    Returns:
        For each metric, the mean and standard deviation over the folds.
    """
    if len(splits) == 0:
        raise ValueError("there are no splits; make some with random_folds, block_folds or chunk_folds")
    if isinstance(metrics, str) or len(metrics) == 0:
        raise ValueError(f"metrics is {metrics!r}; give a list of names such as ['nlpd', 'rmse']")
    values: dict[str, list[Any]] = {metric: [] for metric in metrics}
    for i, (train, test) in enumerate(splits):
        estimate = fit(train)
        for metric in metrics:
            measure = getattr(estimate, metric, None)
            if not callable(measure):
                raise ValueError(
                    f"fit returned a {type(estimate).__name__} on split {i}, which has no method {metric!r}; return an "
                    "estimate such as a posterior"
                )
            values[metric].append(measure(test))
    return {metric: _score(found, metric) for metric, found in values.items()}


def _score(values: list[Any], what: str) -> Score:
    if not values:
        raise ValueError(f"{what} is empty: there is nothing to score")
    numbers = np.array(values, dtype=np.float64)
    if numbers.ndim != 1:
        raise ValueError(f"{what} must have shape (n,), one number for each fold, got {numbers.shape}")
    if not np.isfinite(numbers).all():
        i = int(np.argmin(np.isfinite(numbers)))
        raise ValueError(f"{what}[{i}] is {values[i]}; a score over folds needs a finite number from every fold")
    return Score(float(numbers.mean()), float(numbers.std(ddof=0)))


def _fold_count(k: int, n: int, things: str) -> int:
    try:
        count = operator.index(k)
    except TypeError:
        raise ValueError(f"k is {k!r}; the number of folds must be a whole number") from None
    if not 2 <= count <= n:
        raise ValueError(f"k is {count} and there are {n} {things}; choose k from 2 to {n}, or split more finely")
    return count


def _seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(
            f"seed is {seed!r}; give a whole number that is not negative, so that the split can be repeated"
        )
    return int(seed)


def _splits(series: TimeSeries, fold: np.ndarray, k: int) -> list[Split]:
    """Return the k splits in which the observations with `fold == i` are the test set of split i."""
    seen = np.asarray(series.observed.any(axis=1))
    splits = []
    for i in range(k):
        test = np.equal(fold, i)
        for rows, name in ((test, "test"), (~test, "training")):
            if not seen[rows].any():
                raise ValueError(f"the {name} set of fold {i} has only missing values; drop rows without a value first")
        splits.append(Split(series.subset(~test), series.subset(test)))
    return splits
