"""Standard deviations of a learnt drift at given states, from those of its parameters to first order."""

import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np

from girsanov.model.fields import drift_at
from girsanov.model.model import Model

_STEP = 1e-3  # of the central differences, in standard errors
_MOST = 60  # entries; the covariance of larger networks means little
_ENTRY = re.compile(r"^(?P<path>.*?)(\[(?P<index>\d+(, \d+)*)\])?$")


def drift_error(fit: Any) -> Callable | None:
    """Return a function of states (k, d) and a time that gives standard deviations of the drift, (k, d).

    With the covariance C of the entries θ, the variance of f(x) is ∇_θ f(x)ᵀ C ∇_θ f(x) to first order. None where the
    fit has no finite covariance, or where none of its parameters is one of the drift.
    """
    names = list(fit.standard_errors or {})
    cov = fit.covariance
    if not names or cov is None or not np.isfinite(cov).all():
        return None
    entries = [(i, name) for i, name in enumerate(names) if _in_drift(fit, name)]
    if not entries or len(entries) > _MOST:
        return None
    index = [i for i, _ in entries]
    C = np.asarray(cov)[np.ix_(index, index)]
    steps = _STEP * np.sqrt(np.diagonal(C))
    sides = [
        [_moved(fit.model, name, sign * h) for sign in (1.0, -1.0)] for (_, name), h in zip(entries, steps, strict=True)
    ]

    def spread(x: np.ndarray, t: float) -> np.ndarray:
        slopes = [
            (drift_at(up, x, t) - drift_at(down, x, t)) / (2.0 * h) for (up, down), h in zip(sides, steps, strict=True)
        ]
        g = np.stack(slopes, -1)  # (k, d, entries)
        return np.sqrt(np.maximum(np.einsum("kdi,ij,kdj->kd", g, C, g), 0.0))

    return spread


def _in_drift(fit: Any, name: str) -> bool:
    return name.startswith("drift") if fit.model.equations is None else _parts(name)[0] in fit.model.equations.values


def _parts(name: str) -> tuple[str, tuple[int, ...]]:
    """Return the path of the array and the index of the entry, () for a scalar."""
    match = _ENTRY.match(name)
    assert match is not None
    index = match["index"]
    return match["path"], () if index is None else tuple(int(i) for i in index.split(", "))


def _moved(model: Model, name: str, h: float) -> Model:
    """Return the model with one entry changed by h."""
    path, index = _parts(name)

    def changed(a: Any) -> np.ndarray:
        a = np.array(a, np.float64)
        a[index] += h
        return a

    if model.equations is not None:
        return model.restated({path: changed(model.equations.values[path])})
    return eqx.tree_at(lambda m: _array(m, path), model, replace_fn=changed)


def _array(model: Model, path: str) -> Any:
    """Return the array at a path such as "drift.parts[0].decay"."""
    found: Any = model
    for attribute, place in re.findall(r"(\w+)|\[(\d+)\]", path):
        found = getattr(found, attribute) if attribute else found[int(place)]
    return found
