"""Observation models p(y | z), under their public name."""

from girsanov.model.likelihoods import Bernoulli, Elementwise, Gaussian, Likelihood, Poisson, StudentT

__all__ = ["Bernoulli", "Elementwise", "Gaussian", "Likelihood", "Poisson", "StudentT"]
