"""`learn`: fit parameters by variational EM or by quasi-Newton steps on the profile max_q L(q, θ).

Newton's method on the profile ends the ascent, and `verdict` says what can be said of the place where it ended.
"""

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import equinox as eqx
import numpy as np

from girsanov._core.checks import check_positive, check_whole
from girsanov._core.precision import float64, to_numpy
from girsanov._core.progress import reporter
from girsanov.data.panel import Panel
from girsanov.data.series import TimeSeries
from girsanov.inference.boundary import checked_boundary
from girsanov.inference.cvi_dp import CVIDP, check_method
from girsanov.inference.functional import lay_out
from girsanov.inference.loop import Run
from girsanov.inference.method import Method, reject_unknown
from girsanov.inference.quadrature_check import checked_quadrature
from girsanov.inference.status import Status
from girsanov.learning.beyond import beyond
from girsanov.learning.checks import (
    check_beyond,
    check_checkpoint,
    check_learnable,
    check_objective,
    check_priors,
    check_resume,
    stated_priors,
)
from girsanov.learning.climb import climb
from girsanov.learning.curvature import laplace, minus_hessian
from girsanov.learning.data_start import from_data
from girsanov.learning.identifiability import directions
from girsanov.learning.keeper import Keeper
from girsanov.learning.learn_panel import learn_panel
from girsanov.learning.learner import Learner
from girsanov.learning.newton import MOST, STEPS, Point, Summit, newton
from girsanov.learning.parameters import entries, insert, make_spec, to_vector
from girsanov.learning.restarts import restart_models, together
from girsanov.learning.session import Session
from girsanov.learning.step_error import compare_steps, step_warning
from girsanov.learning.verdict import MESSAGES, Verdict, curvature_trouble, judge, unjudged
from girsanov.model.model import Model
from girsanov.result.bad_start import explain_bad_start
from girsanov.result.fit import Fit
from girsanov.result.making import make_posterior, run_history, warm_start
from girsanov.result.panel_fit import PanelFit
from girsanov.result.resolution import warn_unresolved

_FIRST = 25  # iterations of an ascent before Newton's method goes on, which ends slow ones


@overload
def learn(model: Model, series: TimeSeries, dt: float | None = None, span: Any = None, **options: Any) -> Fit: ...


@overload
def learn(model: Model, series: Panel, dt: float | None = None, span: Any = None, **options: Any) -> PanelFit: ...


