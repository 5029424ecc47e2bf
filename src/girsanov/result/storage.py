"""One versioned file for a posterior or a fit: a zip of NumPy arrays and a JSON description, no pickles.

Drifts and likelihoods of the library are stored by name and parameters. One of the user's own is code, which a data
file does not carry: give it to `load` again.
"""

import dataclasses
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from girsanov._core.precision import frozen
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain
from girsanov.chain.transitions import Transitions
from girsanov.data.series import TimeSeries
from girsanov.model.drifts import DRIFTS
from girsanov.model.likelihoods import LIKELIHOODS, Likelihood
from girsanov.model.model import GaussianState, Model
from girsanov.model.sites import DataSites, DenseSites, Linearisation, Sites
from girsanov.result.fit import Fit, FitHistory
from girsanov.result.posterior import History, Posterior

FORMAT = 1
_FIT_COLUMNS = ("elbo", "objective", "e_steps", "passes", "seconds")
_ARRAYS = {
    "moments": Moments,
    "natural": NaturalChain,
    "target.base": Linearisation,
    "target.dense": DenseSites,
    "target.data": DataSites,
}
_MAYBE = "exact_transitions"


def save(post: Posterior, path: str | Path) -> Path:
    header, arrays = _pack(post)
    return _write(path, {"kind": "posterior", **header}, arrays)


def save_fit(fit: Fit, path: str | Path) -> Path:
    """A fit is stored as its posterior with the history of learning (of restarts, the best)."""
    header, arrays = _pack(fit.posterior)
    for k in _FIT_COLUMNS:
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


def _pack(post: Posterior) -> tuple[dict[str, Any], dict[str, Any]]:
    arrays: dict[str, Any] = {"times": post.times, "node": post.node}
    arrays |= {"series.times": post.series.times, "series.values": post.series.values}
    parts = {"moments": post.moments, "natural": post.natural}
    parts |= {f"target.{k}": getattr(post.target, k) for k in ("base", "dense", "data")}
    if post.exact_transitions is not None:
        parts[_MAYBE] = post.exact_transitions
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


def load(path: str | Path, *, drift: Callable | None = None, likelihood: Likelihood | None = None) -> Any:
    """The Posterior or Fit that `save` wrote; a drift or likelihood of your own must be given again."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"there is no file {path}")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {k: frozen(file[k]) for k in file.files}
        header = json.loads(str(arrays.pop("header")))
    except (ValueError, KeyError, OSError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a Girsanov file, or it is damaged: {error}") from None
    if header["format"] > FORMAT:
        raise ValueError(f"{path} has format {header['format']}, this version reads up to {FORMAT}: upgrade girsanov")
    post = _unpack(header, arrays, drift, likelihood, path)
    if header["kind"] == "posterior":
        return post
    names = [k for k in arrays if k.startswith("fit.parameters.")]
    parameters = {k.removeprefix("fit.parameters."): arrays[k] for k in names}
    history = FitHistory(parameters, *(arrays[f"fit.{k}"] for k in _FIT_COLUMNS))
    learnt = header["fit"]
    return Fit(
        post.model,
        post,
        history,
        tuple(learnt["trainable"]),
        learnt["status"],
        learnt["message"],
        learnt["standard_errors"],
        arrays.get("fit.covariance"),
    )


def _unpack(header: dict[str, Any], arrays: dict[str, Any], drift: Any, likelihood: Any, path: Path) -> Posterior:
    model = Model(
        drift=_restored("drift", header, DRIFTS, arrays, drift, path),
        diffusion=arrays["model.diffusion"],
        initial="stationary" if header["stationary"] else GaussianState(arrays["initial.mean"], arrays["initial.cov"]),
        likelihood=_restored("likelihood", header, LIKELIHOODS, arrays, likelihood, path),
        emission=arrays["model.emission"],
    )
    parts = {
        name: kind(**{f.name: arrays[f"{name}.{f.name}"] for f in dataclasses.fields(kind)})
        for name, kind in _ARRAYS.items()
    }
    steps = {k: arrays.get(f"{_MAYBE}.{k}") for k in ("T", "root")}
    history = History(
        *(arrays[f"history.{k}"] for k in ("elbo", "step", "decrement")),
        passes=header["passes"],
        coarse=tuple(tuple(c) for c in header["coarse"]),
    )
    dates = header.get("dates", {"unit": None, "origin": None})
    origin = None if dates["origin"] is None else np.datetime64(dates["origin"], "ns")
    series = TimeSeries.counted(arrays["series.times"], arrays["series.values"], dates["unit"], origin)
    return Posterior(
        model=model,
        series=series,
        times=arrays["times"],
        node=arrays["node"],
        moments=parts["moments"],
        natural=parts["natural"],
        target=Sites(parts["target.base"], parts["target.dense"], parts["target.data"]),
        elbo=header["elbo"],
        history=history,
        status=header["status"],
        message=header["message"],
        seconds=header["seconds"],
        time=header["time"],
        quadrature_error=header.get("quadrature_error"),
        exact_transitions=None if steps["T"] is None else Transitions(**steps),
    )


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


def _restore(name: str, description: dict[str, Any], known: tuple[type, ...], arrays: dict[str, Any]) -> Any:
    kinds = {kind.__name__: kind for kind in known}
    kind = kinds[description["class"]]
    values = {k: arrays[f"{name}.{k}"] for k in description["arrays"]} | description["settings"]
    if "layers" in description:
        part = object.__new__(kind)
        count = range(description["layers"])
        layers = tuple((arrays[f"{name}.layers.{i}.W"], arrays[f"{name}.layers.{i}.b"]) for i in count)
        for key, value in {**values, "layers": layers}.items():
            object.__setattr__(part, key, value)
        return part
    return kind(**values)


def _restored(name: str, header: dict[str, Any], known: tuple[type, ...], arrays: dict, given: Any, path: Path) -> Any:
    """The part as given, or as stored."""
    if given is not None:
        return given
    if header[name]["class"] is None:
        raise ValueError(
            f"{path} was made with a {name} of your own, {header[name]['repr']}; "
            f"give it again: gv.load(path, {name}=...)"
        )
    return _restore(name, header[name], known, arrays)
