"""`learn`: parameters by variational EM, or by quasi-Newton steps on the profile of the bound."""

import dataclasses
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import numpy as np

from girsanov._core.checks import check_positive, check_whole
from girsanov._core.precision import float64, to_numpy
from girsanov._core.progress import reporter
from girsanov.chain.natural import NaturalChain
from girsanov.data.grid import Grid, make_grid
from girsanov.data.series import TimeSeries
from girsanov.inference.cvi_dp import check_method
from girsanov.inference.loop import Run
from girsanov.inference.method import Method, Start, reject_unknown
from girsanov.inference.objective import Problem
from girsanov.inference.sites import Sites
from girsanov.inference.status import Status
from girsanov.learning.checks import check_learnable, check_objective, check_priors, check_resume
from girsanov.learning.curvature import laplace
from girsanov.learning.objectives import (
    Expansion,
    careful_value_and_grad,
    log_prior,
    modified_value_and_grad,
    standard_value_and_grad,
    with_parameters,
)
from girsanov.learning.optimise import PENALTY, Maximum, lbfgs, maximise
from girsanov.learning.parameters import Spec, entries, insert, make_spec, split, to_vector, units
from girsanov.model.model import Model, check_inputs
from girsanov.result.fit import Fit, FitHistory
from girsanov.result.infer import (
    explain_bad_start,
    make_posterior,
    run_history,
    warm_start,
)
from girsanov.result.resolution import warn_unresolved

_MESSAGES = {
    "converged": "converged",
    "max_iterations": "stopped at max_iterations before the tolerances were met; raise it, or go on with resume=",
    "stalled": "no step raised the objective although it has not converged; the best parameters met are returned",
}


@dataclasses.dataclass
class Learner:
    """What one fit works with: the problem on its grid, the E-step, and the record."""

    spec: Spec
    problem: Problem
    method: Method
    priors: dict
    begun: float
    say: Callable[[str], None] | None
    rows: list[tuple] = dataclasses.field(default_factory=list)
    e_steps: int = 0
    passes: int = 0

    def at(self, theta: np.ndarray) -> Problem:
        return to_numpy(with_parameters(self.spec, theta, self.problem))

    def e_step(self, theta: np.ndarray, start: Start, **limits: Any) -> Run:
        result = self.method.continue_from(self.at(theta), start, **limits)
        self.e_steps += 1
        self.passes += result.passes
        return result

    def start(self, result: Run, sites: Sites, eta: NaturalChain) -> Start:
        """Where the E-step after `result` begins."""
        return self.method.next_start(result, sites, eta)

    def prior(self, theta: np.ndarray) -> float:
        return float(log_prior(self.spec, theta, self.priors)) if self.priors else 0.0

    def record(self, theta: np.ndarray, elbo: float) -> None:
        values = {k: np.asarray(v) for k, v in split(self.spec, theta).items()}
        objective = elbo + self.prior(theta)
        seconds = time.perf_counter() - self.begun
        self.rows.append((values, elbo, objective, self.e_steps, self.passes, seconds))
        if self.say is not None:
            self.say(f"learning, iteration {len(self.rows) - 1}, evidence bound {elbo:.6g}")

    def history(self, before: FitHistory | None = None) -> FitHistory:
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
        """Raise a ValueError that names the parameters in which the bound has no derivative at the start."""
        _, grad = self.envelope(to_vector(self.spec, model), result)
        if not np.isfinite(grad).all():
            names = [n for n, g in zip(entries(self.spec), grad, strict=True) if not np.isfinite(g)]
            raise ValueError(
                f"the bound is finite at the starting parameters, but its derivative in {', '.join(names)} is not: "
                "write the drift so that it can be differentiated wherever the posterior may go"
            )

    def envelope(self, theta: np.ndarray, result: Run) -> tuple[float, np.ndarray]:
        """The bound with q held fixed, and its gradient in θ: the profile's gradient where q is optimal."""
        self.passes += 1
        if result.root is not None:
            value, grad = careful_value_and_grad(theta, self.spec, self.problem, result.root, self.priors)
        else:
            value, grad = standard_value_and_grad(
                theta, self.spec, self.problem, result.moments, np.float64(0), self.priors
            )
        return float(value), np.asarray(grad)


