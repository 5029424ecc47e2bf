"""Observation models p(y | z), under their public name."""

from girsanov.model.likelihoods import (
    Bernoulli,
    Binomial,
    Censored,
    Elementwise,
    FromDistribution,
    Gamma,
    Gaussian,
    Joint,
    Likelihood,
    LogNormal,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StochasticVolatility,
    StudentT,
)

__all__ = [
    "Bernoulli",
    "Binomial",
    "Censored",
    "Elementwise",
    "FromDistribution",
    "Gamma",
    "Gaussian",
    "Joint",
    "Likelihood",
    "LogNormal",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "StochasticVolatility",
    "StudentT",
]
