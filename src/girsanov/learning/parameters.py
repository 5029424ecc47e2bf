"""Trainable parameters of a model, and their map to one vector of unconstrained numbers, the free coordinates θ.

A parameter is an array of the model and is named by its path ("drift.scale", "likelihood.variance"). A name also stands
for everything below it ("drift"), and a name with indices for a single entry ("drift.A[0, 1]"). A constraint is a
bijection from unconstrained numbers: real, positive, an interval, or symmetric positive-definite matrices, which keep
the form in which they were given (a multiple of the identity, diagonal, or full).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpyro.distributions import biject_to
from numpyro.distributions import constraints as nc

from girsanov._core.types import Array
from girsanov.model.diffusions import StateDiffusion
from girsanov.model.model import Model
from girsanov.model.named import keys_name, leaves_by_path, path_name, replaced

Kind = str | tuple[float, float]
_MATRIX_FORMS = ("scalar", "diagonal", "full")
_SMALL, _LARGE = 1e-3, 1e3  # a parameter outside this range gets a unit of its own, see `units`
_ENTRY = re.compile(r"(?P<path>.+)\[(?P<index>\s*-?\d+\s*(,\s*-?\d+\s*)*)\]")
KINDS = ("real", "positive", "ordered", *_MATRIX_FORMS)


class Parameter(NamedTuple):
    """One trainable parameter.

    Attributes:
        path: its path.
        kind: its constraint.
        shape: its shape.
        size: its number of free coordinates that are learnt.
        learnt: the places of these among all free coordinates, or None if all are learnt.
        fixed: all free coordinates at the start, for those that are not learnt; empty if all are.
    """

    path: str
    kind: Kind
    shape: tuple[int, ...]
    size: int
    learnt: tuple[int, ...] | None = None
    fixed: tuple[float, ...] = ()


Spec = tuple[Parameter, ...]


def make_spec(
    model: Model, trainable: Sequence[str] | str | None, constraints: Mapping[str, Kind] | None = None
) -> Spec:
    """Return the parameters that the names stand for, in the order of the model's arrays.

    Args:
        model: the model.
        trainable: names or paths of the parameters to learn; None for those that the model's equations leave free.
        constraints: constraints by name or path that replace the defaults.
    """
    if trainable is None and model.equations is not None:
        trainable = model.equations.free
    names = [trainable] if isinstance(trainable, str) else list(trainable or ())
    if not names:
        raise ValueError("trainable is empty: name at least one part of the model, e.g. trainable=['drift']")
    leaves = leaves_by_path(model)
    constraints = dict(constraints or {})
    single, wanted = _single_entries(names, leaves), names
    names = [single[name][0] if name in single else name for name in names]
    chosen = {path for path in leaves if any(_stands_for(name, path) for name in names)}
    for name in [*names, *constraints]:
        if not any(_stands_for(name, path) for path in leaves):
            raise ValueError(f"the model has no parameter {name!r}; it has {', '.join(_offer(leaves))}")
    spec = []
    for path, leaf in leaves.items():
        if path in chosen:
            p = _parameter(path, np.shape(leaf), _kind(model, path, np.ndim(leaf), constraints))
            some = [index for whole, index in single.values() if whole == path]
            all_of_it = any(_stands_for(name, path) for name in wanted if name not in single)
            spec.append(_partly(p, leaf, model, [] if all_of_it else some))
    return tuple(spec)


def _single_entries(names: Sequence[str], leaves: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the path and the index of every name that stands for a single entry, such as "drift.A[0, 1]"."""
    found = {}
    for name in names:
        match = _ENTRY.fullmatch(name)
        if match is None or name in leaves or match["path"] not in leaves:
            continue
        path, shape = match["path"], np.shape(leaves[match["path"]])
        index = tuple(int(i) for i in match["index"].split(","))
        if len(index) != len(shape) or not all(-n <= i < n for i, n in zip(index, shape, strict=True)):
            raise ValueError(f"{name!r} is not an entry of {path!r}, which has shape {shape}")
        found[name] = path, tuple(i % n for i, n in zip(index, shape, strict=True))
    return found