@float64
def learn(
    model: Model,
    series: TimeSeries,
    dt: float | None = None,
    span: tuple[float, float] | None = None,
    *,
    trainable: Sequence[str] | str,
    objective: str | None = None,
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
    restarts: int = 1,
    key: Any = None,
    reinitialise: Callable[[Any, Any], Any] | None = None,
    resume: Fit | None = None,
    progress: bool = True,
    **unknown: Any,
) -> Fit:
    """Fit parameters of `model` by maximising the evidence bound; `dt`, `span`, `grid` and `method` as for `infer`.

    - trainable: names or paths, e.g. ["drift", "diffusion", "likelihood.variance", "initial"]; the rest is frozen.
    - objective: "modified" (the paper's M-step: the base follows θ, the dense sites are fixed), "standard" (q fixed)
      or "profile" (L-BFGS on max_q of the bound, an E-step an evaluation). By default "modified", with VDP "standard".
    - optimiser: of an M-step, "lbfgs", "adam" or an optax transformation, with `m_steps` and `learning_rate`.
    - tolerance, parameter_tolerance: stop when an iteration gains less (nats) and moves every free parameter less (by
      this share of those much larger or smaller than one).
    - constraints: by path, "real", "positive", "full" (positive definite) or (low, high), over the defaults.
    - priors: numpyro distributions by path; the fit is then the mode of bound plus log prior.
    - restarts: fits from parameters drawn anew with `key`, the best by bound and prior kept, all of them reported.
    - resume: an earlier fit to go on from.
    """
    reject_unknown("learn", unknown, learn)
    method = check_method(method)
    check_whole(max_iterations=max_iterations, m_steps=m_steps, restarts=restarts)
    check_positive(tolerance=tolerance, parameter_tolerance=parameter_tolerance, learning_rate=learning_rate)
    objective = check_objective(objective, method, optimiser)
    check_inputs(model, series)
    nodes = make_grid(series, dt, span, grid)
    spec = make_spec(model, trainable, constraints)
    priors = check_priors(spec, priors)
    check_resume(spec, resume, model)
    model = model if resume is None else resume.model
    check_learnable(spec, method)
    limits = {"tolerance": tolerance, "parameter_tolerance": parameter_tolerance, "max_iterations": max_iterations}
    climb = _climb(objective, limits, {"optimiser": optimiser, "steps": m_steps, "learning_rate": learning_rate})
    by_profile = _climb("profile", limits, {})
    models = _restart_models(model, restarts, key, reinitialise)
    with reporter(progress) as say:

        @float64
        def fit(candidate: Model) -> Fit:
            learner, result = _first_e_step(candidate, series, nodes, spec, method, priors, resume, say)
            learner.check_gradient(learner.problem.model, result)
            # The sites of an M-step are natural parameters: where those do not hold their digits, the profile serves.
            theta, result, status = (climb if result.root is None else by_profile)(learner, result)
            return _finish(learner, theta, result, status, series, nodes, standard_errors, resume)

        fits = _together(fit, models)
    fits.sort(key=lambda f: -f.history.objective[-1])
    warn_unresolved(fits[0].posterior, stacklevel=4)
    if fits[0].status in ("stalled", "ill_conditioned"):
        warnings.warn(f"learn has not converged ({fits[0].status}): {fits[0].message}", stacklevel=3)
    return fits[0] if len(fits) == 1 else dataclasses.replace(fits[0], restarts=tuple(fits))


Climb = Callable[[Learner, Run], tuple[np.ndarray, Run, str]]


