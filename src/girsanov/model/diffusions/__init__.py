"""The noise of the SDE."""

from girsanov.model.diffusions.constant import FORMS, Diffusion, as_matrix

__all__ = ["FORMS", "Diffusion", "as_matrix"]
