"""Several fits from parameters drawn anew, side by side."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import numpy as np

from girsanov._core.threads import threads
from girsanov.model.model import Model
from girsanov.result.fit import Fit


def restart_models(model: Model, restarts: int, key: Any, reinitialise: Any) -> list[Model]:
    """Return the model itself and `restarts − 1` copies whose drifts have randomly drawn parameters."""
    if restarts == 1:
        return [model]
    if key is None:
        raise ValueError("restarts need a key=, e.g. key=jax.random.key(0)")
    redraw = reinitialise or getattr(type(model.drift), "reinitialise", None)
    if redraw is None:
        raise ValueError(
            "restarts need a way to draw new parameters of this drift: give reinitialise=lambda drift, key: ..."
        )
    drifts = [_same_kind(model.drift, redraw(model.drift, k)) for k in jax.random.split(key, restarts - 1)]
    return [model, *(eqx.tree_at(lambda m: m.drift, model, d) for d in drifts)]


def _same_kind(drift: Any, redrawn: Any) -> Any:
    """Return the redrawn drift with float64 parameters; raise a ValueError if its structure or shapes have changed."""
    new = jax.tree.map(lambda a: np.asarray(a, np.float64) if eqx.is_inexact_array_like(a) else a, redrawn)
    if jax.tree.structure(new) != jax.tree.structure(drift):
        raise ValueError(f"reinitialise must return a drift of the same structure as {drift!r}, got {redrawn!r}")
    for a, b in zip(jax.tree.leaves(drift), jax.tree.leaves(new), strict=True):
        if np.shape(a) != np.shape(b):
            raise ValueError(
                f"reinitialise changed the shape of a parameter from {np.shape(a)} to {np.shape(b)}; it must keep all "
                "shapes"
            )
    return new


def together(fit: Callable[[Model], Fit], models: list[Model], stop: Callable[[], None]) -> list[Fit]:
    """Fit all models, several at a time in threads; `stop` is called where one fails, or on Ctrl-C."""
    workers = threads(len(models))
    if workers == 1:
        return [fit(model) for model in models]
    pool = ThreadPoolExecutor(workers)
    try:
        return list(pool.map(fit, models))
    except BaseException:
        stop()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
