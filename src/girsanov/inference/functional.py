"""Inference as a function of arrays, for use inside a user's own `jit`, `vmap` and `grad`.

`prepare` checks a model and a series on the host and returns the arrays of a run. `solve` and `bound` are pure
functions: they have no callbacks, and report numerical trouble by a status instead of an exception. They run the
algorithm of `gv.CVIDP` on the final grid, from the data alone or from an earlier solution. The envelope theorem gives
the derivative of the bound: at q*, where L(q, θ) is largest in q, the derivative of max_q L(q, θ) is ∂L/∂θ with q* held
fixed, so the iterations need not be differentiated.
"""

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
from girsanov.data.grid import make_grid
from girsanov.data.on_grid import SeriesOnGrid, on_grid
from girsanov.data.series import TimeSeries
from girsanov.inference.conditioning import traced_status
from girsanov.inference.continuous_bound import ContinuousSites
from girsanov.inference.cvi_dp import (
    CVIDP,
    check_method,
    continuous_algorithm,
    continuous_start,
    discrete_algorithm,
    discrete_method,
)
from girsanov.inference.envelope import bound_at, value_and_grad_at
from girsanov.inference.loop import Algorithm, Carry, Limits, iterate
from girsanov.inference.method import Method
from girsanov.inference.objective import Posed
from girsanov.inference.singular import check_singular
from girsanov.inference.status import Status
from girsanov.model.diffusions import Diffusion, NoiseForm, StateDiffusion
from girsanov.model.driven import shift
from girsanov.model.latent import state_moments
from girsanov.model.model import Model, check_inputs, with_errors_known
from girsanov.model.quadrature import Rule


class Problem(eqx.Module):
    """The arrays that `solve` and `bound` work on, as `prepare` returns them: a pytree without the model.

    Attributes:
        data: the time grid and the observations on its nodes.
        rule: quadrature nodes and weights for expectations of the drift.
        method: the settings of the algorithm.
        noise: which coordinates have noise. The values of a traced diffusion do not tell; None if the noise depends on
            the state.
    """

    data: SeriesOnGrid
    rule: Rule
    method: Any = eqx.field(static=True)
    noise: NoiseForm | None = eqx.field(static=True)

    def of(self, model: Model) -> Posed:
        """Return the problem that consists of this model and these data."""
        model = with_errors_known(model.driven_by(None), self.data.errors)
        if self.noise is not None and isinstance(model.noise, Diffusion):
            noise = model.noise.formed(self.noise)
            if noise is not model.noise:
                model = eqx.tree_at(lambda m: m.noise, model, noise)
        return Posed(model, self.data, self.rule)


