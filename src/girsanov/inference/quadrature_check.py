"""The quadrature error of a posterior, found by evaluating the bound and its gradient again by a richer rule."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from girsanov._core.compile import compiled
from girsanov._core.special import EPSILON
from girsanov.chain.moments import Moments, expectations
from girsanov.chain.natural import NaturalChain, inner
from girsanov.chain.smoother import Smoothed, smooth
from girsanov.inference.careful import Path, bound
from girsanov.inference.continuous_bound import (
    ContinuousSites,
    ContinuousTrial,
    Process,
    distance,
    evaluate_continuous,
)
from girsanov.inference.loop import Run
from girsanov.inference.objective import Posed, compose, evaluate
from girsanov.inference.status import Status
from girsanov.model.quadrature import Rule, richer, stronger


class QuadratureError(NamedTuple):
    """The difference between a quadrature rule and a more accurate one, at one q.

    Attributes:
        bound: the bound by the more accurate rule minus the bound by the rule, in nats.
        decrement: rᵀFr in nats, where r is the difference of the gradients and F the Fisher information of q. At the
            optimum by the rule it is about twice the gain in the bound that a run with the more accurate rule would
            still make, and of the size of the divergence between q and the optimum for that rule.
    """

    bound: float
    decrement: float

    @property
    def nats(self) -> float:
        """The larger absolute value of the two."""
        return max(abs(self.bound), abs(self.decrement))


_FROM = 4  # smallest dimension in which every run is checked: for smooth drifts in lower ones the rules are near exact
_LARGE = 0.05  # nats; with errors of this size, standard deviations were found to be off by some 5 %


def checked_quadrature(problem: Posed, result: Run) -> Run:
    """Add the quadrature error to a result; a large one changes its status to `quadrature`.

    It is checked from four dimensions on, and if the emission is not linear or the careful algorithm made the result.
    """
    checked = problem.model.dim >= _FROM or not problem.model.observation.is_linear or result.root is not None
    if not checked or result.status is Status.BAD_START:
        return result
    error = quadrature_error(problem, result.eta, result.moments, result.sites, result.root).nats
    result = result._replace(quadrature_error=error)
    if result.status is Status.CONVERGED and not error <= max(_LARGE, _rounding(result)):
        return result._replace(status=Status.QUADRATURE, fault=f"{error:.2g} nats; {remedy(problem.rule)}")
    return result


def _rounding(result: Run) -> float:
    """Return the rounding error of the bound, a sum over the nodes: a smaller difference of two rules tells nothing."""
    return EPSILON * np.log2(result.moments.m.shape[-1]) * abs(float(result.trace["elbo"][-1]))


def remedy(rule: Rule) -> str:
    """Return what to do where a rule is not accurate enough."""
    return f"use method=gv.CVIDP(quadrature={stronger(rule)})"


def quadrature_error(
    problem: Posed, eta: NaturalChain, moments: Moments, sites: Any, root: Path | None = None
) -> QuadratureError:
    """Compare `problem.rule` with a more accurate rule at one q.

    Args:
        problem: the model, the data on a grid, and the rule.
        eta: q by its natural parameters.
        moments: q by its moments.
        sites: q by its sites, if these are `ContinuousSites`; others are not used.
        root: q in square-root form, if its natural parameters have too few digits for a gradient.

    Returns:
        The differences of the bound and of its gradient.
    """
    fine = eqx.tree_at(lambda p: p.rule, problem, richer(problem.rule))
    if root is not None:
        better, given = (float(_careful(p, root)) for p in (fine, problem))
        return QuadratureError(better - given, 0.0)
    if isinstance(sites, ContinuousSites):
        better, given = (_evaluated(p, sites) for p in (fine, problem))
        there, here = (_process(_evaluated(p, e.target)) for p, e in ((fine, better), (problem, given)))
        return QuadratureError(float(better.elbo - given.elbo), float(_apart(problem, there, here)))
    (better, there), (given, here) = (_discrete(p, moments) for p in (fine, problem))
    return QuadratureError(float(better - given), float(_squared_length(eta, there - here)))


@compiled
def _careful(problem: Posed, q: Path):
    return bound(problem, q)[0]


@compiled
def _discrete(problem: Posed, q: Moments):
    """Return the bound, but for the entropy of q, and the natural parameters that its gradient is."""
    value, sites = evaluate(problem, Smoothed(q, jnp.zeros(()), jnp.asarray(True)))
    return value, compose(problem, sites)


@compiled
def _squared_length(eta: NaturalChain, residual: NaturalChain):
    """Return rᵀFr, where F = ∂μ/∂η."""
    return inner(residual, jax.jvp(lambda e: expectations(smooth(e).moments), (eta,), (residual,))[1])


_evaluated, _apart = compiled(evaluate_continuous), compiled(distance)


def _process(trial: ContinuousTrial) -> Process:
    return Process(trial.eta, trial.moments, trial.own)