@float64
def learn(
    model: Model,
    series: TimeSeries | Panel,
    dt: float | None = None,
    span: Any = None,
    *,
    trainable: Sequence[str] | str | None = None,
    individual: Sequence[str] | str = (),
    random: Sequence[str] | str = (),
    effects: Mapping[str, Any] | None = None,
    objective: str | None = None,
    start: str = "model",
    optimiser: Any = "lbfgs",
    learning_rate: float = 0.1,
    m_steps: int = 20,
    method: Method | None = None,
    grid: Any = None,
    tolerance: float = 1e-5,
    parameter_tolerance: float = 1e-4,
    max_iterations: int = 100,
    constraints: Mapping[str, Any] | None = None,
    priors: Mapping[str, Any] | None = None,
    standard_errors: bool = True,
    check: bool = True,
    step_error: bool | None = None,
    restarts: int = 1,
    key: Any = None,
    reinitialise: Callable[[Any, Any], Any] | None = None,
    resume: Fit | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    **unknown: Any,
) -> Fit | PanelFit:
    """Fit parameters of `model` to `series` by maximising the evidence bound.

    Args:
        model: the model; its parameters are the starting values.
        series: the observations, or a `gv.Panel` of many independent series, whose bounds are added.
        dt: step of the time grid, in the time unit of the series. The observation times are added to the grid.
        span: time of the initial state and end of the horizon; by default the first and last time of the series.
        trainable: names or paths of the parameters to learn, such as ["drift", "diffusion", "likelihood.variance",
            "initial"]. All others keep their values. By default, in a model of equations, all that these leave free.
        individual: for panels, names or paths of parameters that are free for every series.
        random: for panels, names or paths of parameters with a normal law over the series, in their free coordinates,
            whose mean and variance are learnt. They are integrated out by Laplace's method.
        effects: covariates that the means of random effects depend on, linearly in their free coordinates, by their
            names, such as {"drift.decay": ["weight"]}.
        objective: "modified" for the paper's M-step, in which the base process follows θ and the dense sites are fixed;
            "standard" for an M-step with q fixed; or "profile" for L-BFGS on max_q of the bound, with an E-step for
            each evaluation. By default "modified", "standard" with VDP, and "profile" in continuous time. "exact" and
            "particles" go on from there to the maximum of the evidence itself: "exact" for scalar states, by sums over
            a grid of states; "particles" by paths drawn from the model's own posterior.
        start: "model" (the default) to start from the parameters of `model`, or "data" to take those that the data show
            from them: the noise and the diffusion from differences of observations, the first state, and a drift that
            follows the data.
        optimiser: optimiser of an M-step: "lbfgs" (the default), "adam" or an optax transformation.
        learning_rate: learning rate of "adam"; default 0.1.
        m_steps: largest number of optimiser steps in an M-step; default 20.
        method: method of the E-steps, `gv.CVIDP()` (the default) or `gv.VDP()`.
        grid: times of the nodes, (N,), instead of `dt` and `span`. They must contain the observation times.
        tolerance: in nats, default 1e-5. Learning has converged when no step within a standard deviation promises to
            gain more. With an optimiser other than "lbfgs" or more than 40 parameters, it has converged when an
            iteration gains less than this and moves the parameters by less than `parameter_tolerance`.
        parameter_tolerance: largest change of a free coordinate, default 1e-4; relative to its size where that is
            far from one.
        max_iterations: largest number of outer iterations; default 100.
        constraints: constraints by path that replace the defaults: "real", "positive", "ordered" (increasing), "full"
            (positive definite), "diagonal", "scalar" (a multiple of the identity) or an interval (low, high).
        priors: numpyro distributions by path. The fit is then the mode of the bound plus the log prior.
        standard_errors: whether to give standard errors; default True.
        check: whether to end with Newton's method and climbs from elsewhere, which decide the status; default True.
            With more than 40 parameters, or an optimiser other than "lbfgs", the ascent is left by itself all the same.
        step_error: whether to estimate, in discrete time, by how much half the step would change the estimates, and to
            warn where that is more than half a standard error. By default it is done with the check, for `gv.CVIDP`.
        restarts: number of fits; default 1. The first starts from `model`, the others from a drift with randomly drawn
            parameters. The one with the highest bound plus log prior is returned; its `restarts` has all of them.
        key: a JAX random key, needed for more than one restart and for the objective "particles".
        reinitialise: a function (drift, key) → drift that draws the parameters of a restart; by default the drift's own
            method of that name.
        resume: an earlier fit of the same parameters to continue from. With "exact" and "particles" it takes the place
            of the fit by the bound.
        checkpoint: a file in which the best fit so far is kept while learning goes on, with the status "interrupted",
            and in which the fit is at the end. It is replaced in one step every few seconds, so that it is complete
            even if the process is killed. Continue with resume=gv.load(checkpoint). Before the first inference has
            ended, nothing is written, and a file that is there stays.
        progress: whether to show the progress of fits that take longer than two seconds; default True.

    Returns:
        The fit. Its `status` and `message` say how learning ended. With the objectives "exact" and "particles" its
        `evidence` has the log evidence and the bias of the bound's parameters.
        For a panel it is a `PanelFit`, and the options objective, start, optimiser, learning_rate, m_steps,
        parameter_tolerance, check, step_error, restarts, key, reinitialise, resume and checkpoint are for a single
        series.

    Raises:
        ValueError: if the model, the series, the grid or an option is not valid, if `trainable` names no parameter of
            the model, if a starting value lies outside its constraint, or if the bound or its gradient is not finite at
            the start.
        KeyboardInterrupt: on Ctrl-C. For a single series its attribute `kept` is the fit with the best parameters found
            until then, with the status "interrupted", once the first inference has ended. Continue with resume=.
    """
    reject_unknown("learn", unknown, learn)
    method = check_method(method, model)
    if isinstance(series, Panel):
        given = (objective, start, optimiser, learning_rate, m_steps, parameter_tolerance, check, step_error, restarts)
        _check_for_panel(dict(zip(_SINGLE, (*given, key, reinitialise, resume, checkpoint), strict=True)))
        return learn_panel(
            model,
            series,
            dt,
            span,
            trainable=trainable,
            individual=individual,
            random=random,
            effects=effects,
            method=method,
            grid=grid,
            tolerance=tolerance,
            max_iterations=max_iterations,
            constraints=constraints,
            priors=priors,
            standard_errors=standard_errors,
            progress=progress,
        )
    if len(individual) or len(random) or effects:
        raise ValueError(
            "individual=, random= and effects= are for a gv.Panel of several series; name the parameters in trainable="
        )
    check_whole(max_iterations=max_iterations, m_steps=m_steps, restarts=restarts)
    check_positive(tolerance=tolerance, parameter_tolerance=parameter_tolerance, learning_rate=learning_rate)
    further = check_beyond(objective, model, series, method, key)
    objective = check_objective(objective if further is None else None, method, optimiser)
    problem = lay_out(model, series, dt, span, grid, method)
    if start not in ("model", "data"):
        raise ValueError(
            f"start must be 'model' or 'data', got {start!r}; to go on from an earlier fit, give resume=fit"
        )
    if start == "data" and resume is not None:
        raise ValueError("resume= goes on from the parameters of the fit: leave out start='data'")
    spec = make_spec(model, trainable, constraints)
    priors = check_priors(spec, stated_priors(spec, model) if priors is None else priors)
    model = check_resume(spec, resume, model)
    check_learnable(spec, method)
    discrete = isinstance(method, CVIDP) and method.time == "discrete"
    if step_error and not discrete:
        raise ValueError("step_error=True is for gv.CVIDP in discrete time: leave it out")
    finish = check and optimiser == "lbfgs" and sum(p.size for p in spec) <= MOST
    with_step = finish and discrete if step_error is None else bool(step_error)
    first = min(max_iterations, _FIRST) if finish else max_iterations
    limits = {"tolerance": tolerance, "parameter_tolerance": parameter_tolerance, "max_iterations": first}
    ascent = climb(objective, limits, {"optimiser": optimiser, "steps": m_steps, "learning_rate": learning_rate})
    by_profile = climb("profile", limits, {})
    models = restart_models(model, restarts, key, reinitialise)
    keep = check_checkpoint(checkpoint)
    keeper = Keeper(lambda learner, verdict: _finish(learner, verdict, series, False, resume), keep)
    with reporter(progress) as say:

        @float64
        def fit(candidate: Model) -> Fit:
            begun = time.perf_counter()
            learner = Learner(spec, problem.of(candidate), method, priors, begun, say, keeper=keeper)
            if start == "data":
                learner.start_from(from_data(learner))
            result = _first_e_step(learner, series, resume)
            learner.check_gradient(learner.problem.stated, result)
            # An M-step works on natural parameters. Where they have too few digits, the profile is maximised instead.
            theta, result, status = (ascent if result.root is None else by_profile)(learner, result)
            left = max_iterations - (len(learner.rows) - 1)
            if not finish or (left <= 0 and status != "converged"):
                verdict = _as_it_is(learner, theta, result, status, standard_errors)
            else:
                top = _to_the_top(learner, theta, result, tolerance, min(left, STEPS))
                ended = top.status != "max_iterations" or left > STEPS
                verdict = judge(learner, top, tolerance, start == "model") if ended else unjudged(top)
            ended = _finish(learner, verdict, series, standard_errors, resume)
            return _to_be_asked(ended, learner, verdict, tolerance, with_step)

        try:
            before = None if further is None or resume is None else [dataclasses.replace(resume, model=model)]
            fits = before or together(fit, models, keeper.stop)
        except KeyboardInterrupt as interrupt:
            keeper.tell(interrupt, keeper.fit())
            raise
        fits.sort(key=lambda f: -f.history.objective[-1])
        if further is not None:
            learner = Learner(spec, problem.of(fits[0].model), method, priors, time.perf_counter(), say)
            limits = {"tolerance": tolerance, "max_iterations": max_iterations, "check": finish}
            fits[0] = beyond(further, fits[0], learner, series, key, limits, standard_errors, _finish, keeper)
        keeper.write(lambda: fits[0], now=True)
    warn_unresolved(fits[0].posterior, stacklevel=4)
    if fits[0].status not in ("converged", "max_iterations", "flat"):
        warnings.warn(f"learn has not converged ({fits[0].status}): {fits[0].message}", stacklevel=3)
    depends = step_warning(fits[0])
    if depends is not None:
        warnings.warn(f"learn: {depends}", stacklevel=3)
    return fits[0] if len(fits) == 1 else dataclasses.replace(fits[0], restarts=tuple(fits))


