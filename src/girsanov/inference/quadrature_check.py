"""What a result owes to its quadrature: the bound and its gradient once more, by a rule of higher degree."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from girsanov._compile import compiled
from girsanov.chain.moments import Moments, expectations
from girsanov.chain.natural import NaturalChain, inner
from girsanov.chain.smoother import Engine, Smoothed, smooth
from girsanov.inference.continuous import ContinuousSites, evaluate_continuous
from girsanov.inference.loop import Run
from girsanov.inference.objective import Problem, compose, evaluate
from girsanov.quadrature import richer


class QuadratureError(NamedTuple):
    """- bound: by how much the richer rule's bound at the same q is higher, in nats.
    - decrement: rᵀFr there, in nats: twice what the bound by the richer rule has still to gain, nearly, and of the size
      of the divergence between q and where that rule would have led.
    """

    bound: float
    decrement: float


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
    if isinstance(result.sites, ContinuousSites):
        elbo, decrement = _continuous(checked, result.sites)
    else:
        elbo, decrement = _discrete(checked, result.eta, result.moments, engine)
    return QuadratureError(float(elbo) - result.elbo, float(decrement))
