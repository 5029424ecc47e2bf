"""The quadrature error of a result, found by evaluating the bound and its gradient again by a rule of higher degree."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from girsanov._core.compile import compiled
from girsanov.chain.moments import Moments, expectations
from girsanov.chain.natural import NaturalChain, inner
from girsanov.chain.smoother import Engine, Smoothed, smooth
from girsanov.inference.careful import Path, bound
from girsanov.inference.continuous_bound import ContinuousSites, Process, distance, evaluate_continuous
from girsanov.inference.loop import Run
from girsanov.inference.objective import Posed, compose, evaluate
from girsanov.inference.status import Status
from girsanov.model.quadrature import richer


class QuadratureError(NamedTuple):
    """The difference between a result and the result by a more accurate quadrature rule.

    Attributes:
        bound: the bound by the more accurate rule at the same q, minus the bound of the result, in nats.
        decrement: rᵀFr by the more accurate rule, in nats. It is about twice the gain in the bound that a run with that
            rule would still make, and of the size of the divergence between q and the optimum for that rule.
    """

    bound: float
    decrement: float

    @property
    def nats(self) -> float:
        """The larger absolute value of the two."""
        return max(abs(self.bound), abs(self.decrement))


_FROM = 4  # smallest dimension that is checked; in lower ones the error of the default rules is far below a tolerance
_LARGE = 0.05  # nats; with errors of this size, standard deviations were found to be off by some 5 %


def checked_quadrature(problem: Posed, result: Run) -> Run:
    """Add the quadrature error to a result, from four dimensions on; a large one changes its status to `quadrature`."""
    if problem.model.dim < _FROM or result.status is Status.BAD_START:
        return result
    error = quadrature_error(problem, result).nats
    result = result._replace(quadrature_error=error)
    if result.status is Status.CONVERGED and not error <= _LARGE:
        return result._replace(status=Status.QUADRATURE, fault=f"{error:.2g} nats")
    return result


@compiled
def _careful(problem: Posed, q: Path):
    return bound(problem, q)[0]


@compiled
def _discrete(problem: Posed, eta: NaturalChain, q: Moments, engine: Engine):
    elbo, sites = evaluate(problem, Smoothed(q, jnp.zeros(()), jnp.asarray(True)))
    residual = compose(problem, sites) - eta

    def smoothed(eta):
        s = smooth(eta, engine)
        return expectations(s.moments), s.log_det

    (_, log_det), (F_r, _) = jax.jvp(smoothed, (eta,), (residual,))
    return elbo - 0.5 * log_det, inner(residual, F_r)


@compiled
def _continuous(problem: Posed, sites: ContinuousSites):
    here = evaluate_continuous(problem, sites)
    there = evaluate_continuous(problem, here.target)
    return here.elbo, distance(problem, *(Process(trial.eta, trial.moments, trial.own) for trial in (there, here)))


def quadrature_error(problem: Posed, result: Run, engine: Engine = "auto") -> QuadratureError:
    """Compare the result of a run by `problem.rule` with a more accurate rule at the same q."""
    checked = eqx.tree_at(lambda p: p.rule, problem, richer(problem.rule))
    if result.root is not None:  # its natural parameters have too few digits for a gradient
        return QuadratureError(float(_careful(checked, result.root)) - result.elbo, 0.0)
    if isinstance(result.sites, ContinuousSites):
        elbo, decrement = _continuous(checked, result.sites)
    else:
        elbo, decrement = _discrete(checked, result.eta, result.moments, engine)
    return QuadratureError(float(elbo) - result.elbo, float(decrement))
