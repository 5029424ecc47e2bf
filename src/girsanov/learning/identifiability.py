"""What the data tell of the parameters, in words: the directions in which the bound is widest."""

import jax
import numpy as np

from girsanov.learning.parameters import Spec, constrained_entries, entries, free_part, split
from girsanov.result.directions import Direction

_SHARE = 0.3  # an entry with a larger share of a direction is named
_HARDLY, _WEAKLY = 1.0, 0.3  # standard deviations, in units of the parameters, from which on a direction is told so


def directions(spec: Spec, theta: np.ndarray, precision: np.ndarray) -> tuple[Direction, ...]:
    """Return the principal directions of the curvature at the maximum, the widest first.

    A unit of a positive parameter is a factor of e, and that of a real one its own size, but at least one.

    Args:
        spec: the trainable parameters.
        theta: the free coordinates at the maximum.
        precision: minus the Hessian of the profile there.
    """
    if not np.isfinite(precision).all():
        return ()
    names = entries(spec)
    J_inv = np.linalg.inv(np.asarray(jax.jacfwd(lambda t: constrained_entries(spec, t))(theta)))
    scaled = J_inv * _units(spec, theta)  # from units of the entries to free coordinates
    values, vectors = np.linalg.eigh(scaled.T @ precision @ scaled)
    found = []
    for value, vector in zip(values, vectors.T, strict=True):
        weights = dict(zip(names, (vector * np.sign(vector[np.argmax(np.abs(vector))])).tolist(), strict=True))
        spread = float(1.0 / np.sqrt(value)) if value > 0.0 else float("inf")
        found.append(Direction(weights, spread, _words(weights, spread)))
    return tuple(found)


def _units(spec: Spec, theta: np.ndarray) -> np.ndarray:
    """Return the unit of every entry."""
    out = []
    for p, value in zip(spec, split(spec, theta).values(), strict=True):
        v, part = np.asarray(value), np.ravel(free_part(p, np.asarray(value)))
        if p.kind in ("real", "ordered"):
            out.append(np.maximum(1.0, np.abs(part)))
        elif p.kind == "full":
            variances = np.diagonal(v)
            root = np.sqrt(np.outer(variances, variances))
            out.append(root[np.tril_indices(len(v))] if p.learnt is None else np.ravel(free_part(p, root)))
        elif isinstance(p.kind, str):
            out.append(np.abs(part))
        else:
            low, high = p.kind
            out.append((part - low) * (high - part) / (high - low))
    return np.concatenate(out)


def _words(weights: dict[str, float], spread: float) -> str:
    main = sorted((n for n, w in weights.items() if abs(w) > _SHARE), key=lambda n: -abs(weights[n]))
    ways = [f"{n} {'up' if weights[n] > 0.0 else 'down'}" for n in main]
    how = "do not tell" if spread == float("inf") else "hardly tell" if spread > _HARDLY else "weakly tell"
    if spread <= _WEAKLY:
        return f"the data tell {' with '.join(ways)}"
    if len(main) == 1:
        return f"the data {how} {main[0]}"
    return f"the data {how} {', '.join(main[:-1])} and {main[-1]} apart: {' with '.join(ways)} fits nearly as well"
