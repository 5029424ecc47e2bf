"""`PanelFit`, the result of `gv.learn` for a panel."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from girsanov.model.model import Model
from girsanov.result.fit import FitHistory, parameter_lines
from girsanov.result.panel_posterior import PanelPosterior


class Effect(NamedTuple):
    """The normal law of a random effect over the series, in free coordinates.

    Attributes:
        mean: the means at average covariates, (k,).
        variance: the variances, (k,).
        slopes: by how much the means grow with one unit of a covariate, (k,), by the name of the covariate.
    """

    mean: np.ndarray
    variance: np.ndarray
    slopes: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class PanelFit:
    """Parameters fitted to a panel, the result of `gv.learn(model, panel, ...)`.

    Attributes:
        model: the model with the shared parameters, and with the mean of every random effect; individual parameters are
            those of the model that was given. The model of a series is `fit.posteriors[name].model`.
        individual: the individual parameters by path: an array with one value a series, in the panel's order. Those of
            random effects are the modes given the data of the series and the law of the effects, which shrinks them.
        individual_errors: their standard errors, of the same shapes, given all other parameters; for matrices those of
            the entries that vary. NaN where the bound of a series does not curve downwards.
        posteriors: the posteriors of all series, by name.
        history: the shared parameters and the bound, by iteration. With random effects, the means and variances of
            their laws are among the parameters, and the bound is the marginal one.
        trainable: paths of the shared parameters.
        status: "converged", "max_iterations", "stalled", "flat", "saddle", or that of posteriors that have not
            converged; see docs/panels.md.
        message: a sentence on the status.
        standard_errors: standard errors of the shared parameters by entry, or None.
        covariance: covariance of the same entries, in the same order, or None.
        random: paths of the random effects.
        shrinkage: of every random effect by path, (S, k): the variance of a series' value given its data as a share of
            the variance of the law, in free coordinates. 0 says that the data of the series tell its value, 1 that
            they tell nothing, so that the value is the mean of the law.
    """

    model: Model
    individual: dict[str, np.ndarray]
    individual_errors: dict[str, np.ndarray]
    posteriors: PanelPosterior
    history: FitHistory
    trainable: tuple[str, ...]
    status: str
    message: str
    standard_errors: dict[str, float] | None = None
    covariance: np.ndarray | None = None
    random: tuple[str, ...] = ()
    shrinkage: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def elbo(self) -> float:
        """The evidence bound at the fitted parameters, in nats, summed over the series.

        With random effects it is the marginal bound, in which they are integrated out by Laplace's method; the bounds
        at their modes are those of `posteriors`.
        """
        return float(self.history.elbo[-1]) if self.random else self.posteriors.elbo

    @property
    def effects(self) -> dict[str, Effect]:
        """Mean, variance and slopes along covariates of every random effect over the series, by path.

        They are those of its free coordinates: of the value itself where it has no constraint, and of its logarithm
        where it is positive.
        """
        values, laws = self.parameters, {}
        for path in self.random:
            end = f" on {path})"
            slopes = {k.removeprefix("effect(").removesuffix(end): v for k, v in values.items() if k.endswith(end)}
            laws[path] = Effect(values[f"mean({path})"], values[f"variance({path})"], slopes)
        return laws

    @property
    def converged(self) -> bool:
        """Whether the status is "converged"."""
        return self.status == "converged"

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """The fitted values of the shared parameters, by path."""
        return {path: np.asarray(values[-1]) for path, values in self.history.parameters.items()}

    def summary(self) -> str:
        """Return a table of the fitted values and their standard errors.

        Returns:
            The table as text: a line for each number of the shared parameters, and of the individual ones their mean,
            least and largest value over the series.
        """
        lines = parameter_lines(self.parameters, self.standard_errors) if self.parameters else []
        if self.individual:
            title = "random" if self.random else "individual"
            lines.append(f"{title:<28}{'mean':>12}{'least':>12}{'largest':>12}")
        for path, values in self.individual.items():
            for index in np.ndindex(values.shape[1:]):
                v = values[(slice(None), *index)]
                name = path + (str(list(index)) if index else "")
                lines.append(f"{name:<28}{v.mean():>12.5g}{v.min():>12.5g}{v.max():>12.5g}")
        lines.append(f"evidence bound {self.elbo:.6g} nats of {len(self.posteriors)} series; {self.status}")
        return "\n".join(lines)

    def table(self) -> dict[str, dict[str, float]]:
        """Return the individual values of every series, as `pandas.DataFrame.from_dict(..., orient="index")` reads.

        Returns:
            A dictionary by series of dictionaries with a value for each number and its standard error, whose name ends
            in " error". Beside a random effect there is its shrinkage, whose name ends in " shrinkage".
        """
        rows: dict[str, dict[str, float]] = {}
        for i, name in enumerate(self.posteriors):
            row = rows[name] = {}
            for path, values in self.individual.items():
                parts = {"": values, " error": self.individual_errors[path]}
                if path in self.shrinkage:
                    parts[" shrinkage"] = self.shrinkage[path]
                for part, all_ in parts.items():
                    own = np.asarray(all_[i])
                    if part == " shrinkage" and own.size == 1 == values[i].size:
                        own = own.reshape(values[i].shape)
                    for index in np.ndindex(own.shape):
                        row[path + (str(list(index)) if index else "") + part] = float(own[index])
        return rows

    def __repr__(self) -> str:
        shared: dict[str, Any] = {k: np.array2string(v, precision=4) for k, v in self.parameters.items() if v.size < 5}
        facts = ", ".join(f"{k}={v}" for k, v in shared.items())
        role = "random" if self.random else "individual"
        own = f", {role} {', '.join(self.individual)}" if self.individual else ""
        return f"PanelFit({len(self.posteriors)} series, elbo={self.elbo:.6g}, {self.status}, {facts}{own})"
