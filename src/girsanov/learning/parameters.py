"""Trainable parameters: which leaves of a model, under which constraints, as one unconstrained vector.

A parameter is named by its path in the model ("drift.scale", "likelihood.variance"); a name also stands for everything
below it ("drift"). Constraints are bijections from unconstrained numbers: real, positive, an interval, and symmetric
positive-definite matrices that keep the form in which they were given (a multiple of the identity, diagonal, full).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpyro.distributions import biject_to
from numpyro.distributions import constraints as nc

from girsanov._core.types import Array
from girsanov.model.model import Model

Kind = str | tuple[float, float]
_MATRIX_FORMS = ("scalar", "diagonal", "full")
_SMALL, _LARGE = 1e-3, 1e3  # outside this range a parameter is measured in a unit of its own
KINDS = ("real", "positive", *_MATRIX_FORMS)


class Parameter(NamedTuple):
    """One trainable leaf: its path, how it is constrained, its shape, and its number of free coordinates."""

    path: str
    kind: Kind
    shape: tuple[int, ...]
    size: int


Spec = tuple[Parameter, ...]


def _path_name(path: Any) -> str:
    return jax.tree_util.keystr(path).lstrip(".")


def leaves_by_path(model: Model) -> dict[str, Any]:
    """Every array of the model by its path."""
    flat, _ = jax.tree_util.tree_flatten_with_path(model)
    return {_path_name(path): leaf for path, leaf in flat if eqx.is_inexact_array(leaf)}


def make_spec(model: Model, trainable: Sequence[str] | str, constraints: Mapping[str, Kind] | None = None) -> Spec:
    """The parameters that the names stand for, in the order of the model's leaves."""
    names = [trainable] if isinstance(trainable, str) else list(trainable)
    if not names:
        raise ValueError("trainable is empty: name at least one part of the model, e.g. trainable=['drift']")
    leaves = leaves_by_path(model)
    constraints = dict(constraints or {})
    chosen = {path for path in leaves if any(_stands_for(name, path) for name in names)}
    for name in [*names, *constraints]:
        if not any(_stands_for(name, path) for path in leaves):
            raise ValueError(f"the model has no parameter {name!r}; it has {', '.join(_offer(leaves))}")
    return tuple(
        _parameter(path, np.shape(leaf), _kind(model, path, np.ndim(leaf), constraints))
        for path, leaf in leaves.items()
        if path in chosen
    )


def _stands_for(name: str, path: str) -> bool:
    return path == name or path.startswith((name + ".", name + "["))


def _offer(leaves: Mapping[str, Any]) -> list[str]:
    tops = dict.fromkeys(path.split(".")[0].split("[")[0] for path in leaves)
    return [*tops, *(p for p in leaves if p not in tops)]


def _kind(model: Model, path: str, ndim: int, constraints: Mapping[str, Kind]) -> Kind:
    """The constraint given under the most specific name that stands for the path, else the default."""
    given = [name for name in constraints if _stands_for(name, path)]
    return constraints[max(given, key=len)] if given else _default_kind(model, path, ndim)


def _default_kind(model: Model, path: str, ndim: int) -> Kind:
    if path == "diffusion":
        return model.diffusion_form
    if path == "initial.cov":
        return model.initial_form
    kind = _declared_kind(model, path)
    return "full" if kind == "positive" and path.startswith("likelihood.") and ndim == 2 else kind


def _declared_kind(model: Model, path: str) -> Kind:
    """What the innermost part that declares a constraint of this leaf says: parts may stand inside others."""
    flat, _ = jax.tree_util.tree_flatten_with_path(model)
    keys = next(keys for keys, _ in flat if _path_name(keys) == path)
    kind: Kind = "real"
    part: Any = model
    for i, key in enumerate(keys):
        kind = getattr(part, "constraints", {}).get(_path_name(keys[i:]), kind)
        name = next(v for v in (getattr(key, a, None) for a in ("name", "idx", "key")) if v is not None)
        try:
            part = getattr(part, name) if isinstance(name, str) else part[name]
        except (TypeError, KeyError, IndexError, AttributeError):  # a node of another library: it declares nothing
            break
    return kind


