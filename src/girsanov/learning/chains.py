"""Chains of NUTS, by numpyro's kernel: each in a thread of its own, where it never waits for another one.

Side by side in one program, all chains would wait at every step for the longest trajectory, and in every inference for
the last one to converge.
"""

import collections
import concurrent.futures
import os
import threading
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from girsanov._core.compile import compiled
from girsanov._core.precision import float64
from girsanov._core.progress import Countdown
from girsanov.learning.partial_draws import PartialDraws
from girsanov.learning.reference import evaluate_near
from girsanov.learning.target import Reference, Target, evaluate

_CHUNK = 25  # largest number of transitions in a call of compiled code; between two calls a chain can be interrupted
_LONGEST = 0.5  # seconds that such a call should take
_SPREAD = 1.5  # starts of the chains are this much more spread than the normal approximation of the posterior
_HALVINGS = 12  # times that a start where the density is zero is moved half way to the mode
_WAIT = 0.2  # seconds between two looks at the chains
_FAILED: collections.Counter = collections.Counter()  # inferences that failed, by the number of the run
_LOCK = threading.Lock()


class Draws(NamedTuple):
    """What the chains drew after warm-up, chains and draws along the first two axes.

    Attributes:
        u: the draws in whitened coordinates, (chains, draws, P).
        lp: the log density, that of the values and of the map to them, at every draw.
        energy: energy of every trajectory.
        acceptance: mean acceptance probability along every trajectory.
        steps: number of steps of every trajectory, each an inference.
        step_size: the length of these steps.
        diverging: whether the trajectory ended because its energy went astray.
        failed: number of inferences in all chains, warm-up included, that failed.
    """

    u: np.ndarray
    lp: np.ndarray
    energy: np.ndarray
    acceptance: np.ndarray
    steps: np.ndarray
    step_size: np.ndarray
    diverging: np.ndarray
    failed: int


def _kernel(target: Target, reference: Reference, run: Any, accept: Any) -> Any:
    from numpyro.infer import NUTS

    def potential(u):
        here = jax.lax.stop_gradient(u)
        found = evaluate(target, reference.starts(target, here), reference.theta(here))
        failed = ~found.solution.converged
        jax.lax.cond(failed, lambda: jax.debug.callback(_count, run), lambda: None)
        # A function with this value and this gradient, so that the iterations are not differentiated.
        return -found.value - (reference.root.T @ found.grad) @ (u - here)

    return NUTS(potential_fn=potential, dense_mass=True, target_accept_prob=accept)


def _count(run: Any) -> None:
    with _LOCK:
        _FAILED[int(run)] += 1


@compiled
def _begin(target, reference, run, start, key, warmup: int, accept: float):
    from numpyro.infer.util import ParamInfo

    return _kernel(target, reference, run, accept).init(key, warmup, ParamInfo(*start), (), {})


@compiled
def _advance(target, reference, run, start, state, count, warmup: int, accept: float):
    """Make `count` transitions; return the state and their records in an array of _CHUNK."""
    from numpyro.infer.util import ParamInfo

    kernel = _kernel(target, reference, run, accept)
    kernel.init(
        jax.random.key(0), warmup, ParamInfo(*start), (), {}
    )  # prepares the kernel; `state` replaces the result

    def transition(i, carry):
        state, records = carry
        state = kernel.sample(state, (), {})
        return state, jax.tree.map(lambda all_, one: all_.at[i].set(one), records, _record(state))

    return jax.lax.fori_loop(0, count, transition, (state, _blank(state)))


def _record(state: Any) -> tuple:
    """Return what is kept of a draw, in the order of the fields of `Draws`."""
    return (
        state.z, -state.potential_energy, state.energy, state.accept_prob, state.num_steps,
        state.adapt_state.step_size, state.diverging,
    )  # fmt: skip


def _blank(state: Any) -> tuple:
    """Return an array of zeros for the records of as many draws as a call may make."""
    return jax.tree.map(lambda a: jnp.zeros((_CHUNK, *jnp.shape(a)), jnp.result_type(a)), _record(state))


def first_point(target: Target, reference: Reference, rng: np.random.Generator):
    """Return a point u with its potential energy and gradient, drawn around the mode, where the density is positive."""
    u = _SPREAD * rng.normal(size=len(reference.centre))
    for _ in range(_HALVINGS):
        found = evaluate_near(target, reference, u)
        if np.isfinite(found.value):
            return u, -np.asarray(found.value), -np.asarray(reference.root).T @ np.asarray(found.grad)
        u = 0.5 * u
    raise ValueError("the density of the parameters is zero all around its mode: inference does not converge there")


def run_chains(
    target: Target, kept: PartialDraws, key: Any, *, chains: int, warmup: int, draws: int, accept: float, say: Any
) -> Draws:
    """Run all chains, in as many threads as there are processors, and go on with those that were begun before.

    Ctrl-C ends them within a few transitions. Until then `kept` has all draws.
    """
    run, total, before = np.asarray(next(_RUNS)), warmup + draws, kept.failed
    stop, keys = threading.Event(), jax.random.split(key, chains)
    reference: Any = kept.reference

    @float64
    def chain(c: int):
        if c not in kept.chains:
            rng = np.random.default_rng(np.asarray(jax.random.key_data(keys[c])).tolist())
            start = first_point(target, reference, rng)
            state = _begin(target, reference, run, start, keys[c], warmup, accept)
            kept.chains[c] = start, state, [np.asarray(a)[:0] for a in _blank(state)]
        n = 1
        while len(kept.chains[c][2][0]) < total and not stop.is_set():
            start, state, records = kept.chains[c]
            begun, n = time.perf_counter(), min(n, total - len(records[0]))
            state, more = _advance(target, reference, run, start, state, np.asarray(n), warmup, accept)
            more = [np.asarray(a)[:n] for a in more]
            kept.chains[c] = start, state, [np.concatenate(pair) for pair in zip(records, more, strict=True)]
            kept.failed = before + _FAILED[int(run)]
            pace = (time.perf_counter() - begun) / n
            n = int(np.clip(_LONGEST / pace, 1, min(_CHUNK, 4 * n)))
        return [a[warmup:] for a in kept.chains[c][2]]

    count = Countdown(chains * total, "draws")

    def shown() -> None:
        if say is not None:
            say(f"parameters: {count(kept.draws)}")

    parts = in_threads(chain, range(chains), stop, shown)
    return Draws(*(np.stack(a) for a in zip(*parts, strict=True)), failed=before + _FAILED.pop(int(run), 0))


def _numbers():
    run = 0
    while True:
        yield run
        run += 1


_RUNS = _numbers()


def in_threads(fn: Any, jobs: Any, stop: threading.Event, shown: Any) -> list:
    """Return fn(job) of every job, computed in as many threads as there are processors.

    `shown` is called every now and then. An exception, or Ctrl-C, sets `stop`, which a job looks at.
    """
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        futures = [pool.submit(fn, job) for job in jobs]
        try:
            while concurrent.futures.wait(futures, _WAIT, concurrent.futures.FIRST_EXCEPTION).not_done:
                if any(f.done() and f.exception() for f in futures):
                    break
                shown()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        stop.set()
        return [f.result() for f in futures]
