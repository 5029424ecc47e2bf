"""The arrays of a model by the names that a user gives them."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax

_OF_COVARIATES = "covariates.values['"


def parameter_name(path: str) -> str:
    """Return the user's name for the array at this path of a model, such as "diffusion" for "noise.Q".

    The prefix "observation." is removed, which gives names such as "emission" and "likelihood.scale". Of several
    likelihoods, the first is "likelihood[0]".
    """
    if path == "noise.Q":
        return "diffusion"
    if path.startswith("noise."):
        return path.replace("noise.parts[", "diffusion[", 1).replace("noise.", "diffusion.", 1)
    if path.startswith(_OF_COVARIATES):
        return "covariates." + path.removeprefix(_OF_COVARIATES).replace("']", "", 1)
    return path.removeprefix("observation.").replace("likelihood.parts[", "likelihood[", 1)


def path_name(path: Any) -> str:
    """Return the name that a user gives to an array of the model, without the internal parts that hold it."""
    return parameter_name(keys_name(path))


def keys_name(path: Any) -> str:
    """Return a path of JAX as text."""
    return jax.tree_util.keystr(path).lstrip(".")


def leaves_by_path(model: Any) -> dict[str, Any]:
    """Return every array of the model, by its path; of a model of equations, its parameters by their names."""
    flat, _ = jax.tree_util.tree_flatten_with_path(model)
    leaves = {path_name(path): leaf for path, leaf in flat if eqx.is_inexact_array(leaf)}
    if model.equations is None:
        return leaves
    return {**model.equations.values, **{k: v for k, v in leaves.items() if k.startswith("covariates.")}}


def replaced(model: Any, values: Mapping[str, Any]) -> Any:
    """Return the model with these values of its arrays, by their paths."""
    if model.equations is not None:
        model = model.restated({name: v for name, v in values.items() if name in model.equations.values})
        values = {name: v for name, v in values.items() if name.startswith("covariates.")}
    return jax.tree_util.tree_map_with_path(lambda path, leaf: values.get(path_name(path), leaf), model)
