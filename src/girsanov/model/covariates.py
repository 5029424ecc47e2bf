"""Covariates: numbers that describe a series as a whole, on which parameters of its model depend."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from girsanov._core.precision import frozen
from girsanov.model.diffusions import Diffusion, StateDiffusion, as_matrix, check_inside
from girsanov.model.named import leaves_by_path, replaced


class Covariates(eqx.Module):
    """How parameters of a model depend on the covariates of a series.

    Attributes:
        of_series: a function (p, c) → {name: value} of the parameters by name and of the covariates by name.
        values: parameters of that function, which finds them in p as "covariates.name".
    """

    of_series: Callable
    values: dict[str, Any]

    def applied(self, model: Any, covariates: Mapping[str, Any]) -> Any:
        """Return the model of a series with these covariates, which may be traced."""
        leaves = leaves_by_path(model)
        p = _Asked("the model has no parameter", leaves)
        c = _Asked("the model takes a covariate that the series does not have:", covariates)
        changed = self.of_series(p, c)
        if not isinstance(changed, Mapping):
            raise ValueError(
                f"the function of with_covariates must return a dict of parameters by name, got {changed!r}"
            )
        values = {name: _as_value(name, value, leaves) for name, value in changed.items()}
        new = replaced(eqx.tree_at(lambda m: m.covariates, model, None), values)
        if not any(isinstance(v, Tracer) for v in values.values()):
            _check(new, values)
        return new


class _Asked(dict):
    """A dict that says which names there are when another one is asked for."""

    def __init__(self, missing: str, values: Mapping[str, Any]):
        super().__init__(values)
        self.missing = missing

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"{self.missing} {name!r}; there is {', '.join(map(repr, sorted(self))) or 'none'}")


def _as_value(name: str, value: Any, leaves: Mapping[str, Any]) -> Any:
    """Return a value as a float64 array of the shape of its parameter."""
    if name not in leaves:
        raise ValueError(
            f"the function of with_covariates returned a value for {name!r}, which is no parameter of the model; it "
            f"has {', '.join(leaves)}"
        )
    a = jnp.asarray(value, dtype=np.float64)
    if a.shape != np.shape(leaves[name]):
        raise ValueError(
            f"the function of with_covariates returned {name!r} with shape {a.shape} instead of "
            f"{np.shape(leaves[name])}"
        )
    return a if isinstance(a, Tracer) else frozen(np.array(a))


def _check(model: Any, values: Mapping[str, np.ndarray]) -> None:
    """Raise a ValueError unless what covariates gave is finite, and a valid initial state and noise."""
    for name, value in values.items():
        if not np.isfinite(value).all():
            raise ValueError(f"with its covariates, {name} is {value.tolist()}: it must be finite")
    if "initial.mean" in values and isinstance(model.noise, StateDiffusion):
        check_inside(model.noise, "with its covariates, initial.mean", values["initial.mean"])
    if "initial.cov" in values:
        as_matrix("with its covariates, initial.cov", values["initial.cov"], model.dim)
    if "diffusion" in values:
        Diffusion.of(values["diffusion"], model.dim)


def with_covariates(model: Any, of_series: Callable, values: Mapping[str, Any]) -> Any:
    """Return the model whose parameters depend on covariates; see `Model.with_covariates`."""
    if not callable(of_series):
        raise ValueError(f"with_covariates takes a function of_series(p, c), got {of_series!r}")
    return eqx.tree_at(
        lambda m: m.covariates, model, Covariates(of_series, dict(values)), is_leaf=lambda leaf: leaf is None
    )


def of_series(model: Any, covariates: Mapping[str, Any] | None) -> Any:
    """Return the model of a series with these covariates; the model itself if its parameters do not depend on any."""
    return model if model.covariates is None else model.covariates.applied(model, covariates or {})
