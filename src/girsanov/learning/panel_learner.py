"""What a fit of a panel works with: the profile of the shared parameters, in which those of single series follow.

The profile is Σ_i max over φ_i of the bound of series i, where φ_i are the parameters of that series alone. By the
envelope theorem its gradient in the shared parameters θ is the sum of the gradients with all φ_i held fixed. The class
offers what `newton` and `verdict` ask of a `Learner`.
"""

import time
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from girsanov.inference.status import Status
from girsanov.learning.inner import Evaluate, climb, minus_hessians
from girsanov.learning.objectives import log_prior
from girsanov.learning.panel_problem import PanelProblem
from girsanov.learning.panel_step import Step
from girsanov.learning.parameters import Spec, split
from girsanov.result.fit import FitHistory


class PanelLearner:
    """The profile of the shared parameters of a panel, and the record of a fit."""

    inexact = 0.0

    def __init__(self, problem: PanelProblem, spec: Spec, method: Any, priors: dict, begun: float, say: Any):
        self.problem, self.spec, self.method, self.priors = problem, spec, method, priors
        self.begun, self.say = begun, say
        self.size = sum(p.size for p in spec)  # of θ; the other coordinates of the problem are those of single series
        self.units = np.ones(self.size)  # of the coordinates, for what a user sees
        self.rows: list[tuple] = []

    def evaluator(self, theta: Float[np.ndarray, " P"]) -> Evaluate:
        """Return the function that `climb` maximises: the bounds of some series at θ and their gradients in φ."""

        def evaluate(phi: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            bounds = self.problem.evaluate(np.column_stack([np.tile(theta, (len(phi), 1)), phi]), which)
            self._shared[which] = bounds.grad[:, : self.size]
            return bounds.value, bounds.grad[:, self.size :]

        self._shared = np.zeros((len(self.problem.datas), self.size))
        return evaluate

    def first(self, theta: np.ndarray, phi: Float[np.ndarray, "S K"]) -> Step:
        """Return the step from which a fit starts."""
        return self._step(theta, phi, None)

    def e_step(self, theta: np.ndarray, near: Step, **limits: Any) -> Step:
        """Maximise the bounds over the parameters of single series at θ, from those of a step nearby."""
        return self._step(theta, near.peaks.phi, near.peaks.B)

    def _step(self, theta: np.ndarray, phi: np.ndarray, B: Any) -> Step:
        evaluate = self.evaluator(theta)
        peaks = climb(evaluate, phi, B)
        if phi.shape[1]:  # the last evaluations may have been trials that were not accepted
            evaluate(peaks.phi, np.arange(len(phi)))
        total = float(peaks.value.sum())
        status = Status.CONVERGED if np.isfinite(total) else Status.BAD_START
        return Step(total, status, peaks, self._shared.sum(0))

    def start(self, near: Step, sites: Any, eta: Any) -> Step:
        """Return the start of the step that follows `near`."""
        return near

    def envelope(self, theta: np.ndarray, step: Step) -> tuple[float, np.ndarray]:
        """Return the profile and its gradient."""
        grad = step.grad
        if self.priors:
            grad = grad + np.asarray(jax.grad(lambda t: log_prior(self.spec, t, self.priors))(theta))
        return step.elbo + self.prior(theta), grad

    def prior(self, theta: np.ndarray) -> float:
        """Return the log density of the priors at θ; zero without priors."""
        return float(log_prior(self.spec, theta, self.priors)) if self.priors else 0.0

    def curvatures(self, theta: np.ndarray, step: Step) -> Float[np.ndarray, "S K K"]:
        """Return minus the Hessians of the bounds in the parameters of single series."""
        return minus_hessians(self.evaluator(theta), step.peaks.phi)

    def record(self, theta: np.ndarray, elbo: float) -> None:
        """Add an entry to the history."""
        values = {k: np.asarray(v) for k, v in split(self.spec, theta * self.units).items()}
        work = self.problem.evaluations, self.problem.passes, time.perf_counter() - self.begun
        self.rows.append((values, elbo, elbo + self.prior(theta), *work))
        if self.say is not None:
            self.say(
                f"learning from {len(self.problem.datas)} series, iteration {len(self.rows) - 1}, bound {elbo:.6g}"
            )

    def history(self) -> FitHistory:
        """Return the history; an E-step is an evaluation of the bounds of all or some series."""
        columns = list(zip(*self.rows, strict=True))
        parameters = {p.path: np.stack([row[p.path] for row in columns[0]]) for p in self.spec}
        return FitHistory(parameters, *(np.array(c) for c in columns[1:]))
