"""Other ways to the posterior, to compare with: each takes the same model and series, none uses the library's own."""

from girsanov.baselines.exact import exact_smoother
from girsanov.baselines.particle_smoother import particle_smoother

__all__ = ["exact_smoother", "particle_smoother"]
