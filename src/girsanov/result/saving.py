"""Write a posterior, drawn paths or a fit to one versioned file: a zip archive of NumPy arrays and a JSON header.

Drifts, noises and likelihoods of the library are stored by their name and parameters. A user's own drift, noise,
likelihood or emission is code, which the file does not contain; it must be given to `load` again.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from girsanov.model.diffusions import DIFFUSIONS, Diffusion, Each, StateDiffusion
from girsanov.model.drifts import DRIFTS, Sum
from girsanov.model.likelihoods import LIKELIHOODS, Joint
from girsanov.model.model import GaussianState

FORMAT = 2  # 1 had no inputs
FIT_COLUMNS = ("elbo", "objective", "e_steps", "passes", "seconds")
REFINED_ARRAYS = ("samples", "acceptance", "filtered")
REFINED = (
    "chains", "log_evidence", "standard_error", "ess", "rhat", "seconds", "status", "message", "sweeps",
    "filter_particles",
)  # fmt: skip
POPULATION = "population."  # before the names of arrays of the model without covariates
MAYBE = "exact_transitions"  # an optional part, which most posteriors do not have


def save(post: Any, path: str | Path) -> Path:
    """Write a posterior and return the path of the file."""
    header, arrays = pack(post)
    return write(path, {"kind": "posterior", **header}, arrays)


def save_fit(fit: Any, path: str | Path) -> Path:
    """Write a fit, as its posterior and the history of learning, and return the path of the file.

    Of several restarts, only the best is stored.
    """
    header, arrays = pack(fit.posterior)
    for k in FIT_COLUMNS:
        arrays[f"fit.{k}"] = getattr(fit.history, k)
    for k, v in fit.history.parameters.items():
        arrays[f"fit.parameters.{k}"] = v
    if fit.covariance is not None:
        arrays["fit.covariance"] = fit.covariance
    learnt = {
        k: getattr(fit, k) for k in ("trainable", "status", "message", "standard_errors", "step_error", "directions")
    }
    learnt["evidence"] = None if fit.evidence is None else fit.evidence.stored()
    pack_population(fit.model, header, arrays)
    return write(path, {"kind": "fit", **header, "fit": learnt}, arrays)


def save_refined(refined: Any, path: str | Path) -> Path:
    """Write draws and the posterior that guided them, and return the path of the file."""
    header, arrays = pack(refined.guide)
    arrays |= {f"refined.{k}": getattr(refined, k) for k in REFINED_ARRAYS}
    return write(path, {"kind": "refined", **header, "refined": {k: getattr(refined, k) for k in REFINED}}, arrays)


def write(path: str | Path, header: dict[str, Any], arrays: dict[str, Any]) -> Path:
    """Write a file and return its path."""
    path = Path(path)
    with path.open("wb") as file:
        np.savez_compressed(file, header=json.dumps(header), **arrays)
    return path


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file in one step: even if the process is killed, a reader finds all of it, or what was there before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def pack(post: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the arrays of a posterior."""
    arrays: dict[str, Any] = {"times": post.times, "node": post.node}
    arrays |= {"series.times": post.series.times, "series.values": post.series.values}
    if post.series.errors is not None:
        arrays["series.errors"] = post.series.errors
    parts = {"moments": post.moments, "natural": post.natural}
    parts |= {f"target.{k}": getattr(post.target, k) for k in ("base", "dense", "data")}
    if post.exact_transitions is not None:
        parts[MAYBE] = post.exact_transitions
    if post.target.right is not None:
        parts["target.right"] = post.target.right
    if post.rule is not None:
        arrays |= {"rule.nodes": np.asarray(post.rule.nodes), "rule.weights": np.asarray(post.rule.weights)}
    if post.target.base.before is not None:
        parts["target.base.before"] = post.target.base.before
    for name, part in parts.items():
        arrays |= {f"{name}.{k}": np.asarray(v) for k, v in vars(part).items() if k != "before"}
    inputs = post.series.inputs
    for i, part in enumerate(() if inputs is None else inputs.parts):
        arrays |= {f"series.inputs.{i}.{k}": np.asarray(getattr(part, k)) for k in ("times", "values", "until")}
    for k in ("elbo", "step", "decrement"):
        arrays[f"history.{k}"] = getattr(post.history, k)
    header = {
        "format": FORMAT,
        **pack_model(post.model, arrays),
        "elbo": post.elbo,
        "status": post.status,
        "message": post.message,
        "seconds": post.seconds,
        "time": post.time,
        "quadrature_error": post.quadrature_error,
        "passes": post.history.passes,
        "node_passes": post.history.node_passes,
        "coarse": post.history.coarse,
        "inputs": None if inputs is None else {"kinds": [part.kind for part in inputs.parts], "names": inputs.names},
        "dates": {"unit": post.series.unit, "origin": None if post.series.origin is None else str(post.series.origin)},
        "covariates": post.series.covariates,
    }
    return header, arrays


