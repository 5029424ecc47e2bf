"""From the maximum of the bound to that of the evidence itself: the objectives "exact" and "particles" of `learn`."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from girsanov.data.series import TimeSeries
from girsanov.inference.loop import Run
from girsanov.inference.status import Status
from girsanov.learning import exact, particles
from girsanov.learning.curvature import laplace
from girsanov.learning.keeper import Keeper, interrupted
from girsanov.learning.learner import Learner
from girsanov.learning.parameters import Spec, constrained_entries, entries, to_vector
from girsanov.learning.verdict import Verdict
from girsanov.result.evidence import Evidence
from girsanov.result.fit import Fit
from girsanov.result.infer import explain_bad_start, warm_start

_STOPPED = "learning was stopped before the maximum of the evidence was reached; go on with resume=this fit"
Finish = Callable[[Learner, Verdict, TimeSeries, bool, Fit | None], Fit]


def beyond(
    objective: str,
    fit: Fit,
    learner: Learner,
    series: TimeSeries,
    key: Any,
    limits: dict[str, Any],
    standard_errors: bool,
    finish: Finish,
    keeper: Keeper,
) -> Fit:
    """Climb on the evidence from a fit, and return the fit where that ends, with its `evidence`.

    Args:
        objective: "exact" or "particles".
        fit: the fit by the bound, or one that an earlier climb ended with.
        learner: a new `Learner` whose model is that of the fit.
        series: the observations.
        key: a JAX random key, for particles.
        limits: `tolerance`, `max_iterations` and `check` of `learn`.
        standard_errors: whether to give standard errors.
        finish: makes the fit from a verdict.
        keeper: what tells of the best parameters if the climb is stopped.
    """
    before = fit if fit.evidence is not None else None
    theta = to_vector(learner.spec, learner.problem.stated)
    first = _values(learner.spec, theta) if fit.evidence is None else fit.evidence.variational
    by_sums, climber = objective == "exact", None

    def kept() -> Fit:
        if climber is None or climber.best is None:
            return fit
        theta, run, value = climber.best
        stopped = finish(learner.alone(learner.rows), interrupted(theta, run, value, _STOPPED), series, False, before)
        return dataclasses.replace(stopped, evidence=Evidence(objective, value, float("nan"), first, {}, {}))

    try:
        run = _first(learner, series, fit)
        if by_sums:
            climber = exact.exact_learner(learner, series, run)
        else:
            climber = particles.particle_climb(learner, series, run, key)
        climber.better = lambda: keeper.write(kept)
        verdict, value, error, noise = (exact if by_sums else particles).climb(climber, **limits)  # pyright: ignore
    except KeyboardInterrupt as interrupt:
        keeper.tell(interrupt, kept())
        raise
    point, precision, _ = verdict.summit
    known = bool(np.isfinite(precision).all())
    ended = finish(learner, verdict, series, standard_errors and known, before)
    bias = _in_errors(learner.spec, point.theta, precision, first)
    found = Evidence(objective, value, error, first, bias, noise)
    return dataclasses.replace(ended, evidence=found, message=f"{ended.message}; {found.sentence()}")


def _first(learner: Learner, series: TimeSeries, fit: Fit) -> Run:
    """Return the E-step at the parameters of the fit, from its posterior."""
    learner.begun -= float(fit.history.seconds[-1]) if fit.evidence is None else 0.0
    start = warm_start(fit.posterior, learner.problem, series)
    run, _ = learner.method.solve(learner.problem, start, learner.say)
    if run.status is Status.BAD_START:
        explain_bad_start(learner.problem)
    learner.e_steps, learner.passes = 1, run.passes
    return run


def _values(spec: Spec, theta: np.ndarray) -> dict[str, float]:
    return dict(zip(entries(spec), np.asarray(constrained_entries(spec, theta)).tolist(), strict=True))


def _in_errors(spec: Spec, theta: np.ndarray, precision: np.ndarray, first: dict[str, float]) -> dict[str, float]:
    """Return how far the first estimates are from those at θ, in standard errors of the latter, or nothing."""
    if not (np.isfinite(precision).all() and np.linalg.eigvalsh(precision)[0] > 0.0):
        return {}
    errors, here = laplace(spec, theta, precision).errors, _values(spec, theta)
    return {name: (first[name] - here[name]) / float(e) for name, e in zip(here, errors, strict=True)}
