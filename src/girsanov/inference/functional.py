"""The functional core: inference as a function of arrays, for use inside a user's own `jit`, `vmap` and `grad`.

`prepare` checks a model and a series on the host and lays out the arrays of a run. `solve` and `bound` are pure: no
callback, no exception for what the numbers do, the status among the results. They run the algorithm of `gv.CVIDP` on
the final grid, from the data alone or from an earlier solution. The derivative of the bound is by the envelope theorem:
at q*, where L(q, θ) is largest in q, the derivative of max_q L(q, θ) is ∂L/∂θ with q* held fixed, so nothing is
differentiated through the iterations.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float, Int

from girsanov._core.precision import float64, in_a_users_program
from girsanov._core.types import Array
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain
from girsanov.chain.smoother import Smoothed
from girsanov.data.grid import make_grid
from girsanov.data.series import TimeSeries
from girsanov.inference.conditioning import traced_status
from girsanov.inference.continuous import Continuous, ContinuousSites, at_all_nodes, evaluate_continuous
from girsanov.inference.cvi_dp import CVIDP, check_method
from girsanov.inference.levels import make_problem
from girsanov.inference.loop import Algorithm, Carry, Limits, iterate
from girsanov.inference.method import Method
from girsanov.inference.objective import Problem, evaluate
from girsanov.inference.status import Status
from girsanov.model.model import Model, check_inputs


class Solution(eqx.Module):
    """q on the nodes of a problem, and the bound that it reaches: a pytree.

    - times, mean, cov: of the nodes. A grid is padded at its end, so that series of one length share one program: the
      nodes after the last one repeat it.
    - elbo: the evidence bound, in nats.
    - status, iterations: a number of `Status`, and how many iterations there were; `converged` says whether it is 1.
    """

    times: Float[Array, " N"]
    mean: Float[Array, "N d"]
    cov: Float[Array, "N d d"]
    elbo: Float[Array, ""]
    status: Int[Array, ""]
    iterations: Int[Array, ""]
    moments: Moments
    natural: NaturalChain
    sites: Any

    @property
    def converged(self) -> Bool[Array, "..."]:
        return self.status == int(Status.CONVERGED)


@float64
def prepare(
    model: Model,
    series: TimeSeries,
    dt: float | None = None,
    span: tuple[float, float] | None = None,
    *,
    grid: Any = None,
    method: Method | None = None,
) -> Problem:
    """The arrays of a run: the grid, the data on it, the rule of quadrature, and the method's settings.

    Args:
        model: a model of the shape that `solve` and `bound` will get; its numbers do not matter.
        series: the observations.
        dt, span, grid: the time grid, as for `infer`.
        method: `gv.CVIDP(...)`, in discrete or continuous time.

    Returns:
        A pytree of arrays. Problems of series with one number of observations, on grids of one dt and span, have the
        same shapes: they can be stacked, and `solve` and `bound` mapped over them.
    """
    method = check_method(method)
    if not isinstance(method, CVIDP):
        raise ValueError(f"prepare takes method=gv.CVIDP(...), got {method!r}; VDP is for gv.infer")
    check_inputs(model, series)
    nodes = make_grid(series, dt, span, grid)
    problem = make_problem(model, series, nodes, method.rule(model.dim))
    return dataclasses.replace(problem, model=None, method=method)


@in_a_users_program
def solve(model: Model, problem: Problem, start: Solution | None = None) -> Solution:
    """q at the maximum of the bound, inside `jit` and `vmap`.

    Args:
        model: its arrays may be traced.
        problem: what `prepare` returned.
        start: an earlier solution of the same problem to start from, at other parameters say.

    Returns:
        The solution, with a status instead of an exception where there is none.
    """
    posed = _posed(model, problem)
    method = problem.method
    if method.time == "continuous":
        carry = _continuous(posed, method, start)
        status = carry.status
    else:
        carry = _run(method.algorithm(), posed, method, None if start is None else start.natural)
        status = traced_status(posed, carry)
    last = jnp.minimum(jnp.arange(posed.times.shape[0]), posed.size - 1)
    q = carry.moments
    return Solution(
        times=jnp.asarray(posed.times),
        mean=q.m[:, last].T,
        cov=jnp.moveaxis(q.S[..., last], -1, 0),
        elbo=carry.elbo,
        status=status,
        iterations=jnp.maximum(carry.iteration, 0),
        moments=q,
        natural=carry.eta,
        sites=carry.sites,
    )


def bound(model: Model, problem: Problem, start: Solution | None = None) -> Float[Array, ""]:
    """max_q of the evidence bound, in nats: inside `jit`, `vmap`, and `grad` in the arrays of the model.

    Args and meaning as for `solve`; minus infinity where there is nothing to start from. Only first derivatives, in
    reverse mode. In discrete time the gradient is exact where q has converged; in continuous time it is, as the bound
    itself, of second order in dt.
    """
    return _bound(model, problem, start)


@eqx.filter_custom_vjp
def _bound(model: Model, problem: Problem, start: Solution | None) -> Float[Array, ""]:
    return solve(model, problem, start).elbo


@_bound.def_fwd
def _bound_forward(perturbed, model: Model, problem: Problem, start: Solution | None):
    solution = solve(model, problem, start)
    return solution.elbo, (solution.moments, solution.sites)


@_bound.def_bwd
def _bound_backward(residuals, cotangent, perturbed, model: Model, problem: Problem, start: Solution | None):
    moments, sites = residuals
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)

    @in_a_users_program
    def at_q(arrays):
        return _at_q(eqx.combine(arrays, rest), problem, moments, sites)

    # Transitions of the continuous process are made in loops of a length that depends on the numbers: these have
    # derivatives in forward mode only, one pass a number.
    if isinstance(sites, ContinuousSites):
        vector, back = ravel_pytree(jax.tree.map(jnp.asarray, arrays))
        gradient = back(jax.jacfwd(lambda v: at_q(back(v)))(vector))
    else:
        gradient = jax.grad(at_q)(arrays)
    return jax.tree.map(lambda g: cotangent * g, gradient)


def _at_q(model: Model, problem: Problem, moments: Moments, sites: Any) -> Float[Array, ""]:
    """L(q, θ) up to what does not depend on θ. In continuous time q is held by its sites: its noise is the model's."""
    posed = _posed(model, problem)
    if isinstance(sites, ContinuousSites):
        return evaluate_continuous(posed, sites).elbo
    return evaluate(posed, Smoothed(moments, jnp.zeros(()), jnp.asarray(True)))[0]


