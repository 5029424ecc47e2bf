"""One driver for every iterative algorithm: passes run on the device in chunks, the host keeps the record.

An algorithm has `begin` and `step`; a step is one pass over the chain, the evaluation of one trial point, and either
completes an iteration or not. What it carries from pass to pass contains a `Carry`.
"""

import abc
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from girsanov._core.compile import compiled
from girsanov._core.types import Array
from girsanov.chain.linear_sde import Linearisation
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain
from girsanov.chain.smoother import Engine, smooth
from girsanov.inference.objective import Problem, compose, evaluate, starting_sites
from girsanov.inference.sites import DataSites, DenseSites, Sites
from girsanov.inference.status import Status

_CHUNK = 4096  # passes between two looks of the host, at the most
_CHUNK_SECONDS = 1.0


class Trial(eqx.Module):
    """One evaluated chain: the bound, the sites of g, and the natural gradient r = g − η."""

    eta: NaturalChain
    ok: Bool[Array, ""]
    elbo: Float[Array, ""]
    residual: NaturalChain
    moments: Moments
    sites: Sites


def evaluate_trial(problem: Problem, eta: NaturalChain, engine: Engine) -> Trial:
    smoothed = smooth(eta, engine)
    elbo, sites = evaluate(problem, smoothed)
    return Trial(eta, smoothed.ok & jnp.isfinite(elbo), elbo, compose(problem, sites) - eta, smoothed.moments, sites)


class Record(eqx.Module):
    """What one pass reports, or many: whether it completed an iteration, and the figures of that iteration."""

    complete: Bool[Array, "..."]
    elbo: Float[Array, "..."]
    step: Float[Array, "..."]
    decrement: Float[Array, "..."]


class Limits(eqx.Module):
    tolerance: Float[Array, ""]
    max_iterations: Int[Array, ""]


class Carry(eqx.Module):
    """What every algorithm keeps: the current chain, its bound, moments and sites, and how the run stands.

    An algorithm that works on something else than a chain keeps that as `sites` and makes the chain at the end.
    """

    eta: Any
    elbo: Float[Array, ""]
    moments: Any
    sites: Any
    iteration: Int[Array, ""]
    status: Int[Array, ""]
    steps: Any = None  # q's own transitions, a `chain.transitions.Transitions`, where the algorithm knows them exactly


def blank_sites(problem: Problem) -> Sites:
    d, M, n = problem.model.dim, len(problem.gaps), len(problem.node)
    v, m = np.zeros((d, M)), np.zeros((d, d, M))
    return Sites(Linearisation(m, v), DenseSites(v, m), DataSites(np.zeros((d, n)), np.zeros((d, d, n))))


class Algorithm(eqx.Module):
    """`begin` makes what the algorithm carries before anything is evaluated; `step` is one pass.

    `begin` gets a start and whether it is really given, so that one program serves both cases: where it is not, the
    algorithm starts from the data alone.
    """

    engine: eqx.AbstractVar[Engine]

    @abc.abstractmethod
    def begin(self, problem: Problem, start: Any, given: Bool[Array, ""]) -> Any: ...

    def blank_start(self, problem: Problem) -> Any:
        """Zeros in the shape of a start, on the host."""
        return blank_sites(problem)

    @abc.abstractmethod
    def common(self, carry: Any) -> Carry: ...

    @abc.abstractmethod
    def step(self, problem: Problem, carry: Any, limits: Limits) -> tuple[Any, Record]: ...


def blank_carry(problem: Problem, eta: NaturalChain, sites: Any) -> Carry:
    """Before anything is evaluated: every density is better than this."""
    d, N = eta.h.shape
    zeros = Moments(jnp.zeros((d, N)), jnp.zeros((d, d, N)), jnp.zeros((d, d, N - 1)))
    return Carry(eta, jnp.asarray(-jnp.inf), zeros, sites, jnp.asarray(-1), jnp.asarray(int(Status.RUNNING)))


def begin_chain(problem: Problem, start: Sites | NaturalChain, given: Bool[Array, ""]) -> Carry:
    """The start of an algorithm on natural parameters: a chain, or sites to compose."""
    sites = starting_sites(problem)
    if isinstance(start, NaturalChain):
        return blank_carry(problem, jax.tree.map(jnp.asarray, start), sites)
    return blank_carry(problem, compose(problem, select(given, start, sites)), sites)


