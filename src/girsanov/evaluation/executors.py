"""Executors, which run the calls of a sweep: in this process, in processes of this machine, or on Dask workers.

Every executor takes a function and a dictionary of argument tuples by key. It yields the key and the return value of
each call, in the order in which the calls finish. A call whose process has died repeatedly yields `Lost` instead. An
exception that the function raises ends the sweep.
"""

import contextlib
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from girsanov._core import interrupt

Calls = Mapping[str, tuple]

_FRUITLESS = 2  # after this many rounds in a row in which no call finishes, the remaining calls are given up
_CONNECT = 10.0  # seconds to wait for a scheduler to answer
# Environment variables with the number of threads of OpenMP, OpenBLAS, MKL, Accelerate and NumExpr.
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class Lost(NamedTuple):
    """The answer of a call whose processes died, with the reason."""

    reason: str


_LOST = Lost("the worker processes died 2 times; check that there is enough memory, or use fewer jobs")


def processors() -> int:
    """Return the number of processors that this process may use, with regard to the limits of a container."""
    from joblib import cpu_count

    return cpu_count()


def in_turn(function: Callable, calls: Calls) -> Iterator[tuple[str, Any]]:
    """Run the calls one after the other in this process."""
    for key, arguments in calls.items():
        yield key, function(*arguments)


def in_processes(function: Callable, calls: Calls, workers: int) -> Iterator[tuple[str, Any]]:
    """Run the calls in processes of this machine; a pool that dies, for example for lack of memory, is replaced.

    When one process dies, the calls in the others end too. Where no call has finished in a round, those that were
    running are tried one by one, each in a process of its own, so that no call is given up because another one failed.
    """
    left, fruitless = dict(calls), 0
    while left and fruitless < _FRUITLESS:
        finished = 0
        for key, answer in _one_pool(function, left, workers):
            del left[key]
            finished += 1
            yield key, answer
        # Calls start in order, so those that were running are among the first that are left.
        first = list(left)[:workers]
        if not finished:
            for key in first:
                answer = next((a for _, a in _one_pool(function, {key: left[key]}, 1)), _LOST)
                finished += answer is not _LOST
                del left[key]
                yield key, answer
        else:
            left = {key: left[key] for key in [*list(left)[workers:], *first]}
        fruitless = 0 if finished else fruitless + 1
    for key in left:
        yield key, _LOST


def _one_pool(function: Callable, calls: Calls, workers: int) -> Iterator[tuple[str, Any]]:
    """Run the calls in one pool and yield those that finish, which are not all of them if a process dies."""
    from concurrent.futures import as_completed

    from joblib.externals.loky import BrokenProcessPool, ProcessPoolExecutor

    # joblib's shared pool is not used, because its processes may have started with other thread limits.
    limits = thread_limits(max(1, processors() // workers))
    parent = os.getpid()
    pool = ProcessPoolExecutor(min(workers, len(calls)), env=limits, initializer=_follow, initargs=(parent,))
    with interrupt.stopping(lambda: _kill(pool)):
        try:
            with _deaf_children():
                futures: dict[Any, str] = {
                    pool.submit(_call, parent, function, *arguments): key for key, arguments in calls.items()
                }
            for future in as_completed(futures):
                try:
                    answer = future.result()
                except BrokenProcessPool:
                    continue
                yield futures[future], answer
        except BrokenProcessPool:  # the pool died before all calls were submitted
            return
        finally:
            pool.shutdown(wait=True, kill_workers=True)


@contextlib.contextmanager
def _deaf_children() -> Iterator[None]:
    """Make processes that are started inside this context ignore Ctrl-C, which a terminal sends to them too.

    Their parent ends them instead.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill(pool: Any) -> None:
    for process in list(pool._processes.values()):
        process.kill()


_calling = threading.Lock()


def _follow(parent: int) -> None:
    """In a worker, end the process when its parent is gone, after the call that is running, if any.

    The processes of a pool would otherwise wait forever for the next call of a parent that was killed.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        with _calling:
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _call(parent: int, function: Callable, *arguments: Any) -> Any:
    """In a worker, run the call, or end the process if the parent is gone while the call was waiting in the queue."""
    with _calling:
        if os.getppid() != parent:
            os._exit(1)
        return function(*arguments)


def on_scheduler(function: Callable, calls: Calls, address: str) -> Iterator[tuple[str, Any]]:
    """Run the calls on the workers of a Dask scheduler that is running already."""
    from distributed import Client

    try:
        client = Client(address, timeout=_CONNECT, set_as_default=False)
    except OSError as error:
        raise ValueError(
            f"no Dask scheduler answers at {address!r} ({error}); start one with `dask scheduler`, and workers with "
            "`dask worker ADDRESS`"
        ) from error
    with client:
        if not client.ncores():
            warnings.warn(
                f"the scheduler at {address} has no workers yet, the sweep waits; start some: `dask worker {address}`",
                stacklevel=2,
            )
        yield from _submit(client, function, calls)


def on_cluster(function: Callable, calls: Calls, workers: int) -> Iterator[tuple[str, Any]]:
    """Run the calls on a Dask cluster of this machine, which is started for the sweep and ends with it."""
    from distributed import Client, LocalCluster

    with _deaf_children():
        # Dask's default limit of memory is a share for each core, which is too little where there are fewer workers.
        started = LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            memory_limit=None,
            env=thread_limits(1),
        )
    with started as cluster, Client(cluster, set_as_default=False) as client:
        yield from _submit(client, function, calls)


def _submit(client: Any, function: Callable, calls: Calls) -> Iterator[tuple[str, Any]]:
    """Run the calls with a Dask client.

    Dask moves the calls of a worker that died to other workers, and gives a call up when several workers died with it.
    """
    from distributed import KilledWorker, as_completed

    futures = [client.submit(function, *args, key=key, pure=False, retries=2) for key, args in calls.items()]
    for future in as_completed(futures, loop=client.loop):
        error = future.exception()
        if error is None:
            yield future.key, future.result()
        elif isinstance(error, KilledWorker):
            yield future.key, Lost(f"Dask gave up the task because its workers died: {error}")
        else:
            raise error


def thread_limits(threads: int) -> dict[str, str]:
    """Return the environment variables that limit a worker to this many threads.

    Without them, each of several workers would start as many threads as there are cores. XLA reads its flags when JAX
    is imported, so they must be set when the process starts.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    return dict.fromkeys(_THREADS, str(threads)) | {"XLA_FLAGS": flags}