def _to_be_asked(fit: Fit, learner: Learner, verdict: Verdict, tolerance: float, with_step: bool) -> Fit:
    """Return the fit with what its profiles work on, and with its dependence on the time step."""
    learner, stepped = learner.alone([]), None
    if with_step and fit.standard_errors is not None and fit.status == "converged":
        stepped = compare_steps(learner, verdict.summit, tolerance)
    return dataclasses.replace(fit, step_error=stepped, session=Session(learner, verdict.summit, tolerance))


# Options that a panel does not take, with their defaults.
_SINGLE = {
    "objective": None,
    "start": "model",
    "optimiser": "lbfgs",
    "learning_rate": 0.1,
    "m_steps": 20,
    "parameter_tolerance": 1e-4,
    "check": True,
    "step_error": None,
    "restarts": 1,
    "key": None,
    "reinitialise": None,
    "resume": None,
    "checkpoint": None,
}


def _check_for_panel(given: dict[str, Any]) -> None:
    """Raise a ValueError for an option that is for a single series."""
    for name, value in given.items():
        if not (value is _SINGLE[name] or value == _SINGLE[name]):
            raise ValueError(
                f"{name}= is for a single series: a panel is learnt by Newton's method from the model given"
            )


def _first_e_step(learner: Learner, series: TimeSeries, resume: Fit | None) -> Run:
    method, problem = learner.method, learner.problem
    kind: Any = getattr(method, "time", "discrete")
    warm = None if resume is None else warm_start(resume.posterior, problem, series, kind)
    result, coarse = method.solve(problem, warm, learner.say)
    if result.status is Status.BAD_START:
        explain_bad_start(problem)
    learner.e_steps, learner.passes = 1, result.passes + sum(r.passes for r in coarse)
    theta = to_vector(learner.spec, problem.stated)
    learner.offer(theta, result)
    learner.record(theta, result.elbo)
    return result


