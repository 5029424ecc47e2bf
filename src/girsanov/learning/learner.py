"""What one fit works with: the problem, the E-step, the gradient of the bound, and the record of the iterations."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from girsanov._core.precision import to_numpy
from girsanov.chain.natural import NaturalChain
from girsanov.inference.continuous_bound import ContinuousSites
from girsanov.inference.loop import Run
from girsanov.inference.method import Method, Start
from girsanov.inference.objective import Posed
from girsanov.inference.sites import Sites
from girsanov.learning.objectives import log_prior, standard_value_and_grad, with_parameters
from girsanov.learning.parameters import Spec, entries, split, to_vector
from girsanov.model.model import Model
from girsanov.result.fit import FitHistory

_INEXACT = 0.01  # nats, in continuous time


@dataclasses.dataclass
class Learner:
    """The state of one fit: the problem on its grid, the method of the E-steps, and the history.

    Attributes:
        spec: the trainable parameters.
        problem: the model at the start, the data on a grid, and the quadrature rule.
        method: the method of the E-steps.
        priors: numpyro distributions by path.
        begun: the time at which the fit began.
        say: shows a text about the progress, or None.
        rows: one entry of the history for the start and one for each iteration.
        e_steps: number of E-steps so far.
        passes: number of evaluations of the bound so far.
        keeper: what keeps the best parameters in case learning is stopped, or None.
    """

    spec: Spec
    problem: Posed
    method: Method
    priors: dict
    begun: float
    say: Callable[[str], None] | None
    rows: list[tuple] = dataclasses.field(default_factory=list)
    e_steps: int = 0
    passes: int = 0
    keeper: Any = None

    def alone(self, rows: list[tuple]) -> "Learner":
        """Return the same learner with a history of its own, which shows and keeps nothing."""
        return dataclasses.replace(self, say=None, keeper=None, rows=list(rows))

    @property
    def inexact(self) -> float:
        """The rise of the profile, in nats, up to which its gradient tells more than its value; see `newton`."""
        return _INEXACT if getattr(self.method, "time", "discrete") == "continuous" else 0.0

    def at(self, theta: np.ndarray) -> Posed:
        """Return the problem with the parameters θ."""
        return to_numpy(with_parameters(self.spec, theta, self.problem))

    def start_from(self, theta: np.ndarray) -> None:
        """Make θ the parameters of the model from which learning starts."""
        self.problem = self.at(theta)

    def e_step(self, theta: np.ndarray, start: Start | None, **limits: Any) -> Run:
        """Infer q at the parameters θ, from a start, or from the data alone."""
        result = self.method.continue_from(self.at(theta), start, **limits)
        self.e_steps += 1
        self.passes += result.passes
        self.offer(theta, result, nearby=bool(limits))
        return result

    def offer(self, theta: np.ndarray, result: Run, nearby: bool = False) -> None:
        """Show the keeper an E-step; one of the differences for a Hessian is nearby."""
        if self.keeper is not None:
            self.keeper.offer(self, theta, result, nearby)

    def start(self, result: Run, sites: Sites | ContinuousSites, eta: NaturalChain) -> Start:
        """Return the start of the E-step that follows `result`."""
        return self.method.next_start(result, sites, eta)

    def prior(self, theta: np.ndarray) -> float:
        """Return the log density of the priors at θ; zero without priors."""
        return float(log_prior(self.spec, theta, self.priors)) if self.priors else 0.0

    def record(self, theta: np.ndarray, elbo: float, evidence: float | None = None) -> None:
        """Add an entry to the history; the objective is the bound, or the log evidence if that is given."""
        values = {k: np.asarray(v) for k, v in split(self.spec, theta).items()}
        objective = (elbo if evidence is None else evidence) + self.prior(theta)
        seconds = time.perf_counter() - self.begun
        self.rows.append((values, elbo, objective, self.e_steps, self.passes, seconds))
        reached = f"evidence bound {elbo:.6g}" if evidence is None else f"log evidence {evidence:.6g}"
        self.show(f"iteration {len(self.rows) - 1}, {reached}")

    def show(self, text: str) -> None:
        """Show a text about the progress."""
        if self.say is not None:
            self.say(f"learning, {text}")

    def history(self, before: FitHistory | None = None) -> FitHistory:
        """Return the history, appended to that of the fit that was resumed, if any."""
        columns = list(zip(*self.rows, strict=True))
        parameters = {p.path: np.stack([row[p.path] for row in columns[0]]) for p in self.spec}
        arrays = [np.array(c) for c in columns[1:]]
        if before is not None:  # the first row repeats the end of the earlier fit
            parameters = {k: np.concatenate([before.parameters[k], v[1:]]) for k, v in parameters.items()}
            earlier = [getattr(before, k) for k in ("elbo", "objective", "e_steps", "passes", "seconds")]
            offsets = [0.0, 0.0, *(a[-1] for a in earlier[2:])]
            arrays = [np.concatenate([a, b[1:] + o]) for a, b, o in zip(earlier, arrays, offsets, strict=True)]
        return FitHistory(parameters, *arrays)

    def check_gradient(self, model: Model, result: Run) -> None:
        """Raise a ValueError that names the parameters in which the bound's derivative is not finite at the start."""
        _, grad = self.envelope(to_vector(self.spec, model), result)
        if not np.isfinite(grad).all():
            names = [n for n, g in zip(entries(self.spec), grad, strict=True) if not np.isfinite(g)]
            raise ValueError(
                f"the bound is finite at the starting parameters, but its derivative in {', '.join(names)} is not: "
                "write the drift so that it can be differentiated wherever the posterior may go"
            )

    def envelope(self, theta: np.ndarray, result: Run) -> tuple[float, np.ndarray]:
        """Return the bound with q held fixed and its gradient in θ, the profile's gradient where q is optimal."""
        self.passes += 1
        q = result.moments if result.root is None else result.root
        q = result.sites if isinstance(result.sites, ContinuousSites) else q
        value, grad = standard_value_and_grad(theta, self.spec, self.problem, q, self.priors)
        return float(value), np.asarray(grad)
