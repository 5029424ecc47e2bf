"""P(Y < y | z) and P(Y ≤ y | z) of one output under every likelihood, on the host in NumPy.

From these come the quantiles of predictions and the probability integral transforms of observations. The two differ
where a value has a probability of its own: for counts, and at detection limits.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from girsanov._core.precision import float64
from girsanov.model.likelihoods import (
    Bernoulli,
    Binomial,
    Censored,
    FromDistribution,
    Gamma,
    Gaussian,
    LogNormal,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StochasticVolatility,
    StudentT,
)

_DISCRETE = (Poisson, Bernoulli, NegativeBinomial, Binomial, Ordinal)
_SEED = 0  # of the draws that stand for a law without a known distribution function


class Law(NamedTuple):
    """The law of one output given z.

    Attributes:
        below: P(Y < y | z), a function of arrays y, z and the known error of y (zero where there is none).
        upto: P(Y ≤ y | z) likewise.
        discrete: whether all values are whole numbers.
        shift: where y is z plus Gaussian noise, a function from errors to the variance of this noise; else None.
        link: where a function of y is z plus Gaussian noise, that function; else None.
    """

    below: Callable
    upto: Callable
    discrete: bool = False
    shift: Callable | None = None
    link: Callable | None = None


def law_of(likelihood: Any, output: int, count: int) -> Law:
    """Return the law of one of `count` outputs.

    Args:
        likelihood: the likelihood.
        output: number of the output.
        count: D, the number of outputs.
    """
    parts = getattr(likelihood, "parts", None)
    if parts is not None:
        return law_of(parts[output], 0, 1)
    if isinstance(likelihood, Gaussian | LogNormal):
        return _gaussian(likelihood, output, count)
    if isinstance(likelihood, Censored):
        return _censored(likelihood, output)
    if type(likelihood) in _KNOWN:
        make = _KNOWN[type(likelihood)](likelihood, output)
        discrete = isinstance(likelihood, _DISCRETE)
        if discrete:  # P(Y < y) is P(Y ≤ the whole number before y)
            return Law(lambda y, z, e: make(np.ceil(y) - 1.0, z), lambda y, z, e: make(np.floor(y), z), True)
        return Law(lambda y, z, e: make(y, z), lambda y, z, e: make(y, z))
    return _sampled(likelihood, output, count)


def _at(value: Any, output: int) -> Any:
    a = np.asarray(value)
    return a[output] if a.ndim else a


def _gaussian(likelihood: Any, output: int, count: int) -> Law:
    logs = isinstance(likelihood, LogNormal)
    v = np.asarray(0.0 if likelihood.variance is None else likelihood.variance)
    R = v[output, output] if v.ndim == 2 else _at(v, output)

    def link(y):
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(y > 0.0, np.log(y), -np.inf) if logs else y

    def upto(y, z, error):
        return normal_cdf(link(y), z, R + error**2)

    def below(y, z, error):
        return normal_cdf(link(y), z, R + error**2, strictly=True)

    return Law(below, upto, shift=lambda error: R + error**2, link=link)


def normal_cdf(y: Any, mean: Any, variance: Any, strictly: bool = False) -> np.ndarray:
    """Return P(Y ≤ y), or P(Y < y), of a normal law; a variance of zero is a law of one value."""
    from scipy.special import ndtr

    sd = np.sqrt(variance)
    step = (mean < y) if strictly else (mean <= y)
    return np.where(sd > 0.0, ndtr((y - mean) / np.where(sd > 0.0, sd, 1.0)), step)


def _censored(likelihood: Censored, output: int) -> Law:
    R, low, high = _at(likelihood.variance, output), likelihood.low, likelihood.high

    def upto(y, z, error):
        inside = normal_cdf(y, z, R + error**2)
        return np.where(y < low, 0.0, np.where(y >= high, 1.0, inside))

    def below(y, z, error):
        inside = normal_cdf(y, z, R + error**2, strictly=True)
        return np.where(y <= low, 0.0, np.where(y > high, 1.0, inside))

    return Law(below, upto, shift=lambda error: R + error**2)


def _poisson(likelihood: Poisson, output: int) -> Callable:
    from scipy.special import pdtr

    exposure = _at(likelihood.exposure, output)
    return lambda k, z: np.where(k < 0.0, 0.0, pdtr(np.maximum(k, 0.0), np.exp(z) * exposure))


def _negative_binomial(likelihood: NegativeBinomial, output: int) -> Callable:
    from scipy.special import betainc

    r = _at(likelihood.dispersion, output)  # P(Y ≤ k) = I_p(r, k + 1) with p = r/(r + μ)
    return lambda k, z: np.where(k < 0.0, 0.0, betainc(r, np.maximum(k, 0.0) + 1.0, r / (r + np.exp(z))))


def _binomial(likelihood: Any, output: int) -> Callable:
    from scipy.special import bdtr, expit

    n = likelihood.trials if isinstance(likelihood, Binomial) else 1

    def upto(k, z):
        inside = bdtr(np.clip(k, 0, n - 1), n, expit(z))
        return np.where(k < 0.0, 0.0, np.where(k >= n, 1.0, inside))

    return upto


def _ordinal(likelihood: Ordinal, output: int) -> Callable:
    from scipy.special import expit

    ends = np.concatenate([[-np.inf], np.asarray(likelihood.cutpoints), [np.inf]])
    return lambda k, z: expit(ends[np.clip(k + 1, 0, len(ends) - 1).astype(int)] - z)


def _gamma(likelihood: Gamma, output: int) -> Callable:
    from scipy.special import gammainc

    shape = _at(likelihood.shape, output)
    return lambda y, z: gammainc(shape, shape * np.maximum(y, 0.0) * np.exp(-z))


def _volatility(likelihood: StochasticVolatility, output: int) -> Callable:
    return lambda y, z: normal_cdf(y, 0.0, np.exp(z))


def _student(likelihood: StudentT, output: int) -> Callable:
    from scipy.special import stdtr

    scale, df = _at(likelihood.scale, output), float(np.asarray(likelihood.df))
    return lambda y, z: stdtr(df, (y - z) / scale)


_KNOWN: dict[type, Callable] = {
    Poisson: _poisson,
    NegativeBinomial: _negative_binomial,
    Binomial: _binomial,
    Bernoulli: _binomial,
    Ordinal: _ordinal,
    Gamma: _gamma,
    StochasticVolatility: _volatility,
    StudentT: _student,
}


def _sampled(likelihood: Any, output: int, count: int) -> Law:
    """Return the law of a likelihood without a known distribution function, from one draw of y for every z."""
    kept: dict[tuple, np.ndarray] = {}

    def draws(z):
        key = (z.shape, z.tobytes())
        if key not in kept:
            kept.clear()
            kept[key] = _draws(likelihood, np.ascontiguousarray(z), output, count)
        return kept[key]

    # The other outputs of a likelihood of one's own may share its noise, but not the law of this one.
    return Law(lambda y, z, e: (draws(z) < y) * 1.0, lambda y, z, e: (draws(z) <= y) * 1.0, _whole(likelihood))


def _whole(likelihood: Any) -> bool:
    """Return whether a numpyro distribution has whole numbers as values."""
    if not isinstance(likelihood, FromDistribution):
        return False
    return bool(likelihood.fn(np.zeros(1)).support.is_discrete)


@float64
def _draws(likelihood: Any, z: np.ndarray, output: int, count: int) -> np.ndarray:
    flat = np.zeros((z.size, count))
    flat[:, output] = z.ravel()
    keys = jax.random.split(jax.random.key(_SEED), z.size)
    return np.asarray(jax.vmap(likelihood.sample)(keys, flat))[:, output].reshape(z.shape)
