"""The parts of a model as a user states them: their checks, and the arrays that they become."""

from collections.abc import Callable
from typing import Any

import numpy as np

from girsanov._core.checks import check_whole
from girsanov._core.precision import parameter, traceable
from girsanov.model.diffusions import Each, StateDiffusion
from girsanov.model.drifts.base import takes_inputs
from girsanov.model.shapes import output_of


def as_names(name: str, given: Any, count: int) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = (given,) if isinstance(given, str) else tuple(given)
    if len(names) != count or len(set(names)) != count or not all(isinstance(n, str) for n in names):
        raise ValueError(f"{name} must be {count} different texts, got {given!r}")
    return names


def as_diffusion(value: Any) -> Any:
    """Return a noise that depends on the state, or a constant spectral density as an array."""
    if isinstance(value, list | tuple) and any(isinstance(v, StateDiffusion) for v in value):
        value = Each(value)
    if isinstance(value, StateDiffusion):
        return traceable(value)
    if isinstance(value, type) and issubclass(value, StateDiffusion):
        raise ValueError(f"diffusion must be a noise with its settings, e.g. {value.__name__}(0.1), got the class")
    return parameter(value)


def common_dimension(drift: Any, Q: Any, state: Any, H: Any, dim: int | None) -> int:
    """Return the dimension of the state, from all parts of the model that determine it; they must agree."""
    sources: dict[str, int] = {}
    if dim is not None:
        check_whole(dim=dim)
        sources["dim"] = int(dim)
    if isinstance(getattr(drift, "dim", None), int):
        sources["drift"] = drift.dim
    if isinstance(Q, StateDiffusion):
        if Q.dim is not None:
            sources["diffusion"] = Q.dim
    elif Q.ndim:
        sources["diffusion"] = Q.shape[0]
    if hasattr(state, "mean"):  # a `GaussianState`
        for name, a in (("initial.mean", state.mean), ("initial.cov", state.cov)):
            if np.ndim(a):
                sources[name] = np.shape(a)[0]
    if hasattr(H, "shape"):
        sources["emission's columns"] = H.shape[1]
    if len(set(sources.values())) > 1:
        said = ", ".join(f"{k} says {v}" for k, v in sources.items())
        raise ValueError(f"the parts of the model disagree about the state's dimension: {said}")
    return next(iter(sources.values()), 1)


def check_drift_shape(drift: Callable, d: int) -> None:
    if takes_inputs(drift):
        return  # the series tells how many inputs there are
    shape = getattr(output_of(drift, "drift", d), "shape", None)
    if shape != (d,):
        raise ValueError(f"the drift must return an array of shape ({d},) for a state of shape ({d},), got {shape}")
