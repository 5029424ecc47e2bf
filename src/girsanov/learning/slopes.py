"""Means of random effects that depend on covariates: φ_i ~ N(μ + β (c_i − c̄), diag τ²) in free coordinates."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from girsanov.data.panel import Panel
from girsanov.learning.parameters import Parameter, Spec


class Slopes(NamedTuple):
    """The slopes β of a fit.

    Attributes:
        spec: the slopes as parameters, one for each random effect and covariate.
        design: the derivatives of the means in β: covariates less their mean over the panel, in multiples of their
            standard deviation.
        units: what a slope is multiplied by to be one in the covariate's own unit.
    """

    spec: Spec
    design: Float[np.ndarray, "S K B"]
    units: Float[np.ndarray, " B"]


def slope_name(path: str, covariate: str) -> str:
    """Return the name of the slopes of a random effect along a covariate."""
    return f"effect({covariate} on {path})"


def no_slopes(random: Spec, count: int) -> Slopes:
    """Return the slopes of a fit without any, for a panel of `count` series."""
    return Slopes((), np.zeros((count, sum(p.size for p in random), 0)), np.zeros(0))


def make_slopes(random: Spec, effects: Mapping[str, Sequence[str] | str] | None, panel: Panel) -> Slopes:
    """Return the slopes that `effects`, a mapping from random effects to names of covariates, asks for."""
    wanted = _by_path(random, effects)
    K, spec, columns, units = sum(p.size for p in random), [], [], []
    first = 0
    for p in random:
        for name in wanted.get(p.path, []):
            c = _column(name, panel)
            sd = c.std()
            if not sd > 0.0:
                raise ValueError(
                    f"the covariate {name!r} is {c[0]:g} in all {len(panel)} series, which do not tell its effect on "
                    f"{p.path!r}: leave it out of effects="
                )
            spec.append(Parameter(slope_name(p.path, name), "real", (p.size,), p.size))
            for k in range(p.size):
                columns.append(np.outer((c - c.mean()) / sd, np.arange(K) == first + k))
                units.append(1.0 / sd)
        first += p.size
    if not columns:
        return no_slopes(random, len(panel))
    return Slopes(tuple(spec), np.stack(columns, axis=2), np.array(units))


def _by_path(random: Spec, effects: Any) -> dict[str, list[str]]:
    """Return the names of the covariates of every random effect, by its path."""
    if effects is None:
        return {}
    if not isinstance(effects, Mapping):
        raise ValueError(
            "effects= must be a mapping from random effects to names of covariates, such as "
            f"{{'drift.decay': ['weight']}}, got {effects!r}"
        )
    paths = [p.path for p in random]
    found: dict[str, list[str]] = {}
    for effect, names in effects.items():
        of = [path for path in paths if path == effect or path.startswith((f"{effect}.", f"{effect}["))]
        if not of:
            raise ValueError(
                f"effects= names {effect!r}, which is not among the random effects {paths}: covariates enter the means "
                "of parameters that are named in random="
            )
        for path in of:
            found.setdefault(path, []).extend([names] if isinstance(names, str) else names)
    for path, names in found.items():
        if len(set(names)) < len(names):
            raise ValueError(f"effects= names a covariate of {path!r} twice: {names}")
    return found


def _column(name: str, panel: Panel) -> Float[np.ndarray, " S"]:
    """Return the covariate of all series."""
    for key, series in panel.items():
        if name not in series.covariates:
            raise ValueError(
                f"series {key!r} has no covariate {name!r}, which effects= names; it has "
                f"{', '.join(map(repr, series.covariates)) or 'none'}"
            )
    return np.array([series.covariates[name] for series in panel.values()])
