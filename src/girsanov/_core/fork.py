"""Refuse to run in a process that was forked after JAX had run.

Such a process has no copy of JAX's threads, so a call of JAX would wait for them forever.
"""

import os
import sys

_state = {"used": False, "forked": False}


def check() -> None:
    """Raise a RuntimeError in a process that was forked from one in which JAX was running."""
    if _state["forked"]:
        raise RuntimeError(
            "this process was forked from one in which JAX had already run, and JAX would wait forever for threads "
            "that a fork does not copy. Start processes with multiprocessing.get_context('spawn') or 'forkserver', or "
            "with girsanov.evaluation.sweep; or fork before the first call"
        )
    _state["used"] = True


def _after_fork() -> None:
    bridge = sys.modules.get("jax._src.xla_bridge")
    started = getattr(bridge, "backends_are_initialized", lambda: _state["used"])
    _state["forked"] = _state["forked"] or bool(started())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