def pack_model(model: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a model, and add its arrays to `arrays`."""
    if isinstance(model.noise, Diffusion):
        arrays |= {"model.diffusion": _as_given(model.noise.Q, model.noise.form)}
    if model.observation.is_linear:
        arrays["model.emission"] = np.asarray(model.emission)
    if model.offset is not None:
        arrays["model.offset"] = np.asarray(model.offset)
    stationary = not isinstance(model.initial, GaussianState)
    if not stationary:
        arrays |= {
            "initial.mean": np.asarray(model.initial.mean),
            "initial.cov": _as_given(model.initial.cov, model.initial_form),
        }
    return {
        "diffusion": None if isinstance(model.noise, Diffusion) else _described_noise(model.noise, arrays),
        "drift": _describe("drift", model.drift, DRIFTS, arrays),
        "likelihood": _describe("likelihood", model.likelihood, LIKELIHOODS, arrays),
        "equations": None if model.equations is None else _stated(model.equations),
        "emission": None if model.observation.is_linear else {"class": None, "repr": repr(model.emission)},
        "dim": model.dim,
        "state_names": model.state_names,
        "output_names": model.output_names,
        "stationary": stationary,
    }


def pack_population(model: Any, header: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Add a model whose parameters depend on covariates, of which every posterior has the form of its series."""
    if model.covariates is not None:
        own: dict[str, Any] = {f"covariates.{k}": np.asarray(v) for k, v in model.covariates.values.items()}
        header["population"] = {**pack_model(model, own), "of_series": repr(model.covariates.of_series)}
        arrays |= {POPULATION + k: v for k, v in own.items()}


def _stated(equations: Any) -> dict[str, Any]:
    """Return the description of equations and the values of their parameters."""
    values = {name: np.asarray(value).tolist() for name, value in equations.values.items()}
    return {"source": equations.source, "values": values}


def _described_noise(noise: StateDiffusion, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a noise that depends on the state, with its correlations."""
    return {**_describe("diffusion", noise, DIFFUSIONS, arrays), "correlation": noise.correlation}


def _as_given(matrix: Any, form: str) -> np.ndarray:
    a = np.asarray(matrix)
    return np.asarray(a[0, 0]) if form == "scalar" else np.diagonal(a) if form == "diagonal" else a


def _describe(name: str, part: Any, known: tuple[type, ...], arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the class and the settings of a drift or likelihood, and add its arrays to `arrays`."""
    own_code = {"class": None, "repr": repr(part)}
    if type(part) not in known:
        return own_code
    if isinstance(part, Sum | Joint | Each):
        parts = [_describe(f"{name}.parts.{i}", p, known, arrays) for i, p in enumerate(part.parts)]
        own = any(p["class"] is None for p in parts)
        return own_code if own else {"class": type(part).__name__, "parts": parts}
    # A drift may have a drift of the library as a field, as `Langevin` has its force.
    inside = {k: _describe(f"{name}.{k}", v, known, arrays) for k, v in vars(part).items() if callable(v)}
    if any(p["class"] is None for p in inside.values()):
        return own_code
    description: dict[str, Any] = {"class": type(part).__name__, "settings": {}, "arrays": [], "inside": inside}
    for key, value in vars(part).items():
        if key in inside:
            continue
        if key == "layers":  # the layers of a neural network are tuples (weights, biases)
            description["layers"] = len(value)
            for i, (W, b) in enumerate(value):
                arrays[f"{name}.{key}.{i}.W"], arrays[f"{name}.{key}.{i}.b"] = np.asarray(W), np.asarray(b)
        elif isinstance(value, str | float):
            description["settings"][key] = value
        elif key == "correlation":  # of a noise; `_described_noise` has it
            continue
        elif value is not None:
            description["arrays"].append(key)
            arrays[f"{name}.{key}"] = np.asarray(value)
    return description