def _climb(objective: str, limits: dict[str, Any], how: dict[str, Any]) -> Climb:
    """The way from a first E-step to the parameters, the last E-step and the status."""
    if objective == "profile":
        return lambda learner, result: _profile(learner, result, **limits)
    m_step = _modified_m_step if objective == "modified" else _standard_m_step
    return lambda learner, result: _em(learner, result, m_step, how, **limits)


def _restart_models(model: Model, restarts: int, key: Any, reinitialise: Any) -> list[Model]:
    """The model itself and `restarts − 1` copies whose drift is drawn anew."""
    if restarts == 1:
        return [model]
    if key is None:
        raise ValueError("restarts need a key=, e.g. jax.random.key(0)")
    redraw = reinitialise or getattr(type(model.drift), "reinitialise", None)
    if redraw is None:
        raise ValueError("this drift cannot draw itself anew: give reinitialise=lambda drift, key: ...")
    drifts = [_same_kind(model.drift, redraw(model.drift, k)) for k in jax.random.split(key, restarts - 1)]
    return [model, *(eqx.tree_at(lambda m: m.drift, model, d) for d in drifts)]


def _same_kind(drift: Any, redrawn: Any) -> Any:
    """The redrawn drift with its numbers as parameters; it must have the structure and shapes of the old one."""
    new = jax.tree.map(lambda a: np.asarray(a, np.float64) if eqx.is_inexact_array_like(a) else a, redrawn)
    if jax.tree.structure(new) != jax.tree.structure(drift):
        raise ValueError(f"reinitialise must return a drift of the same structure as {drift!r}, got {redrawn!r}")
    for a, b in zip(jax.tree.leaves(drift), jax.tree.leaves(new), strict=True):
        if np.shape(a) != np.shape(b):
            raise ValueError(f"reinitialise changed the shape of a parameter from {np.shape(a)} to {np.shape(b)}")
    return new


def _together(fit: Callable[[Model], Fit], models: list[Model]) -> list[Fit]:
    """All the fits, as many at a time as this process has threads: compiled code runs outside the interpreter's lock.

    A worker among several has one thread (OMP_NUM_THREADS); elsewhere there are as many as processors.
    """
    allowed = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    threads = min(len(models), int(allowed) if allowed.isdigit() else os.cpu_count() or 1)
    if threads <= 1:
        return [fit(model) for model in models]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(fit, models))


def _first_e_step(model, series, nodes, spec, method, priors, resume, say) -> tuple[Learner, Run]:
    begun = time.perf_counter()
    warm = None if resume is None else warm_start(resume.posterior, model, series)
    problem, result, coarse = method.solve(model, series, nodes, warm, say)
    if result.status is Status.BAD_START:
        explain_bad_start(problem)
    learner = Learner(spec, problem, method, priors, begun, say)
    learner.e_steps, learner.passes = 1, result.passes + sum(r.passes for r in coarse)
    learner.record(to_vector(spec, model), result.elbo)
    return learner, result


def _modified_m_step(learner: Learner, theta: np.ndarray, result: Run, how: dict) -> tuple[Maximum, Start]:
    """Maximise l(θ) with the dense sites of the last E-step; the next one starts from the chain at the new θ."""
    q_k = Expansion(result.eta, result.moments, result.sites.base, result.sites.data)
    chains, engine = {}, getattr(learner.method, "engine", "auto")

    def value_and_grad(t: np.ndarray) -> tuple[float, np.ndarray]:
        learner.passes += 1
        (value, (base, data, eta, ok)), grad = modified_value_and_grad(
            t, theta, learner.spec, learner.problem, q_k, learner.priors, engine
        )
        chains[t.tobytes()] = (Sites(base, result.sites.dense, data), eta)
        return (float(value) if bool(ok) else -np.inf), np.asarray(grad)

    top = maximise(value_and_grad, theta, units(learner.spec, theta), **how)
    return top, learner.start(result, *chains[top.theta.tobytes()])