def rounding(problem: Problem, elbo: Float[Array, ""]) -> Float[Array, ""]:
    """Size of the rounding error of the bound, a sum over all nodes."""
    return 16.0 * jnp.finfo(problem.times.dtype).eps * (problem.size * problem.model.dim + jnp.abs(elbo))


def select(condition: Bool[Array, ""], yes: Any, no: Any) -> Any:
    """`yes` or `no`, leaf by leaf."""
    return jax.tree.map(lambda y, n: jnp.where(condition, y, n), yes, no)


def settle(status, iteration, complete, converged, limits: Limits):
    """The status after a completed iteration, unless the pass itself set one."""
    done = jnp.where(converged, int(Status.CONVERGED), int(Status.MAX_ITERATIONS))
    ends = complete & (converged | (iteration >= limits.max_iterations))
    return jnp.where((status == int(Status.RUNNING)) & ends, done, status)


def _run_chunk(algorithm: Algorithm, problem: Problem, carry: Any, limits: Limits, budget: Int[Array, ""]):
    blank = Record(*(jnp.zeros(_CHUNK, t) for t in (bool, float, float, float)))

    def unfinished(loop):
        carry, _, passes = loop
        return (passes < budget) & (algorithm.common(carry).status == int(Status.RUNNING))

    def body(loop):
        carry, records, passes = loop
        carry, record = algorithm.step(problem, carry, limits)
        records = jax.tree.map(lambda all_, one: all_.at[passes].set(one), records, record)
        return carry, records, passes + 1

    return jax.lax.while_loop(unfinished, body, (carry, blank, jnp.asarray(0)))


def iterate(algorithm: Algorithm, problem: Problem, carry: Any, limits: Limits) -> Any:
    """Steps until the algorithm says stop, without a record: for a program of the user's."""

    def unfinished(carry):
        return algorithm.common(carry).status == int(Status.RUNNING)

    return jax.lax.while_loop(unfinished, lambda carry: algorithm.step(problem, carry, limits)[0], carry)


@compiled
def _launch(algorithm: Algorithm, problem: Problem, start: Any, given, limits: Limits, budget):
    return _run_chunk(algorithm, problem, algorithm.begin(problem, start, given), limits, budget)


_resume = compiled(_run_chunk)


class Run(NamedTuple):
    """The end of a run, on the host."""

    eta: Any
    moments: Any
    sites: Any
    elbo: float
    status: Status
    trace: dict[str, np.ndarray]  # elbo, step, decrement: one entry an iteration, the first is the start
    passes: int
    seconds: float
    steps: Any = None  # q's own transitions where the algorithm knows them better than its natural parameters do
    root: Any = None  # q in square-root form, a `careful.Path`, where the careful algorithm made it
    fault: str = ""  # what to say beside the status
    quadrature_error: float | None = None  # in nats, by a richer rule, where it was looked at

    @property
    def message(self) -> str:
        return self.status.message + (f": {self.fault}" if self.fault else "")


def run(
    algorithm: Algorithm,
    problem: Problem,
    start: Any,
    *,
    tolerance: float,
    max_iterations: int,
    progress: Callable[[int, float], None] | None = None,
) -> Run:
    """Iterate until the algorithm says stop; `progress(iteration, elbo)` is called between chunks of passes."""
    begun = time.perf_counter()
    limits = Limits(np.asarray(float(tolerance)), np.asarray(int(max_iterations)))
    nodes, d = problem.times.shape[0], problem.model.dim
    budget = int(np.clip(_CHUNK_SECONDS / (2e-7 * nodes * d**2), 8, _CHUNK))
    given = np.asarray(start is not None)
    out = _launch(
        algorithm,
        problem,
        algorithm.blank_start(problem) if start is None else start,
        given,
        limits,
        np.asarray(budget),
    )
    chunks, passes = [], 0
    while True:
        carry, records, used = out
        common = algorithm.common(carry)
        passes += int(used)
        chunks.append(jax.tree.map(lambda a, n=int(used): np.asarray(a)[:n], records))
        if int(common.status) != Status.RUNNING:
            break
        if progress is not None:
            progress(int(common.iteration), float(common.elbo))
        out = _resume(algorithm, problem, carry, limits, np.asarray(budget))
    complete = np.concatenate([c.complete for c in chunks])
    trace = {k: np.concatenate([getattr(c, k) for c in chunks])[complete] for k in ("elbo", "step", "decrement")}
    return Run(
        common.eta,
        common.moments,
        common.sites,
        float(common.elbo),
        Status(int(common.status)),
        trace,
        passes,
        time.perf_counter() - begun,
        common.steps,
    )
