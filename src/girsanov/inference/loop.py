"""The loop that drives every iterative algorithm: passes run on the device in chunks, and the host keeps the history.

An algorithm has the methods `begin` and `step`. A step is one pass over the chain: it evaluates one trial point, which
may or may not complete an iteration. The state that an algorithm carries from pass to pass contains a `Carry`.
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
from girsanov.inference.objective import Posed, compose, evaluate
from girsanov.inference.sites import DataSites, DenseSites, Sites
from girsanov.inference.start import starting_sites
from girsanov.inference.status import Status

_CHUNK = 4096  # largest number of passes in a chunk, after which the host reports progress
_CHUNK_SECONDS = 1.0  # intended duration of a chunk


class Trial(eqx.Module):
    """One evaluated chain η.

    Attributes:
        eta: the natural parameters of the chain.
        ok: whether it is a probability density with a finite bound.
        elbo: the evidence bound, in nats.
        residual: the natural gradient r = g(η) − η.
        moments: the moments of the chain.
        sites: the sites of g(η).
    """

    eta: NaturalChain
    ok: Bool[Array, ""]
    elbo: Float[Array, ""]
    residual: NaturalChain
    moments: Moments
    sites: Sites


def evaluate_trial(problem: Posed, eta: NaturalChain, engine: Engine) -> Trial:
    """Smooth a chain and evaluate the bound and its natural gradient."""
    smoothed = smooth(eta, engine)
    elbo, sites = evaluate(problem, smoothed)
    return Trial(eta, smoothed.ok & jnp.isfinite(elbo), elbo, compose(problem, sites) - eta, smoothed.moments, sites)


class Record(eqx.Module):
    """The report of one pass, or of several passes stacked.

    Attributes:
        complete: whether the pass completed an iteration; otherwise the other fields are not used.
        elbo: the bound after the iteration, in nats.
        step: the step size of the iteration.
        decrement: the algorithm's measure of the distance to the optimum, in nats.
    """

    complete: Bool[Array, "..."]
    elbo: Float[Array, "..."]
    step: Float[Array, "..."]
    decrement: Float[Array, "..."]


class Limits(eqx.Module):
    """The tolerance at which a run has converged, in nats, and the largest number of iterations."""

    tolerance: Float[Array, ""]
    max_iterations: Int[Array, ""]


class Carry(eqx.Module):
    """The part of the state that every algorithm has.

    An algorithm that does not work on a chain stores its own representation of q in `sites`, and the chain is computed
    after the run.

    Attributes:
        eta: the natural parameters of the current chain.
        elbo: its bound, in nats.
        moments: its moments.
        sites: the sites given by the gradient of the bound.
        iteration: number of completed iterations; negative before the start has been evaluated.
        status: a number of `Status`.
        steps: q's own transitions, a `chain.transitions.Transitions`, where the algorithm knows them exactly.
    """

    eta: Any
    elbo: Float[Array, ""]
    moments: Any
    sites: Any
    iteration: Int[Array, ""]
    status: Int[Array, ""]
    steps: Any = None


def blank_sites(problem: Posed) -> Sites:
    """Return sites of zeros with the shapes of the problem."""
    d, M, n = problem.model.dim, len(problem.data.gaps), len(problem.data.node)
    v, m = np.zeros((d, M)), np.zeros((d, d, M))
    return Sites(Linearisation(m, v), DenseSites(v, m), DataSites(np.zeros((d, n)), np.zeros((d, d, n))))


class Algorithm(eqx.Module):
    """An iterative algorithm that maximises the bound; `run` drives it."""

    engine: eqx.AbstractVar[Engine]

    @abc.abstractmethod
    def begin(self, problem: Posed, start: Any, given: Bool[Array, ""]) -> Any:
        """Return the algorithm's state before the first pass.

        Where `given` is false, `start` has only the right shapes, and the algorithm starts from the data alone. The
        same compiled program then serves runs with and without a start.
        """

    def blank_start(self, problem: Posed) -> Any:
        """Return zeros with the shapes of a start, as NumPy arrays."""
        return blank_sites(problem)

    @abc.abstractmethod
    def common(self, carry: Any) -> Carry:
        """Return the part of the state that every algorithm has."""

    @abc.abstractmethod
    def step(self, problem: Posed, carry: Any, limits: Limits) -> tuple[Any, Record]:
        """Make one pass over the chain; return the new state and the report of the pass."""


def blank_carry(problem: Posed, eta: NaturalChain, sites: Any) -> Carry:
    """Return the state before the first pass, with a bound of minus infinity, so that any density is accepted."""
    d, N = eta.h.shape
    zeros = Moments(jnp.zeros((d, N)), jnp.zeros((d, d, N)), jnp.zeros((d, d, N - 1)))
    return Carry(eta, jnp.asarray(-jnp.inf), zeros, sites, jnp.asarray(-1), jnp.asarray(int(Status.RUNNING)))


def begin_chain(problem: Posed, start: Sites | NaturalChain, given: Bool[Array, ""]) -> Carry:
    """Return the state before the first pass, for algorithms on natural parameters.

    A start is a chain, or sites from which a chain is composed. Sites that are not `given` are replaced by a start from
    the data alone.
    """
    sites = starting_sites(problem)
    if isinstance(start, NaturalChain):
        return blank_carry(problem, jax.tree.map(jnp.asarray, start), sites)
    return blank_carry(problem, compose(problem, select(given, start, sites)), sites)


def rounding(problem: Posed, elbo: Float[Array, ""]) -> Float[Array, ""]:
    """Estimate the rounding error of the bound, which is a sum over all nodes."""
    return 16.0 * jnp.finfo(problem.data.times.dtype).eps * (problem.data.size * problem.model.dim + jnp.abs(elbo))


def select(condition: Bool[Array, ""], yes: Any, no: Any) -> Any:
    """Return the pytree `yes` where the condition is true, else the pytree `no`."""
    return jax.tree.map(lambda y, n: jnp.where(condition, y, n), yes, no)


def settle(status, iteration, complete, converged, limits: Limits):
    """Return the status after a pass: converged or max_iterations where a completed iteration ends a running run."""
    done = jnp.where(converged, int(Status.CONVERGED), int(Status.MAX_ITERATIONS))
    ends = complete & (converged | (iteration >= limits.max_iterations))
    return jnp.where((status == int(Status.RUNNING)) & ends, done, status)


def _run_chunk(algorithm: Algorithm, problem: Posed, carry: Any, limits: Limits, budget: Int[Array, ""]):
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


def iterate(algorithm: Algorithm, problem: Posed, carry: Any, limits: Limits) -> Any:
    """Make passes until the algorithm stops, without a history; for use inside a user's JAX program."""

    def unfinished(carry):
        return algorithm.common(carry).status == int(Status.RUNNING)

    return jax.lax.while_loop(unfinished, lambda carry: algorithm.step(problem, carry, limits)[0], carry)


