"""log p(y | z) of the likelihoods, in SciPy."""

from typing import Any

import numpy as np
from scipy import special, stats

Numbers = dict[str, Any]


def log_density(kind: str, numbers: Numbers, y: Any, z: Any) -> np.ndarray:
    """Entry by entry; `numbers` are the likelihood's parameters by their names in the library."""
    y, z = np.asarray(y, dtype=np.float64), np.asarray(z, dtype=np.float64)
    if kind == "Gaussian":
        return stats.norm.logpdf(y, z, np.sqrt(numbers["variance"]))
    if kind == "StudentT":
        return stats.t.logpdf((y - z) / numbers["scale"], numbers["df"]) - np.log(numbers["scale"])
    if kind == "Poisson":
        log_rate = z + np.log(numbers["exposure"])
        with np.errstate(over="ignore"):
            return y * log_rate - np.exp(log_rate) - special.gammaln(y + 1)
    return -np.logaddexp(0.0, np.where(y > 0.5, -z, z))  # Bernoulli


def draw(rng: np.random.Generator, kind: str, numbers: Numbers, z: np.ndarray) -> np.ndarray:
    if kind == "Gaussian":
        return z + np.sqrt(numbers["variance"]) * rng.normal(size=z.shape)
    if kind == "StudentT":
        return z + numbers["scale"] * rng.standard_t(numbers["df"], size=z.shape)
    if kind == "Poisson":
        return rng.poisson(np.minimum(np.exp(np.minimum(z, 30.0)) * numbers["exposure"], 1e9)).astype(float)
    return (rng.random(z.shape) < special.expit(z)).astype(float)