def _standard_m_step(learner: Learner, theta: np.ndarray, result: Run, how: dict) -> tuple[Maximum, Start]:
    """Maximise L(q, θ) with q fixed."""
    top = maximise(lambda t: learner.envelope(t, result), theta, units(learner.spec, theta), **how)
    return top, learner.start(result, result.sites, result.eta)


def _em(learner, result, m_step, how, *, tolerance, parameter_tolerance, max_iterations):
    theta = to_vector(learner.spec, learner.problem.model)
    for _ in range(max_iterations):
        top, start = m_step(learner, theta, result, how)
        new = learner.e_step(top.theta, start)
        gain = new.elbo + learner.prior(top.theta) - result.elbo - learner.prior(theta)
        unit = units(learner.spec, theta)
        moved = np.abs((top.theta - theta) / unit).max()
        # An optimiser that did not move although a step of the parameters' tolerance promises more than the bound's.
        stuck = moved == 0.0 and not np.abs(top.grad * unit).max() * parameter_tolerance <= tolerance
        if new.status is Status.BAD_START or stuck or gain < -max(tolerance, 10 * learner.method.tolerance):
            return theta, result, "stalled"
        if gain > 0:
            theta, result = top.theta, new
        learner.record(theta, result.elbo)
        # What is turned down would be proposed again: without a gain, the E-steps resolve no more.
        if gain <= 0 or (gain < tolerance and moved < parameter_tolerance):
            return theta, result, "converged"
    return theta, result, "max_iterations"


def _profile(learner, result, *, tolerance, parameter_tolerance, max_iterations):
    """L-BFGS on max_q L(q, θ): every evaluation is a warm-started E-step."""
    theta = to_vector(learner.spec, learner.problem.model)
    state = {"theta": theta, "result": result, "value": result.elbo + learner.prior(theta)}

    def negative(t: np.ndarray) -> tuple[float, np.ndarray]:
        last = state["result"]
        new = result if np.array_equal(t, theta) else learner.e_step(t, learner.start(last, last.sites, last.eta))
        if new.status is Status.BAD_START:
            return PENALTY, np.zeros_like(t)
        value, (_, grad) = new.elbo + learner.prior(t), learner.envelope(t, new)
        if not np.isfinite(grad).all():
            return PENALTY, np.zeros_like(t)
        if value > state["value"]:
            state.update(theta=np.array(t), result=new, value=value)
        return -value, -grad

    def accepted(_: np.ndarray) -> None:
        learner.record(state["theta"], state["result"].elbo)

    options = {"maxiter": max_iterations, "ftol": tolerance / max(1.0, abs(result.elbo)), "gtol": 1e-5}
    out = lbfgs(negative, theta, units(learner.spec, theta), options, accepted)
    if not np.array_equal(learner.rows[-1][1], state["result"].elbo):
        learner.record(state["theta"], state["result"].elbo)
    status = "max_iterations" if out.status == 1 else "converged" if out.success else "stalled"
    return state["theta"], state["result"], status


def _finish(learner, theta, result, status, series, nodes: Grid, standard_errors: bool, resume) -> Fit:
    message, errors, covariance = _MESSAGES[status], None, None
    if status == "converged" and result.status is not Status.CONVERGED:
        status = "ill_conditioned" if result.status is Status.ILL_CONDITIONED else "stalled"
        message = f"the parameters have settled, but the posterior at them has not converged: {result.message}"
    if standard_errors:
        curvature = laplace(learner, theta, result)
        errors, covariance = curvature.errors, curvature.covariance
        if curvature.flat:
            status, message = "flat", curvature.message
        elif curvature.message:
            message = f"{message}; {curvature.message}"
    model = to_numpy(insert(learner.spec, theta, learner.problem.model))
    seconds = time.perf_counter() - learner.begun
    problem = eqx.tree_at(lambda p: p.model, learner.problem, model)
    post = make_posterior(problem, result, series, run_history(result, []), nodes, seconds)
    history = learner.history(None if resume is None else resume.history)
    return Fit(model, post, history, tuple(p.path for p in learner.spec), status, message, errors, covariance)
