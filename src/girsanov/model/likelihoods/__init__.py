"""Observation models p(y | z), where z = H x is the emission of the state x.

The methods of a likelihood take a single observation: y of shape (D,), and a mask `observed` of the entries that are
not missing. A missing entry of y holds an arbitrary finite number, which must not influence the result.

A likelihood is one final class, named in `LIKELIHOODS`.
"""

from girsanov.model.likelihoods.base import Elementwise, Likelihood
from girsanov.model.likelihoods.censored import Censored
from girsanov.model.likelihoods.counts import Bernoulli, Binomial, NegativeBinomial, Ordinal, Poisson
from girsanov.model.likelihoods.external import FromDistribution
from girsanov.model.likelihoods.gaussian import Gaussian
from girsanov.model.likelihoods.joint import Joint, as_likelihood
from girsanov.model.likelihoods.positive import Gamma, LogNormal, StochasticVolatility
from girsanov.model.likelihoods.student import StudentT

LIKELIHOODS: tuple[type[Likelihood], ...] = (
    Gaussian,
    StudentT,
    Censored,
    Poisson,
    NegativeBinomial,
    Binomial,
    Bernoulli,
    Ordinal,
    Gamma,
    LogNormal,
    StochasticVolatility,
    FromDistribution,
    Joint,
)

__all__ = [
    "LIKELIHOODS",
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
    "as_likelihood",
]
