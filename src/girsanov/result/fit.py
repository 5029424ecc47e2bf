"""The result of learning."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from girsanov.model.model import Model
from girsanov.result.posterior import Posterior
from girsanov.result.saving import save_fit


@dataclasses.dataclass(frozen=True)
class FitHistory:
    """One entry an outer iteration, the first is the start.

    - parameters: values of every trainable parameter by path, stacked.
    - elbo: evidence bound after the E-step, in nats (with priors: plus their log density, in `objective`).
    - e_steps: E-steps so far; passes: evaluations of the bound so far; seconds: since the start.
    """

    parameters: dict[str, np.ndarray]
    elbo: np.ndarray
    objective: np.ndarray
    e_steps: np.ndarray
    passes: np.ndarray
    seconds: np.ndarray

    def __len__(self) -> int:
        return len(self.elbo)


@dataclasses.dataclass(frozen=True)
class Fit:
    """A fitted model and its posterior.

    - standard_errors: from the curvature of the bound at its maximum, by parameter entry; None where that curvature is
      not positive definite or was not asked for. They describe the bound, not the sampling distribution of the
      estimate: see the documentation.
    - status, message: "converged", "max_iterations", "flat" (the data cannot tell a parameter), "stalled", or
      "ill_conditioned" (the posterior at the parameters could not be computed to enough digits).
    - restarts: every restart's fit, best first, where several were asked for.
    """

    model: Model
    posterior: Posterior
    history: FitHistory
    trainable: tuple[str, ...]
    status: str
    message: str
    standard_errors: dict[str, float] | None = None
    covariance: np.ndarray | None = None
    restarts: tuple["Fit", ...] = ()

    @property
    def elbo(self) -> float:
        return self.posterior.elbo

    @property
    def converged(self) -> bool:
        return self.status == "converged"

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """The fitted values by path."""
        return {path: np.asarray(values[-1]) for path, values in self.history.parameters.items()}

    def summary(self) -> str:
        """A table of the fitted values and their standard errors."""
        lines = [f"{'parameter':<28}{'value':>12}{'std. error':>12}"]
        errors = self.standard_errors or {}
        for path, value in self.parameters.items():
            for index, v in np.ndenumerate(value):
                name = path + (str(list(index)) if index else "")
                # A matrix with one error is a multiple of the identity: what stands beside its diagonal is fixed.
                fixed = len(index) == 2 and index[0] != index[1]
                error = errors.get(name, None if fixed else errors.get(path))
                lines.append(f"{name:<28}{v:>12.5g}" + (f"{error:>12.3g}" if error is not None else f"{'–':>12}"))
        lines.append(f"evidence bound {self.elbo:.6g} nats; {self.status} after {len(self.history) - 1} iterations")
        return "\n".join(lines)

    def plot(self) -> Any:
        """Parameters and evidence bound against iterations; returns the matplotlib figure."""
        from girsanov.plotting import plot_fit

        return plot_fit(self)

    def save(self, path: str | Path) -> Path:
        """Write a versioned file that `gv.load` reads back exactly; `gv.learn(..., resume=fit)` goes on from it."""
        return save_fit(self, path)

    def __repr__(self) -> str:
        return f"Fit(elbo={self.elbo:.6g}, {self.status} after {len(self.history) - 1} iterations, " + (
            ", ".join(f"{k}={np.array2string(v, precision=4)}" for k, v in self.parameters.items() if v.size < 5) + ")"
        )