def _to_the_top(learner: Learner, theta: np.ndarray, result: Run, tolerance: float, steps: int) -> Summit:
    """Go on by Newton's method from where an ascent ended."""
    value, grad = result.elbo + learner.prior(theta), learner.envelope(theta, result)[1]
    return newton(learner, Point(theta, result, value, grad), tolerance=tolerance, max_iterations=max(steps, 0))


def _as_it_is(learner: Learner, theta: np.ndarray, result: Run, status: str, standard_errors: bool) -> Verdict:
    """Return the verdict on a fit that Newton's method does not end; the curvature is computed if it is asked for."""
    P = len(theta)
    B = minus_hessian(learner, theta, result, np.arange(P)) if standard_errors else np.full((P, P), np.nan)
    summit = Summit(Point(theta, result, result.elbo + learner.prior(theta), np.full(P, np.nan)), B, status)
    message = MESSAGES[status]
    if np.isfinite(B).all():
        trouble = curvature_trouble(learner, summit)
        if trouble is not None and (status == "converged" or trouble[0] == "flat"):
            status, message = trouble
    return Verdict(status, message, summit)


def _finish(learner: Learner, verdict: Verdict, series: TimeSeries, standard_errors: bool, resume: Fit | None) -> Fit:
    status, message, (point, precision, _) = verdict
    theta, result = point.theta, point.result
    model = to_numpy(insert(learner.spec, theta, learner.problem.stated))
    problem = eqx.tree_at(lambda p: p.stated, learner.problem, model)
    if isinstance(learner.method, CVIDP) and status != "interrupted":
        result = checked_quadrature(problem, result)
    result = checked_boundary(problem, result) if status != "interrupted" else result
    if status == "converged" and result.status is not Status.CONVERGED:
        told = result.status in (Status.ILL_CONDITIONED, Status.QUADRATURE, Status.BOUNDARY)
        status = result.status.name.lower() if told else "stalled"
        message = f"the parameters have converged, but the posterior at them has not: {result.message}"
    errors, covariance = None, None
    if standard_errors and status not in ("flat", "edge"):
        if np.isfinite(precision).all() and np.linalg.eigvalsh(precision)[0] > 0.0:
            found = laplace(learner.spec, theta, precision)
            errors = dict(zip(entries(learner.spec), found.errors.tolist(), strict=True))
            covariance = found.covariance
        else:
            message += "; no standard errors: the bound does not curve downwards in every direction"
    seconds = time.perf_counter() - learner.begun
    post = make_posterior(problem, result, series, run_history(result, []), seconds)
    return Fit(
        model=model,
        posterior=post,
        history=learner.history(None if resume is None else resume.history),
        trainable=tuple(p.path for p in learner.spec),
        status=status,
        message=message,
        standard_errors=errors,
        covariance=covariance,
        directions=directions(learner.spec, theta, precision),
    )