@compiled
def _launch(algorithm: Algorithm, problem: Posed, start: Any, given, limits: Limits, budget):
    return _run_chunk(algorithm, problem, algorithm.begin(problem, start, given), limits, budget)


_resume = compiled(_run_chunk)


class Run(NamedTuple):
    """The result of a run, on the host.

    Attributes:
        eta, moments: q by its natural parameters and by its moments.
        sites: the sites given by the gradient of the bound at q.
        elbo: the evidence bound, in nats.
        status: how the run ended.
        trace: "elbo", "step" and "decrement", with one entry for the start and one for each iteration.
        passes: number of passes over the chain.
        seconds: wall-clock time of the run.
        steps: q's own transitions where the algorithm knows them more exactly than its natural parameters give them.
        root: q in square-root form, a `careful.Path`, where the careful algorithm made it.
        fault: text that the message adds to the status.
        quadrature_error: error of the quadrature in nats, by comparison with a more accurate rule; None if not checked.
    """

    eta: Any
    moments: Any
    sites: Any
    elbo: float
    status: Status
    trace: dict[str, np.ndarray]
    passes: int
    seconds: float
    steps: Any = None
    root: Any = None
    fault: str = ""
    quadrature_error: float | None = None

    @property
    def message(self) -> str:
        """A sentence on how the run ended."""
        return self.status.message + (f": {self.fault}" if self.fault else "")


def run(
    algorithm: Algorithm,
    problem: Posed,
    start: Any,
    *,
    tolerance: float,
    max_iterations: int,
    progress: Callable[[int, float], None] | None = None,
) -> Run:
    """Run an algorithm until it stops.

    Args:
        algorithm: the algorithm.
        problem: the model, the data on a grid, and the quadrature rule.
        start: a start of the kind that the algorithm takes, or None to start from the data alone.
        tolerance: the tolerance at which the run has converged, in nats.
        max_iterations: largest number of iterations.
        progress: called as `progress(iteration, elbo)` between chunks of passes.

    Returns:
        The result, as NumPy arrays or arrays on the device.
    """
    begun = time.perf_counter()
    limits = Limits(np.asarray(float(tolerance)), np.asarray(int(max_iterations)))
    nodes, d = problem.data.times.shape[0], problem.model.dim
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
