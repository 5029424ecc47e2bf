"""`Profile`: the bound along one parameter, the others at their best, and the interval that follows from it."""

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Profile:
    """The profile of the bound along one number among the parameters, the result of `Fit.profile`.

    Attributes:
        name: the entry, as in `fit.standard_errors`.
        values: its values, increasing, (K,).
        objective: the bound, plus the log density of the priors, with all other parameters at their best, (K,).
        others: the values of all other entries there, by name, each of shape (K,).
        estimate: the fitted value.
        standard_error: its standard error by the curvature at the maximum; NaN where there is none.
        level: probability that the interval is meant to hold.
        drop: by how many nats the profile falls below its maximum at the ends of the interval.
        interval: its ends. An end that the data do not give is that of the parameter's range.
        message: a sentence on what is not as it should be; empty if nothing is.
    """

    name: str
    values: np.ndarray
    objective: np.ndarray
    others: dict[str, np.ndarray]
    estimate: float
    standard_error: float
    level: float
    drop: float
    interval: tuple[float, float]
    message: str

    def plot(self, *, ax: Any = None) -> Any:
        """Plot the profile, the interval, and the parabola that the standard error stands for.

        Args:
            ax: matplotlib axes to draw in; by default a new figure is made.

        Returns:
            The matplotlib axes.
        """
        from girsanov.plotting import plot_profile

        return plot_profile(self, ax=ax)

    def __repr__(self) -> str:
        low, high = self.interval
        return (
            f"Profile({self.name} = {self.estimate:.6g}, {100.0 * self.level:g} % in [{low:.6g}, {high:.6g}]"
            + (f"; {self.message}" if self.message else "")
            + ")"
        )