def _parameter(path: str, shape: tuple[int, ...], kind: Kind) -> Parameter:
    if isinstance(kind, str) and kind not in KINDS:
        raise ValueError(f"unknown constraint {kind!r} for {path!r}; choose one of {list(KINDS)} or (low, high)")
    if not isinstance(kind, str):
        low, high = (float(v) for v in kind)
        if not low < high:
            raise ValueError(f"the interval of {path!r} must have low < high, got {kind!r}")
        kind = (low, high)
    if kind in _MATRIX_FORMS and (len(shape) != 2 or shape[0] != shape[1]):
        raise ValueError(f"the constraint {kind!r} is for square matrices; {path!r} has shape {shape}")
    d = shape[0] if shape else 1
    size = {"scalar": 1, "diagonal": d, "full": d * (d + 1) // 2}.get(str(kind), int(np.prod(shape)))
    return Parameter(path, kind, shape, size)


def _bijection(kind: Kind):
    if kind == "real":
        return biject_to(nc.real)
    if kind in ("positive", "scalar", "diagonal"):
        return biject_to(nc.positive)
    if kind == "full":
        return biject_to(nc.positive_definite)
    low, high = kind
    return biject_to(nc.interval(float(low), float(high)))


def constrain(p: Parameter, free: Float[Array, " k"]) -> Array:
    """The parameter's value from its free coordinates."""
    value = _bijection(p.kind)(free)
    if p.kind == "scalar":
        return value[0] * jnp.eye(p.shape[0], dtype=value.dtype)
    if p.kind == "diagonal":
        return jnp.diag(value)
    return value if p.kind == "full" else value.reshape(p.shape)


def unconstrain(p: Parameter, value: Any) -> Float[np.ndarray, " k"]:
    """The free coordinates of a value."""
    a = np.array(value, dtype=np.float64)
    if p.kind == "scalar":
        a = a[:1, 0]
    elif p.kind == "diagonal":
        a = np.diagonal(a)
    elif p.kind != "full":
        a = a.ravel()
    free = np.asarray(_bijection(p.kind).inv(jnp.asarray(a)))
    if not np.isfinite(free).all():
        raise ValueError(f"{p.path} = {value!r} is not inside its constraint {p.kind!r}; start from a value inside it")
    return free


def to_vector(spec: Spec, model: Model) -> Float[np.ndarray, " P"]:
    leaves = leaves_by_path(model)
    return np.concatenate([unconstrain(p, leaves[p.path]) for p in spec])


def units(spec: Spec, theta: Float[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
    """A unit for every free coordinate in which it is of order one, a power of two, which costs no rounding.

    One, unless the parameter's largest entry is far above one, or it is free to be any number and far below: data in
    micrometres or dollars have such parameters, and optimisers' tolerances are absolute.
    """
    parts, start = [], 0
    for p in spec:
        size = np.abs(theta[start : start + p.size]).max(initial=0.0)
        other = size > _LARGE or (p.kind == "real" and 0.0 < size < _SMALL)
        parts.append(np.full(p.size, np.exp2(np.ceil(np.log2(size))) if other else 1.0))
        start += p.size
    return np.concatenate(parts)


def split(spec: Spec, theta: Float[Array, " P"]) -> dict[str, Array]:
    """Parameter values by path."""
    values, start = {}, 0
    for p in spec:
        values[p.path] = constrain(p, theta[start : start + p.size])
        start += p.size
    return values


def insert(spec: Spec, theta: Float[Array, " P"], model: Model) -> Model:
    """The model with these values in place of its own."""
    values = split(spec, theta)
    return jax.tree_util.tree_map_with_path(lambda path, leaf: values.get(_path_name(path), leaf), model)


def entries(spec: Spec) -> list[str]:
    """A name for every coordinate that is free to move, in the order of `constrained_entries`."""
    names = []
    for p in spec:
        if p.kind in ("scalar", "diagonal") or not p.shape:
            names += [p.path] if p.size == 1 else [f"{p.path}[{i}, {i}]" for i in range(p.size)]
        else:
            names += [p.path + str(list(map(int, i))) for i in _free_indices(p)]
    return names


def _free_indices(p: Parameter):
    indices = list(np.ndindex(*p.shape))
    return [i for i in indices if i[0] >= i[1]] if p.kind == "full" else indices


def free_part(p: Parameter, value: Any) -> Any:
    """A value without what its form fixes: the factor of the identity, the diagonal, or the whole."""
    if p.kind == "scalar":
        return value[0, 0]
    return jnp.diagonal(value) if p.kind == "diagonal" else value


def constrained_entries(spec: Spec, theta: Float[Array, " P"]) -> Float[Array, " P"]:
    """The values behind `entries`, one number a free coordinate."""
    values, parts = split(spec, theta), []
    for p in spec:
        value = free_part(p, values[p.path])
        if p.kind == "full":
            i, j = np.array(_free_indices(p)).T
            value = value[i, j]
        parts.append(value.reshape(-1))
    return jnp.concatenate(parts)