def _partly(p: Parameter, value: Any, model: Model, some: list[tuple[int, ...]]) -> Parameter:
    """Return the parameter with only some of its entries learnt; a coordinate without noise is never learnt."""
    if p.path == "diffusion" and model.noise.is_singular and isinstance(value, np.ndarray):
        if model.noise.rank < len(model.noise.noisy):
            raise ValueError(
                "the diffusion is singular in directions that are not coordinates, and it cannot be learnt then; leave "
                "it out of trainable, or choose coordinates in which the directions without noise are coordinates"
            )
        if p.kind == "scalar":
            raise ValueError("a diffusion with zeros is not a multiple of the identity: give constraints= 'diagonal'")
        rows = set(model.noise.noisy)
        some = some or [i for i in _places(p) if set(i) <= rows]
    if not some:
        return p
    if p.kind in ("scalar", "ordered"):
        raise ValueError(f"single entries of {p.path!r} cannot be learnt: with the constraint {p.kind!r} all change")
    order = _places(p)
    some = [(max(i), min(i)) for i in some] if p.kind == "full" else some
    if p.kind == "full" and not _is_block(some):
        raise ValueError(
            f"single entries of {p.path!r} cannot be learnt: as a covariance it has no independent entries; give it as "
            "a diagonal, or learn all of it"
        )
    for i in some:
        if i not in order:
            raise ValueError(f"{p.path}{list(i)} is zero by the constraint {p.kind!r} and cannot be learnt")
    places = tuple(sorted(order.index(i) for i in set(some)))
    return p._replace(size=len(places), learnt=places, fixed=tuple(_all_free(p, value).tolist()))


def _is_block(lower: list[tuple[int, ...]]) -> bool:
    """Return whether these entries are the lower triangle of a block of rows and the same columns."""
    rows = {i for entry in lower for i in entry}
    return {(i, j) for i in rows for j in rows if i >= j} == set(lower)


def _stands_for(name: str, path: str) -> bool:
    return path == name or path.startswith((name + ".", name + "["))


def _offer(leaves: Mapping[str, Any]) -> list[str]:
    tops = dict.fromkeys(path.split(".")[0].split("[")[0] for path in leaves)
    return [*tops, *(p for p in leaves if p not in tops)]


def _kind(model: Model, path: str, ndim: int, constraints: Mapping[str, Kind]) -> Kind:
    """Return the constraint given under the most specific name that stands for the path, or else the default."""
    given = [name for name in constraints if _stands_for(name, path)]
    return constraints[max(given, key=len)] if given else _default_kind(model, path, ndim)


def _default_kind(model: Model, path: str, ndim: int) -> Kind:
    if model.equations is not None and path in model.equations.values:
        return model.equations.kind(path)
    if path == "diffusion":
        return model.noise.form
    if path == "initial.cov":
        return model.initial_form
    if path == "initial.mean" and isinstance(model.noise, StateDiffusion):
        return _inside(*model.noise.support(model.dim))
    kind = _declared_kind(model, path)
    return "full" if kind == "positive" and path.startswith("likelihood.") and ndim == 2 else kind


def _inside(low: np.ndarray, high: np.ndarray) -> Kind:
    """Return the constraint of states between these ends, if all coordinates have the same ones; else "real"."""
    ends = set(zip(low.tolist(), high.tolist(), strict=True))
    if ends == {(0.0, np.inf)}:
        return "positive"
    return ends.pop() if len(ends) == 1 and np.isfinite([low, high]).all() else "real"


def _declared_kind(model: Model, path: str) -> Kind:
    """Return the constraint that a part of the model declares for a path; of nested parts, the innermost one counts."""
    flat, _ = jax.tree_util.tree_flatten_with_path(model)
    keys = next(keys for keys, _ in flat if path_name(keys) == path)
    kind: Kind = "real"
    part: Any = model
    for i, key in enumerate(keys):
        kind = getattr(part, "constraints", {}).get(keys_name(keys[i:]), kind)
        name = next(v for v in (getattr(key, a, None) for a in ("name", "idx", "key")) if v is not None)
        try:
            part = getattr(part, name) if isinstance(name, str) else part[name]
        except (TypeError, KeyError, IndexError, AttributeError):  # a node of another library declares no constraints
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
    if kind == "ordered":
        return biject_to(nc.ordered_vector)
    if kind in ("positive", "scalar", "diagonal"):
        return biject_to(nc.positive)
    if kind == "full":
        return biject_to(nc.positive_definite)
    low, high = kind
    return biject_to(nc.interval(float(low), float(high)))


def constrain(p: Parameter, free: Float[Array, " k"]) -> Array:
    """Return the value of a parameter from its free coordinates that are learnt."""
    if p.learnt is not None:
        free = jnp.asarray(p.fixed).at[np.asarray(p.learnt)].set(free)
    value = _bijection(p.kind)(free)
    if p.kind == "scalar":
        return value[0] * jnp.eye(p.shape[0], dtype=value.dtype)
    if p.kind == "diagonal":
        return jnp.diag(value)
    return value if p.kind == "full" else value.reshape(p.shape)


def unconstrain(p: Parameter, value: Any) -> Float[np.ndarray, " k"]:
    """Return the learnt free coordinates of a value; raise a ValueError if it violates the constraint."""
    free = _all_free(p, value)
    free = free if p.learnt is None else free[list(p.learnt)]
    if not np.isfinite(free).all():
        raise ValueError(
            f"{p.path} = {value!r} is not inside its constraint {p.kind!r}; start from a value inside it, or give "
            "another constraint in constraints="
        )
    return free


