"""The ways from a first E-step to the best parameters: variational EM, and L-BFGS on the profile of the bound."""

from collections.abc import Callable
from typing import Any

import numpy as np

from girsanov._core.ascent import Maximum, lbfgs
from girsanov.inference.loop import Run
from girsanov.inference.method import Start
from girsanov.inference.sites import Sites
from girsanov.inference.status import Status
from girsanov.learning.learner import Learner
from girsanov.learning.objectives import Expansion, modified_value_and_grad
from girsanov.learning.optimise import maximise
from girsanov.learning.parameters import to_vector, units

Climb = Callable[[Learner, Run], tuple[np.ndarray, Run, str]]


def climb(objective: str, limits: dict[str, Any], how: dict[str, Any]) -> Climb:
    """Return the function that takes the first E-step and returns the fitted θ, the last E-step and the status."""
    if objective == "profile":
        return lambda learner, result: _profile(learner, result, **limits)
    m_step = _modified_m_step if objective == "modified" else _standard_m_step
    return lambda learner, result: _em(learner, result, m_step, how, **limits)


def _modified_m_step(learner: Learner, theta: np.ndarray, result: Run, how: dict) -> tuple[Maximum, Start]:
    """Maximise l(θ) with the dense sites of the last E-step; the next E-step starts from the chain at the new θ."""
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
    """Maximise L(q, θ) over θ with q fixed; the next E-step starts from q."""
    top = maximise(lambda t: learner.envelope(t, result), theta, units(learner.spec, theta), **how)
    return top, learner.start(result, result.sites, result.eta)


def _em(learner, result, m_step, how, *, tolerance, parameter_tolerance, max_iterations):
    theta = to_vector(learner.spec, learner.problem.stated)
    for _ in range(max_iterations):
        top, start = m_step(learner, theta, result, how)
        new = learner.e_step(top.theta, start)
        gain = new.elbo + learner.prior(top.theta) - result.elbo - learner.prior(theta)
        unit = units(learner.spec, theta)
        moved = np.abs((top.theta - theta) / unit).max()
        if new.status is Status.BAD_START or gain < -max(tolerance, 10 * learner.method.tolerance):
            return theta, result, "stalled"
        # Without a gain the next M-step would propose the same step again, and a slow ascent has small gains long
        # before its end. If the gradient of the bound still predicts that a move by parameter_tolerance gains more than
        # the tolerance, the optimiser is at fault; or, with L-BFGS, the M-step does not see the gain, because of
        # rounding or because its steps are too short, and the search goes on with the profile of the bound.
        # An E-step at the same parameters may gain a rounding error, which is none.
        idle = gain <= 0 or moved == 0.0
        ends = idle or (gain < tolerance and moved < parameter_tolerance)
        if gain > 0:
            theta, result = top.theta, new
        if ends and not np.abs(learner.envelope(theta, result)[1] * unit).max() * parameter_tolerance <= tolerance:
            if how["optimiser"] != "lbfgs":
                return theta, result, "stalled"
            limits = {"parameter_tolerance": parameter_tolerance, "max_iterations": max_iterations}
            return _profile(learner, result, theta, tolerance=tolerance, **limits)
        learner.record(theta, result.elbo)
        if ends:
            return theta, result, "converged"
    return theta, result, "max_iterations"


def _profile(learner, result, theta=None, *, tolerance, parameter_tolerance, max_iterations):
    """Maximise the profile max_q L(q, θ) by L-BFGS from θ, by default the model's own parameters.

    Each evaluation is a warm-started E-step; `result` is the E-step at the start.
    """
    theta = to_vector(learner.spec, learner.problem.stated) if theta is None else theta
    state = {"theta": theta, "result": result, "value": result.elbo + learner.prior(theta)}

    def value_and_grad(t: np.ndarray) -> tuple[float, np.ndarray]:
        last = state["result"]
        new = result if np.array_equal(t, theta) else learner.e_step(t, learner.start(last, last.sites, last.eta))
        if new.status is Status.BAD_START:
            return -np.inf, np.zeros_like(t)
        value, (_, grad) = new.elbo + learner.prior(t), learner.envelope(t, new)
        if value > state["value"] and np.isfinite(grad).all():  # the next E-step starts from its q
            state.update(theta=np.array(t), result=new, value=value)
        return value, grad

    def accepted(_: np.ndarray) -> None:
        learner.record(state["theta"], state["result"].elbo)

    options = {"maxiter": max_iterations, "ftol": tolerance / max(1.0, abs(result.elbo)), "gtol": 1e-5}
    _, out = lbfgs(value_and_grad, theta, units(learner.spec, theta), options, accepted)
    if not np.array_equal(learner.rows[-1][1], state["result"].elbo):
        learner.record(state["theta"], state["result"].elbo)
    status = "max_iterations" if out.status == 1 else "converged" if out.success else "stalled"
    return state["theta"], state["result"], status
