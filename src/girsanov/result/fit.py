"""`Fit`, the result of `gv.learn`, and its history."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from girsanov.model.model import Model
from girsanov.result.directions import Direction, table
from girsanov.result.evidence import Evidence
from girsanov.result.posterior import Posterior
from girsanov.result.profile import Profile
from girsanov.result.saving import save_fit


@dataclasses.dataclass(frozen=True)
class FitHistory:
    """The history of learning: one entry for the start and one for each outer iteration.

    Attributes:
        parameters: values of every trainable parameter, by its path, stacked along the first axis.
        elbo: evidence bound after the E-step, in nats.
        objective: what was maximised: the bound, or with the objectives "exact" and "particles" the log evidence, plus
            the log density of the priors.
        e_steps: number of E-steps so far.
        passes: number of evaluations of the bound so far.
        seconds: time since the start of learning.
    """

    parameters: dict[str, np.ndarray]
    elbo: np.ndarray
    objective: np.ndarray
    e_steps: np.ndarray
    passes: np.ndarray
    seconds: np.ndarray

    def __len__(self) -> int:
        """Number of entries: the outer iterations and the start."""
        return len(self.elbo)


def parameter_lines(parameters: Mapping[str, np.ndarray], errors: Mapping[str, float] | None) -> list[str]:
    """Return the lines of a table of values and their standard errors, the header first."""
    lines, errors = [f"{'parameter':<28}{'value':>12}{'std. error':>12}"], errors or {}
    for path, value in parameters.items():
        for index, v in np.ndenumerate(value):
            name = path + (str(list(index)) if index else "")
            # A matrix with a single standard error is a multiple of the identity; its other entries are fixed.
            fixed = len(index) == 2 and index[0] != index[1]
            error = errors.get(name, None if fixed else errors.get(path))
            lines.append(f"{name:<28}{v:>12.5g}" + (f"{error:>12.3g}" if error is not None else f"{'–':>12}"))
    return lines


@dataclasses.dataclass(frozen=True)
class Fit:
    """A fitted model and its posterior, the result of `gv.learn`.

    Attributes:
        model: the model with the fitted parameters.
        posterior: the posterior over the path at these parameters.
        history: values of the parameters and the bound, by iteration.
        trainable: paths of the parameters that were learnt.
        status: "converged" (at a maximum, as far as could be checked), "max_iterations", "stalled",
            "flat" (the data do not determine a parameter), "edge" (a parameter runs to the end of its range), "saddle",
            "better_start_found", "ill_conditioned" (rounding spoils the posterior at the fitted parameters),
            "quadrature" (its rule is not accurate enough there), "boundary", or "interrupted" by Ctrl-C; see
            docs/learning.md.
        message: a sentence on the status.
        standard_errors: standard errors by parameter entry, from the curvature of the bound at its maximum. They
            describe the bound, not the sampling distribution of the estimate: see docs/learning.md. None where
            `standard_errors=False`, or where the bound has no proper maximum.
        covariance: covariance of the same entries, in the same order, or None.
        restarts: the fits of all restarts, the best first; empty for a single fit.
        step_error: by how much half the time step would change every entry, in standard errors, estimated from a grid
            with twice the step; infinite where learning fails on it. None in continuous time, where it was not asked
            for, and where most nodes have observations.
        directions: how well the data determine combinations of the parameters, the worst first; see `identifiability`.
        session: what `profile` works on; None in a fit that was read from a file, and with the objectives "exact" and
            "particles".
        evidence: with the objectives "exact" and "particles", the log evidence at the fitted parameters and the bias of
            the bound; else None.
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
    step_error: dict[str, float] | None = None
    directions: tuple[Direction, ...] = ()
    session: Any = dataclasses.field(default=None, repr=False, compare=False)
    evidence: Evidence | None = None

    @property
    def elbo(self) -> float:
        """The evidence bound at the fitted parameters, in nats."""
        return self.posterior.elbo

    @property
    def converged(self) -> bool:
        """Whether the status is "converged"."""
        return self.status == "converged"

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """The fitted values, by the path of the parameter."""
        return {path: np.asarray(values[-1]) for path, values in self.history.parameters.items()}

    def summary(self) -> str:
        """Return a table of the fitted values and their standard errors.

        Returns:
            The table as text, with one line for each number.
        """
        lines = parameter_lines(self.parameters, self.standard_errors)
        if self.evidence is not None:
            lines.append(self.evidence.sentence())
        lines.append(f"evidence bound {self.elbo:.6g} nats; {self.status} after {len(self.history) - 1} iterations")
        return "\n".join(lines)

    def identifiability(self) -> str:
        """Return a table of what the data tell of the parameters, the least determined combination first.

        Returns:
            The table as text; `directions` has the numbers.
        """
        return table(self.directions) if self.directions else "the curvature of the bound was not computed"

    def profile(self, name: str, *, level: float = 0.95, progress: bool = True) -> Profile:
        """Compute the profile of the bound along one number, and the interval where it stays high.

        The parameter is moved away from its fitted value, and all others are learnt anew at every place. The interval
        ends where the bound has fallen by half a quantile of the χ² distribution with one degree of freedom. Unlike
        the standard error it does not depend on how the parameter is written, and it need not be symmetric.

        Args:
            name: the entry, as in `standard_errors`, for example "drift.decay" or "diffusion[0, 0]".
            level: probability that the interval is meant to hold; default 0.95.
            progress: whether to show the progress if it takes longer than two seconds; default True.

        Returns:
            The profile, with its `interval`, `values` and `plot()`.

        Raises:
            ValueError: if the entry was not learnt, if it has no coordinate of its own, or if the fit was read from a
                file or made with the objective "exact" or "particles".
        """
        if self.session is None:
            raise ValueError(
                "this fit has no profiles of the bound: it was read from a file, or its parameters maximise the "
                "evidence itself. Call gv.learn(..., resume=fit) with the settings of learning, and ask its result"
            )
        return self.session.profile(name, level, progress)

    def compare(self, others: Any, *, key: Any = None, **options: Any) -> Any:
        """Compare this fit with others of the same series; see `gv.compare`.

        Args:
            others: fits in a list, which are called "fit 1", "fit 2" and so on while this one is "fit 0"; or fits by
                name, and this one is "this".
            key: a JAX random key for `diagnose`.
            options: further arguments of `gv.compare`.

        Returns:
            The `Comparison`, the model with the highest evidence first.
        """
        from girsanov.result.comparison import compare

        if isinstance(others, Mapping):
            return compare({"this": self, **others}, key=key, **options)
        named = [self, *(others if isinstance(others, Sequence) else [others])]
        return compare({f"fit {i}": fit for i, fit in enumerate(named)}, key=key, **options)

    def plot(self) -> Any:
        """Plot the parameters with their intervals and the evidence bound against the iterations.

        Returns:
            The matplotlib figure.
        """
        from girsanov.plotting import plot_fit

        return plot_fit(self)

    def plot_drift(self, coordinate: Any = 0, *, time: Any = None, ax: Any = None) -> Any:
        """Plot one component of the learnt drift against its own coordinate, above where the path was.

        The band is two standard errors of the drift, which follow to first order from those of its parameters. It is
        left out where the fit has none. See `Posterior.plot_drift` for the rest.

        Args:
            coordinate: number or name of the coordinate; default 0.
            time: the time of the drift, a number or date; default the middle of the horizon.
            ax: matplotlib axes to draw on; by default a new figure is made.

        Returns:
            The matplotlib axes.
        """
        from girsanov.result.drift_error import drift_error

        error, t = drift_error(self), self.posterior._moment(time)
        band = None if error is None else lambda x: error(x, t)
        return self.posterior.plot_drift(coordinate, time=time, ax=ax, band=band)

    def save(self, path: str | Path) -> Path:
        """Write the fit to a file that `gv.load` reads back exactly; `gv.learn(..., resume=fit)` continues from it.

        Of several restarts, only the best is stored.

        Args:
            path: the file to write.

        Returns:
            The path of the file.
        """
        return save_fit(self, path)

    def __repr__(self) -> str:
        return f"Fit(elbo={self.elbo:.6g}, {self.status} after {len(self.history) - 1} iterations, " + (
            ", ".join(f"{k}={np.array2string(v, precision=4)}" for k, v in self.parameters.items() if v.size < 5) + ")"
        )
