"""Other methods for the posterior, to compare with. None of them uses the library's variational inference.

Each takes a time series; those for SDEs take the same model as `girsanov.infer`.
"""

from girsanov.baselines.annealing import annealed_importance_sampling
from girsanov.baselines.exact import exact_smoother
from girsanov.baselines.gp import GPPosterior, gp_regression
from girsanov.baselines.kernels import (
    Constant,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Product,
    Sum,
    ornstein_uhlenbeck_kernel,
)
from girsanov.baselines.neural_sde import neural_sde
from girsanov.baselines.optimal_gaussian import optimal_gaussian
from girsanov.baselines.particle_smoother import particle_smoother
from girsanov.baselines.sparse_gp import SparseGPPosterior, sparse_gp_regression

__all__ = [
    "Constant",
    "GPPosterior",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Product",
    "SparseGPPosterior",
    "Sum",
    "annealed_importance_sampling",
    "exact_smoother",
    "gp_regression",
    "neural_sde",
    "optimal_gaussian",
    "ornstein_uhlenbeck_kernel",
    "particle_smoother",
    "sparse_gp_regression",
]
