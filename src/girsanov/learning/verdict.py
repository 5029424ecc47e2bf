"""What can be said of the place where learning ended: a maximum, a saddle, a flat direction, or an edge.

At a maximum the profile curves downwards in every direction, and it falls towards both ends of every parameter. Climbs
from starting values of the data and from parameters nearby look for a better maximum.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from girsanov.learning.data_start import from_data
from girsanov.learning.newton import STEPS, Point, Summit, ascend, evaluate
from girsanov.learning.parameters import Parameter, entries, owners, to_vector

_FLAT = 1e-4  # below this curvature the data do not determine a parameter: nats per squared unit of a free coordinate
_SHARE = 0.3  # a parameter with a larger share of a direction is named
_SINGULAR = 1e-12  # relative size of eigenvalues that count as zero
_FOLD, _FOLDS = 4.0, 2  # how far to move a logarithm, and how often, to see whether the bound falls
_BOTH = 2  # sides of a parameter to which the bound does not fall
_SAME = 1e-3  # nats: a fall towards an edge by less than this is none
_SHAKES, _AWAY = 2, 4.0  # climbs from parameters nearby, and how far away they start, in standard deviations
_CLIMBS = 6  # the largest number of climbs
_BETTER = 1e-3  # nats by which another maximum must be higher

MESSAGES = {
    "converged": "converged",
    "max_iterations": (
        "learning stopped at max_iterations before it met its tolerances; raise max_iterations, or continue with "
        "resume=fit"
    ),
    "stalled": "no step raised the objective, but learning has not converged; the best parameters found are returned",
}


class Verdict(NamedTuple):
    """How learning ended, in a word and a sentence, and with which parameters."""

    status: str
    message: str
    summit: Summit


def unjudged(summit: Summit) -> Verdict:
    """Return the status with which Newton's method ended, without any further check."""
    return Verdict(summit.status, MESSAGES[summit.status], summit)


def judge(learner: Any, summit: Summit, tolerance: float, from_model: bool = True) -> Verdict:
    """Decide the status of a fit that Newton's method has ended, after climbs from elsewhere.

    Args:
        learner: the `Learner` of the fit.
        summit: where Newton's method ended.
        tolerance: of learning, in nats.
        from_model: whether learning started from the model's own parameters, so that a start from the data is another.
    """
    climbs, better = 0, False
    while (climbs <= _SHAKES or (better and climbs < _CLIMBS)) and np.isfinite(summit.precision).all():
        learner.show(f"climb {climbs + 1} from elsewhere, in search of a better maximum")
        if climbs == 0 and from_model:
            top = _climb(learner, summit, from_data(learner), tolerance)
        else:
            top = _climb(learner, summit, _nearby(summit, climbs), tolerance, summit.precision)
        better = top is not None
        summit = summit if top is None else top
        climbs += 1
    if better:
        text = (
            f"the last of {climbs} climbs from elsewhere found better parameters, and there may be more: use restarts="
        )
        return Verdict("better_start_found", text, summit)
    if not np.isfinite(summit.precision).all():
        text = (
            "the curvature of the bound is not finite at the best parameters found, so that nothing says they are best"
        )
        return Verdict("stalled", text, summit)
    learner.show("does the maximum lie inside the ranges of the parameters?")
    trouble = edge_trouble(learner, summit, tolerance)
    if summit.status != "converged":
        return Verdict(*trouble, summit) if trouble else unjudged(summit)
    trouble = trouble or curvature_trouble(learner, summit)
    return Verdict(*(trouble or ("converged", MESSAGES["converged"])), summit)


def _nearby(summit: Summit, i: int) -> Float[np.ndarray, " P"]:
    """Return parameters some standard deviations away; where the profile is flat, so many units instead."""
    size = np.maximum(1.0, np.abs(summit.point.theta))
    values, vectors = np.linalg.eigh(summit.precision * np.outer(size, size))
    direction = np.random.default_rng(i).normal(size=len(size))
    away = _AWAY * direction / np.linalg.norm(direction) / np.sqrt(np.maximum(np.abs(values), 1.0))
    return summit.point.theta + size * (vectors @ away)


def _climb(learner: Any, summit: Summit, theta: np.ndarray, tolerance: float, B: Any = None) -> Summit | None:
    """Climb from θ, and return where that ended if it is better than the summit; B is minus a Hessian nearby."""
    above = summit.point.value + max(_BETTER, learner.inexact)
    limits = {"tolerance": tolerance, "max_iterations": STEPS, "above": above}
    top = ascend(learner, theta, summit.point.result, B=B, **limits)
    if top is None or not top.point.value > above:
        return None
    learner.record(top.point.theta, top.point.result.elbo)
    return top


