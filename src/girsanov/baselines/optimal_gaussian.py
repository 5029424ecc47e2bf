"""The Gaussian Markov chain with the moments of a posterior, with which Gaussian approximations can be compared."""

import dataclasses
from typing import Any

import numpy as np

from girsanov.chain.bridge import bridge
from girsanov.chain.linear_sde import Linearisation
from girsanov.chain.moments import Moments
from girsanov.data.series import TimeSeries
from girsanov.model.estimate import Marginals, PathEstimate
from girsanov.model.model import Model


@dataclasses.dataclass(frozen=True, repr=False)
class OptimalGaussian(PathEstimate):
    """A Gaussian Markov chain with the means, covariances and lag-one covariances of another estimate.

    It minimises KL(p‖q) over all Gaussian Markov chains q, where p is the posterior; variational inference minimises
    KL(q‖p) instead.

    Attributes:
        model: the model.
        series: the observations.
        times: times of the nodes, shape (N,).
        mean: means at the nodes, shape (N, d).
        cov: covariances at the nodes, shape (N, d, d).
        lag_cov: lag-one covariances Cov(x_{m+1}, x_m), shape (N − 1, d, d).
    """

    model: Model
    series: TimeSeries
    times: np.ndarray
    mean: np.ndarray
    cov: np.ndarray
    lag_cov: np.ndarray

    def marginals(self, times: Any) -> Marginals:
        """Return mean and covariance of the state at any times inside the horizon.

        Args:
            times: times or dates from the first to the last node, shape (n,) or a scalar.

        Returns:
            Means of shape (n, d) and covariances of shape (n, d, d). Between nodes they are those of a Brownian
            bridge, which neglects the drift within a step.
        """
        t, M, d = self._inside(times), len(self.times) - 1, self.model.dim
        moments = Moments(*(np.moveaxis(a, 0, -1) for a in (self.mean, self.cov, self.lag_cov)))
        still = Linearisation(np.zeros((d, d, M)), np.zeros((d, M)))
        return Marginals(*bridge(moments, still, self.model.noise.Q, self.times, t))


def optimal_gaussian(estimate: Any) -> OptimalGaussian:
    """Return the Gaussian Markov chain with the moments of a posterior.

    Args:
        estimate: the result of `particle_smoother` or `exact_smoother`, or any estimate with `mean`, `cov` and
            `lag_cov`.

    Returns:
        The Gaussian Markov chain on the same nodes.
    """
    for name in ("mean", "cov", "lag_cov"):
        if not hasattr(estimate, name):
            raise ValueError(
                f"an optimal Gaussian needs the {name} of a particle or exact posterior, which "
                f"{type(estimate).__name__} does not have"
            )
    if estimate.model.latent is not estimate.model:
        raise ValueError(
            "an optimal Gaussian is for models with constant noise; the noise of this one depends on the state: "
            "compare with the particle or exact posterior itself"
        )
    parts = (np.asarray(getattr(estimate, k)) for k in ("mean", "cov", "lag_cov"))
    return OptimalGaussian(estimate.model, estimate.series, estimate.times, *parts)