class Solution(eqx.Module):
    """The Gaussian posterior q at the nodes of a problem, and its evidence bound: a pytree.

    The grid is padded at its end, so that series of equal length share one compiled program. The padding repeats the
    last node.

    Attributes:
        times: times of the nodes, (N,).
        mean: means of the state, (N, d).
        cov: covariances of the state, (N, d, d).
        elbo: the evidence bound, in nats.
        status: a number of `gv.Status`; 1 is converged.
        iterations: number of iterations.
        moments, natural: q by its moments and by its natural parameters, with time as the last axis, in coordinates in
            which the noise is constant.
        sites: the sites given by the gradient of the bound at q.
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
        """Whether the run met its tolerance."""
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
    """Prepare the arrays of a run: the time grid, the data on it, the quadrature rule, and the method's settings.

    Call it outside `jit`. It checks the model and the series.

    Args:
        model: a model with the shapes of those that `solve` and `bound` will get, and with noise in the same
            coordinates; otherwise the values of its parameters do not matter.
        series: the observations.
        dt: step of the time grid; the observation times are added to it.
        span: time of the initial state and end of the horizon; by default the first and last time of the series.
        grid: times of the nodes, instead of `dt` and `span`.
        method: `gv.CVIDP(...)`, in discrete or continuous time; by default `gv.CVIDP()`.

    Returns:
        A pytree of arrays. Series with equal numbers of observations, on grids with the same dt and span, give
        problems of equal shapes: these can be stacked, and `solve` and `bound` can be mapped over them by `vmap`.

    Raises:
        ValueError: if the method is `gv.VDP`, or the model, the series or the grid are not valid.
    """
    method = check_method(method, model)
    if not isinstance(method, CVIDP):
        raise ValueError(f"prepare takes method=gv.CVIDP(...), got {method!r}; VDP is for gv.infer and gv.learn")
    return lay_out(model, series, dt, span, grid, method)


def lay_out(model: Model, series: TimeSeries, dt: Any, span: Any, grid: Any, method: Method) -> Problem:
    """Do the work of `prepare` for any method, whose settings have been checked already."""
    taken = None if getattr(model, "covariates", None) is None else series.covariates
    model = check_inputs(model, series)
    nodes = make_grid(series, dt, span, grid)
    # The settings are part of a compiled program, so that they may hold no array. The random key of Monte Carlo
    # quadrature is one; it has served its purpose when the rule is made.
    settings = method if method.quadrature is None else eqx.tree_at(lambda m: m.quadrature, method, None)
    noise = model.noise.structure if isinstance(model.noise, Diffusion) else None
    problem = Problem(on_grid(series, nodes, nodes.capacity, taken), method.rule(model.dim), settings, noise)
    check_singular(problem.of(model))
    return problem


@in_a_users_program
def solve(model: Model, problem: Problem, start: Solution | None = None) -> Solution:
    """Maximise the evidence bound over q; may be called inside `jit` and `vmap`.

    Args:
        model: the model; its arrays may be traced.
        problem: what `prepare` returned.
        start: a solution of the same problem to start from, for example at other parameters; by default the run starts
            from the data alone.

    Returns:
        The solution. Its `status` says how the run ended; numerical trouble raises no exception.

    Raises:
        ValueError: if the problem was prepared for a model of other dimensions.
    """
    _check_arguments(model, problem, start)
    posed = _traced(model, problem)
    method = problem.method
    if method.time == "continuous":
        carry = _continuous(posed, method, start)
        status = carry.status
    else:
        carry = _run(discrete_algorithm(method), posed, method, None if start is None else start.natural)
        status = traced_status(posed, carry)
    last = jnp.minimum(jnp.arange(posed.data.times.shape[0]), posed.data.size - 1)
    q = carry.moments
    mean, cov = q.m[:, last].T, jnp.moveaxis(q.S[..., last], -1, 0)
    if isinstance(model.noise, StateDiffusion):
        mean, cov = state_moments(model.noise, mean, cov)
    if problem.data.inputs is not None and problem.data.inputs.dosed is not None:
        mean = mean + shift(model.driven_by(problem.data.inputs), posed.data.times)
    return Solution(
        times=jnp.asarray(posed.data.times),
        mean=mean,
        cov=cov,
        elbo=carry.elbo,
        status=status,
        iterations=jnp.maximum(carry.iteration, 0),
        moments=q,
        natural=carry.eta,
        sites=carry.sites,
    )


@in_a_users_program
def bound(model: Model, problem: Problem, start: Solution | None = None) -> Float[Array, ""]:
    """Return the maximum of the evidence bound over q; may be called inside `jit`, `vmap` and `grad`.

    It has first derivatives in the arrays of the model, by reverse mode (`jax.grad`) only. In discrete time the
    gradient is exact where q has converged; in continuous time its error, like that of the bound, is of second order
    in dt.

    Args:
        model: the model; its arrays may be traced.
        problem: what `prepare` returned.
        start: a solution of the same problem to start from; by default the run starts from the data alone.

    Returns:
        The bound, in nats; minus infinity where the bound is not finite at the start.

    Raises:
        ValueError: if the problem was prepared for a model of other dimensions.
    """
    _check_arguments(model, problem, start)
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
    q = sites if isinstance(sites, ContinuousSites) else moments
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    vector, back = ravel_pytree(jax.tree.map(jnp.asarray, arrays))

    @in_a_users_program
    def value(vector):
        return bound_at(_traced(eqx.combine(back(vector), rest), problem), q)

    return back(cotangent * value_and_grad_at(value, vector, q)[1])


def _check_arguments(model: Any, problem: Any, start: Any) -> None:
    """Raise a ValueError unless the problem and the start fit the model. Only types and shapes are looked at."""
    if not isinstance(model, Model):
        raise ValueError(f"model must be a gv.Model, got {type(model).__name__}")
    if not isinstance(problem, Problem):
        raise ValueError(
            f"problem must be the result of gv.prepare(model, series, dt=...), got {type(problem).__name__}"
        )
    if not (start is None or isinstance(start, Solution)):
        raise ValueError(f"start must be a result of gv.solve, or None, got {type(start).__name__}")
    shape = jnp.shape(problem.data.y)
    if len(shape) != 2:
        raise ValueError(
            f"the observations of the problem have shape {shape} instead of (n, D): several problems are solved by "
            "jax.vmap, e.g. jax.vmap(gv.bound, in_axes=(None, 0))(model, problems)"
        )
    for what, made_for, has in (
        ("a state of dimension", jnp.shape(problem.rule.nodes)[0], model.dim),
        ("observations of dimension", shape[1], model.data_dim),
    ):
        if made_for != has:
            raise ValueError(
                f"the problem was prepared for {what} {made_for}, but the model has dimension {has}: call gv.prepare "
                "with a model of these dimensions"
            )


def _traced(model: Model, problem: Problem) -> Posed:
    """Return the problem with this model, with all arrays converted to JAX arrays."""
    return jax.tree.map(lambda a: jnp.asarray(a) if eqx.is_array_like(a) else a, problem.of(model))


def _run(algorithm: Algorithm, problem: Posed, method: CVIDP, start: Any, given: Any = True) -> Carry:
    limits = Limits(jnp.asarray(method.tolerance), jnp.asarray(method.max_iterations))
    if start is None:
        start, given = algorithm.blank_start(problem), False
    carry = algorithm.begin(problem, start, jnp.asarray(given))
    return algorithm.common(iterate(algorithm, problem, carry, limits))


def _continuous(problem: Posed, method: CVIDP, start: Solution | None) -> Carry:
    """Run in continuous time, from a continuous solution or else from that of the discrete model, as `CVIDP` does."""

    def solve_discrete():
        discrete = discrete_method(method)
        first = _run(discrete_algorithm(discrete), problem, discrete, None)
        return first.sites, first.status != int(Status.BAD_START)

    begin, given = continuous_start(problem, None if start is None else start.sites, solve_discrete)
    return _run(continuous_algorithm(method), problem, method, begin, given)