def _posed(model: Model, problem: Problem) -> Problem:
    """The problem with this model, all of it in JAX arrays."""
    arrays = jax.tree.map(lambda a: jnp.asarray(a) if eqx.is_array_like(a) else a, (model, problem))
    return dataclasses.replace(arrays[1], model=arrays[0])


def _run(algorithm: Algorithm, problem: Problem, method: CVIDP, start: Any, **limits: float) -> Carry:
    tolerance, most = limits.get("tolerance", method.tolerance), jnp.asarray(method.max_iterations)
    begin = algorithm.blank_start(problem) if start is None else start
    carry = algorithm.begin(problem, begin, jnp.asarray(start is not None))
    return algorithm.common(iterate(algorithm, problem, carry, Limits(jnp.asarray(tolerance), most)))


def _continuous(problem: Problem, method: CVIDP, start: Solution | None) -> Carry:
    """From the solution of the discrete model, as `CVIDP` does, or from an earlier continuous one."""
    rho = jnp.asarray(1.0 if method.rho is None else method.rho)
    algorithm = Continuous(rho=rho, safeguard=method.safeguard, engine=method.engine)
    if start is None:
        discrete = CVIDP(engine=method.engine, max_iterations=method.max_iterations)
        first = _run(discrete.algorithm(), problem, discrete, None, tolerance=max(1e-3, method.tolerance))
        sites = first.sites
        begin = ContinuousSites(at_all_nodes(sites.base), sites.dense, sites.dense, sites.data)
        given = first.status != int(Status.BAD_START)
    else:
        begin, given = start.sites, jnp.asarray(True)
    carry = algorithm.begin(problem, begin, given)
    limits = Limits(jnp.asarray(method.tolerance), jnp.asarray(method.max_iterations))
    return algorithm.common(iterate(algorithm, problem, carry, limits))