def curvature_trouble(learner: Any, summit: Summit) -> tuple[str, str] | None:
    """Return "saddle" or "flat" with a sentence where the profile does not curve downwards in every direction."""
    size = np.maximum(1.0, np.abs(summit.point.theta))
    values, vectors = np.linalg.eigh(summit.precision * np.outer(size, size))
    if values[0] >= _FLAT:
        return None
    names, share = entries(learner.spec), np.abs(vectors[:, 0])
    along = ", ".join(names[i] for i in np.argsort(-share) if share[i] > _SHARE)
    if values[0] < -_FLAT:
        return "saddle", f"the bound is not at a maximum along {along}: it curves upwards, but no step raised it"
    return (
        "flat",
        f"the bound does not change along {along}: the data cannot tell its value; fix it, or give it a prior",
    )


def edge_trouble(learner: Any, summit: Summit, tolerance: float) -> tuple[str, str] | None:
    """Return "edge" with a sentence where the bound does not fall all the way to an end of a parameter's range.

    Where it does not fall to either end, it is "flat".

    Only coordinates that the data hardly tell are looked at: each is moved far to either side, and the others follow.
    """
    first = to_vector(learner.spec, learner.problem.stated)
    for i, p in enumerate(owners(learner.spec)):
        theta, ends = summit.point.theta[i], _ends(p)
        size = 1.0 if p.kind != "real" else max(1.0, abs(theta))
        if ends is None or not _is_wide(summit.precision, i, size):
            continue
        far = _FOLD if p.kind != "real" else np.expm1(_FOLD) * size
        side, name = _side(learner, summit, i, far, theta - first[i], tolerance), entries(learner.spec)[i]
        if side == _BOTH:
            return "flat", (
                f"the bound stays the same however far {name} moves, to either side: the data cannot tell its value; "
                "fix it, or give it a prior"
            )
        if side is not None:
            return "edge", (
                f"{name} runs towards {ends[side]}: the bound rises, or stays the same, all the "
                "way there. Fix it at a value, leave out the part of the model that it belongs to, or give it a prior"
            )
    return None


def _side(learner: Any, summit: Summit, i: int, far: float, travelled: float, tolerance: float) -> int | None:
    """Return the side, 0 or 1, to which the profile never falls along coordinate i, _BOTH, or None.

    A coordinate that has come a long way from the start ends where it was heading. Otherwise the profile has to fall
    to the other side nearby: where it does not, it is flat, and falls only where the E-step fails.
    """
    if abs(travelled) > 2.0 * far:
        side = int(travelled > 0.0)
        return side if _stays_high(learner, summit, i, np.copysign(far, travelled), tolerance) else None
    high = [_stays_high(learner, summit, i, sign * far, tolerance) for sign in (-1.0, 1.0)]
    if high[0] == high[1]:
        return _BOTH if high[0] else None
    side = high.index(True)
    near = following(learner, summit.point, i, (0.5 - side) * far, tolerance)
    return side if near is None or near.value < summit.point.value - tolerance else None


def _is_wide(precision: np.ndarray, i: int, size: float) -> bool:
    """Return whether the standard deviation of coordinate i exceeds its size, with all others unknown too."""
    rest = np.delete(np.arange(len(precision)), i)
    inner = precision[np.ix_(rest, rest)]
    explained = precision[i, rest] @ np.linalg.pinv(inner, _SINGULAR, hermitian=True) @ precision[rest, i]
    return bool((precision[i, i] - explained) * size**2 < 1.0)


def _ends(p: Parameter) -> tuple[str, str] | None:
    """Return the ends of a parameter's range, as text, or None where its coordinates share them."""
    if p.kind in ("positive", "scalar", "diagonal"):
        return "0", "infinity"
    if p.kind == "real":
        return "minus infinity", "infinity"
    return None if isinstance(p.kind, str) else (f"{p.kind[0]:g}", f"{p.kind[1]:g}")


def _stays_high(learner: Any, summit: Summit, i: int, far: float, tolerance: float) -> bool:
    """Return whether the profile stays as high far out along coordinate i."""
    point: Point | None = summit.point
    for _ in range(_FOLDS):
        point = following(learner, point, i, far, tolerance)
        if point is None or point.value < summit.point.value - _SAME:
            return False
    return True


def following(learner: Any, point: Point, i: int, far: float, tolerance: float, precision: Any = None) -> Point | None:
    """Return the best parameters with coordinate i moved by so much, or None where the E-step fails.

    With minus the Hessian at a point nearby, the others start where it expects them.
    """
    theta, rest = point.theta.copy(), np.delete(np.arange(len(point.theta)), i)
    theta[i] += far
    if not len(rest):
        return evaluate(learner, theta, point.result)
    inner = None
    if precision is not None:
        inner = precision[np.ix_(rest, rest)]
        theta[rest] -= np.linalg.pinv(inner, _SINGULAR, hermitian=True) @ precision[rest, i] * far
    limits = {"tolerance": tolerance, "max_iterations": STEPS, "above": np.inf}
    top = ascend(learner, theta, point.result, B=inner, free=rest, **limits)
    return None if top is None else top.point
