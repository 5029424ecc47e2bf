"""What is kept of a call of `learn` that is stopped: the best parameters met until then.

A `KeyboardInterrupt` has them as its attribute `kept`. A checkpoint is a file of them that is always complete, so that
they also survive where the process is killed.
"""

import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from girsanov.inference.loop import Run
from girsanov.inference.status import Status
from girsanov.learning.newton import Point, Summit
from girsanov.learning.verdict import Verdict
from girsanov.result.fit import Fit
from girsanov.result.saving import replace_file

_GAIN = 1e-3  # nats by which parameters must be better to be kept instead
_BETWEEN, _SHARE = 2.0, 20.0  # seconds between two writings of the file, and between them in times of one writing


class Stopped(Exception):
    """A fit in another thread ends, since Ctrl-C was pressed."""


class Best(NamedTuple):
    """The best parameters of a learner, the E-step at them, the objective there, and the history until then."""

    learner: Any
    theta: np.ndarray
    result: Run
    value: float
    rows: list[tuple]


class Keeper:
    """The best parameters that any of the learners of one call has met, and the file in which they are kept.

    Args:
        make: makes a fit of a learner and a verdict.
        path: the file, or None.
    """

    def __init__(self, make: Callable[[Any, Verdict], Fit], path: Path | None):
        self.make, self.path = make, path
        self.best: Best | None = None
        self.stopped = False
        self._unwritten, self._due, self._lock = False, time.perf_counter() + _BETWEEN, threading.RLock()

    def offer(self, learner: Any, theta: np.ndarray, result: Run, nearby: bool = False) -> None:
        """Keep these parameters if they are the best so far, unless they are next to others that were offered.

        Raises:
            Stopped: if the call has been stopped.
        """
        if self.stopped:
            raise Stopped
        if nearby or result.status is Status.BAD_START or not np.isfinite(result.elbo):
            return
        value = result.elbo + learner.prior(theta)
        with self._lock:
            if self.best is None or value > self.best.value + _GAIN:
                self.best = Best(learner, np.array(theta), result, value, list(learner.rows))
                self._unwritten = True
            if self._unwritten:
                self.write(self.fit)

    def fit(self) -> Fit | None:
        """Return the fit with the best parameters, with the status "interrupted", or None if there are none."""
        if self.best is None:
            return None
        learner = self.best.learner.alone(self.best.rows)
        learner.record(self.best.theta, self.best.result.elbo)
        text = "learning was stopped before it reached a maximum; go on with resume=this fit"
        return self.make(learner, interrupted(self.best.theta, self.best.result, self.best.value, text))

    def write(self, fit: Callable[[], Fit | None], now: bool = False) -> None:
        """Write a fit to the file, if there is one, and if the last writing was long enough ago or `now`."""
        if self.path is None or not (now or time.perf_counter() >= self._due):
            return
        begun, made = time.perf_counter(), fit()
        if made is None:
            return
        try:
            replace_file(self.path, made.save)
        except OSError as error:  # no reason to lose the fit itself
            warnings.warn(f"learn: the checkpoint {self.path} cannot be written any more: {error}", stacklevel=2)
            self.path = None
        ended = time.perf_counter()
        self._unwritten, self._due = False, ended + max(_BETWEEN, _SHARE * (ended - begun))

    def stop(self) -> None:
        """End the fits of all threads, each after its present E-step."""
        self.stopped = True

    def tell(self, interrupt: KeyboardInterrupt, kept: Fit | None) -> None:
        """Put a fit into the attribute `kept` of Ctrl-C's exception and into the file, and say so."""
        self.stop()
        if kept is None:
            interrupt.add_note("learn was interrupted before the first inference had ended: there is nothing to keep")
            return
        interrupt.kept = kept  # pyright: ignore[reportAttributeAccessIssue]
        self.write(lambda: kept, now=True)
        place = "the exception's attribute `kept`" + ("" if self.path is None else f", and the file {self.path},")
        verb = "is" if self.path is None else "are"
        interrupt.add_note(f"learn was interrupted; {place} {verb} {kept!r}; resume= goes on from it")


def interrupted(theta: np.ndarray, run: Run, value: float, message: str) -> Verdict:
    """Return the verdict on parameters at which learning was stopped; nothing is known of the curvature there."""
    P = len(theta)
    summit = Summit(Point(theta, run, value, np.full(P, np.nan)), np.full((P, P), np.nan), "interrupted")
    return Verdict("interrupted", message, summit)
