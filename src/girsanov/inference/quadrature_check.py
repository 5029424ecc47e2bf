"""What a result owes to its quadrature: the bound and its gradient once more, by a rule of higher degree."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from girsanov._core.compile import compiled
from girsanov.chain.moments import Moments, expectations
from girsanov.chain.natural import NaturalChain, inner
from girsanov.chain.smoother import Engine, Smoothed, smooth
from girsanov.inference.careful import Path, bound
from girsanov.inference.continuous import ContinuousSites, evaluate_continuous
from girsanov.inference.loop import Run
from girsanov.inference.objective import Problem, compose, evaluate
from girsanov.inference.status import Status
from girsanov.model.quadrature import richer


class QuadratureError(NamedTuple):
    """- bound: by how much the richer rule's bound at the same q is higher, in nats.
    - decrement: rᵀFr there, in nats: twice what the bound by the richer rule has still to gain, nearly, and of the size
      of the divergence between q and where that rule would have led.
    """

    bound: float
    decrement: float

    @property
    def nats(self) -> float:
        """The larger of the two."""
        return max(abs(self.bound), abs(self.decrement))


_FROM = 4  # dimensions: below, the default rules resolve far more than a tolerance
_LARGE = 0.05  # nats, with which standard deviations were seen to be off by some 5 %


def checked_quadrature(problem: Problem, result: Run) -> Run:
    """The result with its quadrature's error, in many dimensions; converged no more where that is large."""
    if problem.model.dim < _FROM or result.status is Status.BAD_START:
        return result
    error = quadrature_error(problem, result).nats
    result = result._replace(quadrature_error=error)
    if result.status is Status.CONVERGED and not error <= _LARGE:
        return result._replace(status=Status.QUADRATURE, fault=f"by {error:.2g} nats")
    return result


@compiled
def _careful(problem: Problem, q: Path):
    return bound(problem, q)[0]


@compiled
def _discrete(problem: Problem, eta: NaturalChain, q: Moments, engine: Engine):
    elbo, sites = evaluate(problem, Smoothed(q, jnp.zeros(()), jnp.asarray(True)))
    residual = compose(problem, sites) - eta

    def smoothed(eta):
        s = smooth(eta, engine)
        return expectations(s.moments), s.log_det

    (_, log_det), (F_r, _) = jax.jvp(smoothed, (eta,), (residual,))
    return elbo - 0.5 * log_det, inner(residual, F_r)


@compiled
def _continuous(problem: Problem, sites: ContinuousSites):
    here = evaluate_continuous(problem, sites)
    there = evaluate_continuous(problem, here.target)
    return here.elbo, inner(there.eta - here.eta, expectations(there.moments) - expectations(here.moments))


def quadrature_error(problem: Problem, result: Run, engine: Engine = "auto") -> QuadratureError:
    """The result of a run by `problem.rule`, checked with a richer one."""
    checked = eqx.tree_at(lambda p: p.rule, problem, richer(problem.rule))
    if result.root is not None:  # its natural parameters do not hold the digits that a gradient needs
        return QuadratureError(float(_careful(checked, result.root)) - result.elbo, 0.0)
    if isinstance(result.sites, ContinuousSites):
        elbo, decrement = _continuous(checked, result.sites)
    else:
        elbo, decrement = _discrete(checked, result.eta, result.moments, engine)
    return QuadratureError(float(elbo) - result.elbo, float(decrement))