def _all_free(p: Parameter, value: Any) -> Float[np.ndarray, " k"]:
    """Return all free coordinates of a value; those of a zero variance are minus infinity."""
    a = np.array(value, dtype=np.float64)
    if p.kind == "full":
        order = np.argsort(a.diagonal() == 0.0, kind="stable")
        k = int((a.diagonal() != 0.0).sum())
        root = np.zeros_like(a)
        noisy = np.sort(order[:k])
        try:
            root[np.ix_(noisy, noisy)] = np.linalg.cholesky(a[np.ix_(noisy, noisy)])
        except np.linalg.LinAlgError:
            root[:] = np.nan
        with np.errstate(divide="ignore"):
            return np.concatenate([root[np.tril_indices(len(a), -1)], np.log(root.diagonal())])
    a = a[:1, 0] if p.kind == "scalar" else np.diagonal(a) if p.kind == "diagonal" else a.ravel()
    with np.errstate(divide="ignore"):
        return np.asarray(_bijection(p.kind).inv(jnp.asarray(a)))


def to_vector(spec: Spec, model: Model) -> Float[np.ndarray, " P"]:
    """Return the free coordinates θ of a model's parameters."""
    leaves = leaves_by_path(model)
    return np.concatenate([unconstrain(p, leaves[p.path]) for p in spec])


def units(spec: Spec, theta: Float[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
    """Return a unit for every free coordinate, in which it is of order one.

    Optimisers have absolute tolerances, and data in micrometres or dollars can have parameters of any size. The unit is
    one, unless the parameter's largest free coordinate is far above one, or far below one with the constraint "real".
    It is a power of two, so that a change of units causes no rounding.
    """
    parts, start = [], 0
    for p in spec:
        size = np.abs(theta[start : start + p.size]).max(initial=0.0)
        other = size > _LARGE or (p.kind == "real" and 0.0 < size < _SMALL)
        parts.append(np.full(p.size, np.exp2(np.ceil(np.log2(size))) if other else 1.0))
        start += p.size
    return np.concatenate(parts)


def split(spec: Spec, theta: Float[Array, " P"]) -> dict[str, Array]:
    """Return the values of the parameters, by path, from the free coordinates θ."""
    values, start = {}, 0
    for p in spec:
        values[p.path] = constrain(p, theta[start : start + p.size])
        start += p.size
    return values


def insert(spec: Spec, theta: Float[Array, " P"], model: Model) -> Model:
    """Return the model with the parameters θ."""
    return replaced(model, split(spec, theta))


def owners(spec: Spec) -> list[Parameter]:
    """Return the parameter to which each free coordinate belongs."""
    return [p for p in spec for _ in range(p.size)]


def entries(spec: Spec) -> list[str]:
    """Return a name for every entry of a parameter that can vary, in the order of `constrained_entries`."""
    names = []
    for p in spec:
        if p.kind == "scalar" or not p.shape or (p.kind == "diagonal" and p.learnt is None and p.size == 1):
            names.append(p.path)
        else:
            names += [p.path + str(list(map(int, i))) for i in _varying(p)]
    return names


def _places(p: Parameter) -> list[tuple[int, ...]]:
    """Return the entry of the value that belongs to each free coordinate, all of them counted.

    A full matrix has the entries of its Cholesky factor below the diagonal first, and then those on the diagonal.
    """
    if p.kind == "diagonal":
        return [(i, i) for i in range(p.shape[0])]
    if p.kind == "full":
        below = [(int(i), int(j)) for i, j in zip(*np.tril_indices(p.shape[0], -1), strict=True)]
        return below + [(i, i) for i in range(p.shape[0])]
    return list(np.ndindex(*p.shape))


def _varying(p: Parameter) -> list[tuple[int, ...]]:
    """Return the entries of the value that vary, row by row; of a symmetric matrix those of the lower triangle."""
    places = _places(p)
    return sorted(places if p.learnt is None else [places[k] for k in p.learnt])


def free_part(p: Parameter, value: Any) -> Any:
    """Return the part of a value that can vary: some entries, the factor of the identity, the diagonal, or all."""
    if p.learnt is not None:
        return value[tuple(np.array(_varying(p)).T)]
    if p.kind == "scalar":
        return value[0, 0]
    return jnp.diagonal(value) if p.kind == "diagonal" else value


def constrained_entries(spec: Spec, theta: Float[Array, " P"]) -> Float[Array, " P"]:
    """Return the values of all entries that can vary, in the order of `entries`; there are as many as in θ."""
    values, parts = split(spec, theta), []
    for p in spec:
        value = values[p.path]
        if p.kind == "scalar" or not p.shape:
            parts.append(free_part(p, value).reshape(-1))
        else:
            parts.append(value[tuple(np.array(_varying(p)).T)])
    return jnp.concatenate(parts)
