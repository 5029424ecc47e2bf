"""Other ways to the posterior, to compare with: each takes the same model and series, none uses the library's own."""

from girsanov.baselines.exact import exact_smoother

__all__ = ["exact_smoother"]
