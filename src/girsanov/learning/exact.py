"""The climb on the exact log evidence of a scalar model: `learn(..., objective="exact")`.

The log evidence is a sum over points of every node. They lie where the posterior is at some parameters, and stay the
same while these change little, so that the sum is a smooth function of them: until a density of the model is much
narrower or wider than it was, or the posterior reaches an end of the points. Newton's method and the checks of its end
are those of the bound.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.compile import compiled
from girsanov.baselines.exact_evidence import log_evidence
from girsanov.baselines.line import find_points, leaks, resolution, trimmed
from girsanov.data.on_grid import SeriesOnGrid, on_grid
from girsanov.data.series import TimeSeries
from girsanov.inference.loop import Run
from girsanov.inference.status import Status
from girsanov.learning.learner import Learner
from girsanov.learning.newton import STEPS, Point, Summit, newton
from girsanov.learning.objectives import log_prior
from girsanov.learning.parameters import Spec, insert, to_vector
from girsanov.learning.verdict import Verdict, curvature_trouble, judge, unjudged

_WIDTH = 1.0  # change of the log variance of a density of the model up to which the points stay
_NUMBERS = [n * 2**k for k in range(10) for n in (64, 96)]  # of points; few, so that few programs are compiled
_MORE = 4  # parameters that need so many times as many points as the best ones are not tried
_FEWEST = 500  # so many may always be tried
_MARGINS = (0.1, 0.5, 2.0)  # by how much further out points are tried, in shares of the present range
_GRADIENT = "gradient"


class Limits(NamedTuple):
    """Settings that the differences for a Hessian ask a method for; there is nothing to iterate here."""

    tolerance: float = 1e-9
    max_iterations: int = 1


class Points(NamedTuple):
    """The points of all nodes, the log variances of the model's densities that they were made for, and the posterior.

    `share` is the share of the posterior at every point, at the parameters that were last evaluated.
    """

    x: Float[np.ndarray, "N n"]
    widths: Float[np.ndarray, " 3"]
    share: Float[np.ndarray, "N n"]


@compiled
def _value_and_grad(theta, spec: Spec, model: Any, data: SeriesOnGrid, points):
    """Return the log evidence, its gradient in θ, and the share of the posterior at every point."""

    def value(theta, tilt):
        return log_evidence(insert(spec, theta, model), data, points, tilt)

    found, (grad, share) = jax.value_and_grad(value, (0, 1))(theta, jnp.zeros(points.shape))
    return found, grad, share


@compiled
def _prior_grad(theta, spec: Spec, priors: dict):
    return jax.grad(lambda t: log_prior(spec, t, priors))(theta)


@compiled
def _widths(model: Any, data: SeriesOnGrid):
    """Return log variances: of the noise in a unit of time, of the first state, and of the sharpest observation."""
    model = model.driven_by(data.inputs).latent
    initial = model.initial_state()
    at = jnp.broadcast_to(initial.mean, (data.node.shape[0], 1))
    _, precision = model.observation.starting_sites(data.rows, at)
    return jnp.log(jnp.stack([model.noise.Q[0, 0], initial.cov[0, 0], 1.0 / precision.max()]))


@dataclasses.dataclass
class ExactLearner:
    """The log evidence with the names that `newton` and `verdict` know a `Learner` by.

    Attributes:
        learner: the `Learner` at the start of the climb. It has the history, and the E-steps that go into it.
        series: the observations.
        run: the last E-step.
        data: the observations on the nodes.
        points: the points of the states, once there are some.
        home: those of the best parameters.
        most: the largest number of points of a node.
        best: the parameters, E-step and log evidence of the best entry in the history.
        better: called where there are better ones.
    """

    learner: Learner
    series: TimeSeries
    run: Run
    data: SeriesOnGrid
    points: Points | None = None
    home: Points | None = None
    most: int = 20_000
    best: tuple[np.ndarray, Run, float] | None = None
    inexact: float = 0.0
    better: Callable[[], None] | None = None

    @property
    def method(self) -> Limits:
        return Limits()

    @property
    def spec(self) -> Spec:
        return self.learner.spec

    @property
    def problem(self) -> Any:
        return self.learner.problem

    def prior(self, theta: np.ndarray) -> float:
        return self.learner.prior(theta)

    def start(self, result: Any, sites: Any, eta: Any) -> None:
        """An evaluation of the evidence needs no start."""

    def envelope(self, theta: np.ndarray, result: Run) -> tuple[float, np.ndarray]:
        return result.elbo, result.trace[_GRADIENT]

    def e_step(self, theta: np.ndarray, start: Any = None, **limits: Any) -> Run:
        """Evaluate the log evidence, on new points where the present ones do not serve.

        It is returned as a run of inference would return the bound, with the gradient beside it.
        """
        model = self.learner.at(theta).stated
        widths, points = np.asarray(_widths(model, self.data)), self.points
        if points is not None and (np.abs(widths - points.widths) < _WIDTH).all():
            found = self._evaluated(theta, points.x)
            if found is not None:
                self.points = points._replace(share=found[1])
                return found[0]
        try:
            for x in self._others(model):
                found = self._evaluated(theta, x)
                if found is not None:
                    self.points = Points(x, widths, found[1])
                    return found[0]
        except ValueError as error:
            if self.best is None:
                raise ValueError(
                    f"objective='exact' cannot begin where the bound is largest: {error}. Where a parameter runs to an "
                    "edge, fix it or give it a prior; the same call without objective= shows which"
                ) from None
        nothing = {_GRADIENT: np.full(len(theta), np.nan)}
        return self.run._replace(elbo=-np.inf, status=Status.BAD_START, trace=nothing)

    def _evaluated(self, theta: np.ndarray, x: np.ndarray) -> tuple[Run, np.ndarray] | None:
        """Evaluate on these points; return None where the posterior does not vanish at their ends."""
        value, grad, share = _value_and_grad(theta, self.spec, self.problem.stated, self.data, x)
        value, share = float(value), np.asarray(share)
        if not np.isfinite(value) or leaks(share).any():
            return None
        if self.learner.priors:
            grad = grad + _prior_grad(theta, self.spec, self.learner.priors)
        trace = {_GRADIENT: np.asarray(grad)}
        return self.run._replace(elbo=value, status=Status.CONVERGED, trace=trace), share

    def _others(self, model: Any) -> Iterator[np.ndarray]:
        """Yield points that may serve: around the present ones, and around those of the best parameters, further out.

        The very first are searched for. A ValueError says that there would have to be too many.
        """
        if self.points is None or self.home is None:
            found = find_points(model, self.series, self.data.grid)
            yield self._within(model, trimmed(found.points, found.density))
            return
        yield self._within(model, trimmed(self.points.x, self.points.share))
        for margin in _MARGINS:
            yield self._within(model, trimmed(self.home.x, self.home.share, margin))

    def _within(self, model: Any, ends: np.ndarray, finer: float = 1.0) -> np.ndarray:
        """Return equally spaced points between these ends of every node, at least as many as the model needs."""
        model = model.driven_by(self.data.inputs).latent
        need = finer * resolution(model, self.series, self.data.grid, ends, self.most)
        n = next(n for n in _NUMBERS if n >= need)
        return ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * np.linspace(0.0, 1.0, n)

    def record(self, theta: np.ndarray, value: float) -> None:
        """Add an entry to the history, with an E-step at these parameters."""
        run = self.learner.e_step(theta, self.learner.start(self.run, self.run.sites, self.run.eta))
        self.run = self.run if run.status is Status.BAD_START else run
        self.learner.record(theta, run.elbo, value)
        if self.best is None or value + self.prior(theta) >= self.best[2] + self.prior(self.best[0]):
            self.best = np.array(theta), self.run, value
            if self.points is not None:
                self.home, self.most = self.points, max(_MORE * self.points.x.shape[1], _FEWEST)
            if self.better is not None:
                self.better()

    def show(self, text: str) -> None:
        self.learner.show(text)

    def error(self, theta: np.ndarray, value: float) -> float:
        """Return the change of the log evidence on other points, half as many again over wider ranges."""
        self.e_step(theta)
        assert self.points is not None
        x = self._within(self.learner.at(theta).stated, trimmed(self.points.x, self.points.share, _MARGINS[0]), 1.5)
        return abs(float(_value_and_grad(theta, self.spec, self.problem.stated, self.data, x)[0]) - value)


def climb(
    exact: ExactLearner, tolerance: float, max_iterations: int, check: bool
) -> tuple[Verdict, float, float, dict]:
    """Climb from the parameters of the fit by the bound.

    Returns:
        The verdict, the log evidence, its error, and no Monte Carlo errors.
    """
    theta = to_vector(exact.spec, exact.problem.stated)
    begin = exact.e_step(theta)
    exact.record(theta, begin.elbo)
    point = Point(theta, begin, begin.elbo + exact.prior(theta), begin.trace[_GRADIENT])
    top = newton(exact, point, tolerance=tolerance, max_iterations=min(max_iterations, STEPS))
    if not check or top.status == "max_iterations":
        trouble = curvature_trouble(exact, top) if np.isfinite(top.precision).all() else None
        verdict = unjudged(top) if trouble is None or top.status != "converged" else Verdict(*trouble, top)
    else:
        verdict = judge(exact, top, tolerance, from_model=False)
    point = verdict.summit.point
    value = point.result.elbo
    theta, run = point.theta, exact.run
    if exact.best is None or not np.array_equal(exact.best[0], theta):
        run = exact.learner.e_step(theta, exact.learner.start(run, run.sites, run.eta))
    else:
        run = exact.best[1]
    summit = Summit(Point(theta, run, point.value, point.grad), verdict.summit.precision, verdict.summit.status)
    message = verdict.message.replace("the bound", "the log evidence")
    return Verdict(verdict.status, message, summit), value, exact.error(theta, value), {}


def exact_learner(learner: Learner, series: TimeSeries, run: Run) -> ExactLearner:
    """Return the log evidence of the learner's model, on its grid without padding."""
    return ExactLearner(learner, series, run, on_grid(series, learner.problem.data.grid))
