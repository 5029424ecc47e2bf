"""The Gaussian with the moments of a posterior: the best that any Gaussian approximation could hope for."""

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

    It minimises KL(p‖q) over all of them, where inference minimises KL(q‖p).
    """

    model: Model
    series: TimeSeries
    times: np.ndarray
    mean: np.ndarray
    cov: np.ndarray
    lag_cov: np.ndarray

    def marginals(self, times: Any) -> Marginals:
        """At the nodes their own; between them by the Brownian bridge, which neglects the drift within a step."""
        t, M, d = self._inside(times), len(self.times) - 1, self.model.dim
        moments = Moments(*(np.moveaxis(a, 0, -1) for a in (self.mean, self.cov, self.lag_cov)))
        still = Linearisation(np.zeros((d, d, M)), np.zeros((d, M)))
        return Marginals(*bridge(moments, still, self.model.diffusion, self.times, t))


def optimal_gaussian(estimate: Any) -> OptimalGaussian:
    """The Gaussian fit to what `particle_smoother` or `exact_smoother` returned."""
    for name in ("mean", "cov", "lag_cov"):
        if not hasattr(estimate, name):
            raise ValueError(
                f"an optimal Gaussian needs the {name} of a particle or exact posterior, which "
                f"{type(estimate).__name__} does not have"
            )
    parts = (np.asarray(getattr(estimate, k)) for k in ("mean", "cov", "lag_cov"))
    return OptimalGaussian(estimate.model, estimate.series, estimate.times, *parts)
