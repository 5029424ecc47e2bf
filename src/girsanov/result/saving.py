"""Writing a posterior or a fit to one versioned file: a zip of NumPy arrays and a JSON description, no pickles.

Drifts and likelihoods of the library are stored by name and parameters. One of the user's own is code, which a data
file does not carry: `load` asks for it again.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from girsanov.model.drifts import DRIFTS
from girsanov.model.likelihoods import LIKELIHOODS
from girsanov.model.model import GaussianState

FORMAT = 1
FIT_COLUMNS = ("elbo", "objective", "e_steps", "passes", "seconds")
MAYBE = "exact_transitions"  # a part of a posterior that most do not have


def save(post: Any, path: str | Path) -> Path:
    header, arrays = _pack(post)
    return _write(path, {"kind": "posterior", **header}, arrays)


def save_fit(fit: Any, path: str | Path) -> Path:
    """A fit is stored as its posterior with the history of learning (of restarts, the best)."""
    header, arrays = _pack(fit.posterior)
    for k in FIT_COLUMNS:
        arrays[f"fit.{k}"] = getattr(fit.history, k)
    for k, v in fit.history.parameters.items():
        arrays[f"fit.parameters.{k}"] = v
    if fit.covariance is not None:
        arrays["fit.covariance"] = fit.covariance
    learnt = {k: getattr(fit, k) for k in ("trainable", "status", "message", "standard_errors")}
    return _write(path, {"kind": "fit", **header, "fit": learnt}, arrays)


def _write(path: str | Path, header: dict[str, Any], arrays: dict[str, Any]) -> Path:
    path = Path(path)
    with path.open("wb") as file:
        np.savez_compressed(file, header=json.dumps(header), **arrays)
    return path


def _pack(post: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    arrays: dict[str, Any] = {"times": post.times, "node": post.node}
    arrays |= {"series.times": post.series.times, "series.values": post.series.values}
    parts = {"moments": post.moments, "natural": post.natural}
    parts |= {f"target.{k}": getattr(post.target, k) for k in ("base", "dense", "data")}
    if post.exact_transitions is not None:
        parts[MAYBE] = post.exact_transitions
    if post.target.right is not None:
        parts["target.right"] = post.target.right
    for name, part in parts.items():
        arrays |= {f"{name}.{k}": np.asarray(v) for k, v in vars(part).items()}
    for k in ("elbo", "step", "decrement"):
        arrays[f"history.{k}"] = getattr(post.history, k)
    model = post.model
    arrays |= {"model.diffusion": _as_given(model.diffusion, model.diffusion_form)}
    arrays |= {"model.emission": np.asarray(model.emission)}
    stationary = not isinstance(model.initial, GaussianState)
    if isinstance(model.initial, GaussianState):
        arrays |= {
            "initial.mean": np.asarray(model.initial.mean),
            "initial.cov": _as_given(model.initial.cov, model.initial_form),
        }
    header = {
        "format": FORMAT,
        "drift": _describe("drift", model.drift, DRIFTS, arrays),
        "likelihood": _describe("likelihood", model.likelihood, LIKELIHOODS, arrays),
        "stationary": stationary,
        "elbo": post.elbo,
        "status": post.status,
        "message": post.message,
        "seconds": post.seconds,
        "time": post.time,
        "quadrature_error": post.quadrature_error,
        "passes": post.history.passes,
        "coarse": post.history.coarse,
        "dates": {"unit": post.series.unit, "origin": None if post.series.origin is None else str(post.series.origin)},
    }
    return header, arrays


def _as_given(matrix: Any, form: str) -> np.ndarray:
    a = np.asarray(matrix)
    return np.asarray(a[0, 0]) if form == "scalar" else np.diagonal(a) if form == "diagonal" else a


def _describe(name: str, part: Any, known: tuple[type, ...], arrays: dict[str, Any]) -> dict[str, Any]:
    """The class of a part and its settings; its arrays go into `arrays`."""
    if type(part) not in known:
        return {"class": None, "repr": repr(part)}
    description: dict[str, Any] = {"class": type(part).__name__, "settings": {}, "arrays": []}
    for key, value in vars(part).items():
        if key == "layers":  # of a neural network: a tuple of (weights, biases)
            description["layers"] = len(value)
            for i, (W, b) in enumerate(value):
                arrays[f"{name}.{key}.{i}.W"], arrays[f"{name}.{key}.{i}.b"] = np.asarray(W), np.asarray(b)
        elif isinstance(value, str):
            description["settings"][key] = value
        else:
            description["arrays"].append(key)
            arrays[f"{name}.{key}"] = np.asarray(value)
    return description
