"""The profile of the bound along one parameter: all others follow, and the interval ends where it has fallen by χ²/2.

The walk goes outwards from the maximum in steps in which the signed root ζ = ±√(2 (top − profile)) changes by about one
half. For a quadratic profile ζ is a straight line, so its inverse is interpolated to find where ζ has its limit, and
the profile is computed there until it has.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float
from scipy.interpolate import PchipInterpolator
from scipy.stats import norm

from girsanov._core.checks import is_finite
from girsanov.inference.status import Status
from girsanov.learning.newton import Point, Summit
from girsanov.learning.parameters import Spec, constrained_entries, entries, owners
from girsanov.learning.verdict import following
from girsanov.result.profile import Profile

_STEP = 0.5  # change of ζ from point to point
_SLOWER, _FASTER = 0.25, 4.0  # limits of the ratio of two steps
_MOST = 60  # points on a side
_FAR = 12.0  # how far a logarithm, or the like, goes; it is a factor of 160 000
_CLOSE, _TRIES = 1e-4, 6  # of ζ to its limit; evaluations to get there
_BETTER = 1e-3  # nats above the maximum that make another maximum


class Side(NamedTuple):
    """The points of one side of a profile, and where the interval ends, or None if the profile does not fall so far."""

    points: list[Point]
    end: float | None
    failed: bool


def profile(learner: Any, summit: Summit, name: str, level: float, tolerance: float) -> Profile:
    """Compute the profile along the entry `name`; see `Fit.profile`."""
    if not (is_finite(level) and 0.0 < level < 1.0):
        raise ValueError(f"level must be a probability between 0 and 1, got {level!r}")
    spec, names = learner.spec, entries(learner.spec)
    i = _coordinate(spec, names, name)
    learner, limit = dataclasses.replace(learner, rows=[]), float(norm.ppf(0.5 + 0.5 * level))
    sd = _deviation(summit.precision, i)
    low, high = (_walk(learner, summit, i, sign, sd, limit, tolerance) for sign in (-1.0, 1.0))
    points = [*low.points[::-1], summit.point, *high.points]
    table = np.stack([np.asarray(constrained_entries(spec, p.theta)) for p in points])
    top = max(p.value for p in points)
    slope = float(np.asarray(jax.jacfwd(lambda t: constrained_entries(spec, t))(summit.point.theta))[i, i])
    ends = tuple(
        float(edge if side.end is None else _value(spec, summit.point.theta, i, side.end))
        for side, edge in zip((low, high), _range(spec, i), strict=True)
    )
    return Profile(
        name=name,
        values=table[:, i],
        objective=np.array([p.value for p in points]),
        others={n: table[:, k] for k, n in enumerate(names) if k != i},
        estimate=float(table[len(low.points), i]),
        standard_error=abs(slope) * sd if np.isfinite(sd) else float("nan"),
        level=level,
        drop=0.5 * limit**2,
        interval=(ends[0], ends[1]),
        message=_message(name, low, high, top - summit.point.value, max(_BETTER, learner.inexact)),
    )


def _coordinate(spec: Spec, names: list[str], name: str) -> int:
    """Return the free coordinate of an entry; raise a ValueError where there is none."""
    if name not in names:
        raise ValueError(f"there is no learnt entry {name!r}; there are {', '.join(names)}")
    i = names.index(name)
    kind = owners(spec)[i].kind
    if kind in ("full", "ordered") and owners(spec)[i].size > 1:
        remedy = "'diagonal'" if kind == "full" else "'real'"
        raise ValueError(
            f"{name} has no coordinate of its own, since with the constraint {kind!r} its entries move together: learn "
            f"it with constraints={{{owners(spec)[i].path!r}: {remedy}}}, or take gv.sample_parameters"
        )
    return i


def _deviation(precision: np.ndarray, i: int) -> float:
    """Return the standard deviation of coordinate i by the curvature at the maximum, or infinity."""
    if not np.isfinite(precision).all() or np.linalg.eigvalsh(precision)[0] <= 0.0:
        return float("inf")
    return float(np.sqrt(np.linalg.inv(precision)[i, i]))


def _walk(learner: Any, summit: Summit, i: int, sign: float, sd: float, limit: float, tolerance: float) -> Side:
    """Return the points on one side, until the profile has fallen by limit²/2 or the parameter is far away."""
    here, top = summit.point, summit.point.value
    far = _FAR * (1.0 if _is_folded(learner.spec, i) else max(1.0, abs(here.theta[i]), 0.0 if np.isinf(sd) else sd))
    step = _STEP * min(sd, 0.1 * far)
    points, roots = [], [0.0]
    while roots[-1] < limit and len(points) < _MOST and abs(here.theta[i] - summit.point.theta[i]) < far:
        there = following(learner, here, i, sign * step, tolerance, summit.precision)
        if there is None or there.result.status is not Status.CONVERGED:
            return Side(points, None, True)
        points.append(there)
        roots.append(_root(top, there))
        gained = max(roots[-1] - roots[-2], 1e-12)
        step, here = step * float(np.clip(_STEP / gained, _SLOWER, _FASTER)), there
    if roots[-1] < limit:
        return Side(points, None, False)
    return Side(*_refined(learner, summit, i, points, limit, tolerance), False)


def _root(top: float, point: Point) -> float:
    return float(np.sqrt(2.0 * max(top - point.value, 0.0)))


def _refined(
    learner: Any, summit: Summit, i: int, points: list[Point], limit: float, tolerance: float
) -> tuple[list[Point], float]:
    """Return the points with some more about the end of the interval, and coordinate i at the end."""
    for _ in range(_TRIES):
        u = np.array([summit.point.theta[i], *(p.theta[i] for p in points)])
        zeta = np.maximum.accumulate([0.0, *(_root(summit.point.value, p) for p in points)])
        last = np.concatenate([[True], np.diff(zeta) > 0.0])  # a plateau has no inverse: its first point stands for it
        end = float(PchipInterpolator(zeta[last], u[last])(limit))
        near = points[int(np.argmin(np.abs(u[1:] - end)))]
        if abs(_root(summit.point.value, near) - limit) < _CLOSE:
            break
        there = following(learner, near, i, end - near.theta[i], tolerance, summit.precision)
        if there is None or there.result.status is not Status.CONVERGED:
            break
        points = sorted([*points, there], key=lambda p: abs(p.theta[i] - summit.point.theta[i]))
    return points, end


def _is_folded(spec: Spec, i: int) -> bool:
    return owners(spec)[i].kind not in ("real", "ordered")


def _value(spec: Spec, theta: Float[np.ndarray, " P"], i: int, u: float) -> float:
    """Return entry i with its free coordinate at u."""
    return float(np.asarray(constrained_entries(spec, np.where(np.arange(len(theta)) == i, u, theta)))[i])


def _range(spec: Spec, i: int) -> tuple[float, float]:
    kind = owners(spec)[i].kind
    if kind in ("real", "ordered"):
        return -np.inf, np.inf
    return (0.0, np.inf) if isinstance(kind, str) else kind


def _message(name: str, low: Side, high: Side, above: float, noise: float) -> str:
    if above > noise:
        return (
            f"the bound is {above:.3g} nats higher along this profile than where learning ended, so the interval is "
            "not one: learn again from the parameters of its highest point"
        )
    if low.end is not None and high.end is not None:
        return ""
    where = "downwards" if high.end is not None else "upwards" if low.end is not None else "in either direction"
    why = "inference fails further out" if low.failed or high.failed else "the bound does not fall enough"
    return f"the data give no limit to {name} {where}: {why}"
