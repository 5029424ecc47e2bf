"""A process that was forked after JAX had run: the compiler's threads did not come along, and a call would hang."""

import os
import sys

_state = {"used": False, "forked": False}


def check() -> None:
    """Raise a RuntimeError in a process that was forked from one in which JAX was running."""
    if _state["forked"]:
        raise RuntimeError(
            "this process was forked from one in which JAX had already run, and JAX would wait for threads that did "
            "not come along. Start processes with multiprocessing.get_context('spawn') or 'forkserver', or with "
            "girsanov.evaluation.sweep; or fork before the first call"
        )
    _state["used"] = True


def _after_fork() -> None:
    bridge = sys.modules.get("jax._src.xla_bridge")
    started = getattr(bridge, "backends_are_initialized", lambda: _state["used"])
    _state["forked"] = _state["forked"] or bool(started())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
