"""`load`: read the files that `saving` writes."""

import dataclasses
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from girsanov._core.precision import frozen
from girsanov.chain.linear_sde import Linearisation
from girsanov.chain.moments import Moments
from girsanov.chain.natural import NaturalChain
from girsanov.chain.transitions import Transitions
from girsanov.data.inputs import Inputs, Part
from girsanov.data.panel import Panel
from girsanov.data.series import TimeSeries
from girsanov.inference.sites import DataSites, DenseSites, Sites
from girsanov.model.diffusions import DIFFUSIONS
from girsanov.model.drifts import DRIFTS
from girsanov.model.driven import driven_on
from girsanov.model.likelihoods import LIKELIHOODS, Likelihood
from girsanov.model.model import GaussianState, Model
from girsanov.model.quadrature import Rule
from girsanov.result.directions import Direction
from girsanov.result.evidence import Evidence
from girsanov.result.fit import Fit, FitHistory
from girsanov.result.panel_files import unpack_panel
from girsanov.result.panel_posterior import PanelPosterior
from girsanov.result.posterior import History, Posterior
from girsanov.result.saving import FIT_COLUMNS, FORMAT, MAYBE, POPULATION, REFINED_ARRAYS

_ARRAYS = {
    "moments": Moments,
    "natural": NaturalChain,
    "target.base": Linearisation,
    "target.dense": DenseSites,
    "target.data": DataSites,
}
_OF_INPUTS = ("times", "values", "until")


def load(
    path: str | Path,
    *,
    drift: Callable[..., Any] | None = None,
    likelihood: Likelihood | Sequence[Likelihood] | None = None,
    emission: Callable[..., Any] | None = None,
    diffusion: Any = None,
    of_series: Callable[..., Any] | None = None,
) -> Any:
    """Read a file that `save` of a `Posterior`, a `PanelPosterior`, a `Refined` or a `Fit` wrote.

    Args:
        path: the file.
        drift: the drift, if it was one of your own: a file stores only the library's drifts.
        likelihood: the likelihood, if it was one of your own.
        emission: the emission, if it was a callable.
        diffusion: the noise, if it was `gv.diffusions.Scale` of a function of your own.
        of_series: the function of `Model.with_covariates`, for a fit or a panel of a model with covariates.

    Returns:
        The `Posterior`, `PanelPosterior`, `Refined` or `Fit`.

    Raises:
        ValueError: if there is no such file, if it is damaged or written by a later version, or if it needs a `drift`,
            `likelihood`, `emission`, `diffusion` or `of_series` that was not given.
    """
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
    given = {"drift": drift, "likelihood": likelihood, "emission": emission, "diffusion": diffusion}
    given["of_series"] = of_series
    if header["kind"] == "panel":
        return _load_panel(header, arrays, given, path)
    post = _unpack(header, arrays, given, path)
    if header["kind"] == "posterior":
        return post
    if header["kind"] == "refined":
        from girsanov.result.refined import Refined  # here, since all baselines come with it

        draws = {k: arrays[f"refined.{k}"] for k in REFINED_ARRAYS}
        return Refined(post.model, post.series, post.times, **draws, **header["refined"], guide=post)
    names = [k for k in arrays if k.startswith("fit.parameters.")]
    parameters = {k.removeprefix("fit.parameters."): arrays[k] for k in names}
    history = FitHistory(parameters, *(arrays[f"fit.{k}"] for k in FIT_COLUMNS))
    learnt = header["fit"]
    return Fit(
        _population(header, arrays, given, path) or post.model.driven_by(None),
        post,
        history,
        tuple(learnt["trainable"]),
        learnt["status"],
        learnt["message"],
        learnt["standard_errors"],
        arrays.get("fit.covariance"),
        step_error=learnt.get("step_error"),
        directions=tuple(Direction(*parts) for parts in learnt.get("directions", ())),
        evidence=None if learnt.get("evidence") is None else Evidence(**learnt["evidence"]),
    )


def _load_panel(header: dict[str, Any], arrays: dict[str, Any], given: dict[str, Any], path: Path) -> PanelPosterior:
    """Read the posteriors of a panel."""
    posts = unpack_panel(
        header,
        arrays,
        lambda own, parts: _model(own, parts, given, path),
        lambda own, parts, model: _unpack(own, parts, given, path, model),
    )
    panel = Panel({name: post.series for name, post in posts.items()})
    model = _population(header, arrays, given, path) or next(iter(posts.values())).model.driven_by(None)
    return PanelPosterior(model, panel, posts, seconds=header["seconds"])


def _unpack(
    header: dict[str, Any], arrays: dict[str, Any], given: dict[str, Any], path: Path, model: Model | None = None
) -> Posterior:
    model = _model(header, arrays, given, path) if model is None else model
    parts = {name: _part(name, kind, arrays) for name, kind in _ARRAYS.items()}
    if "target.base.before.A" in arrays:
        before = _part("target.base.before", Linearisation, arrays)
        parts["target.base"] = dataclasses.replace(parts["target.base"], before=before)
    steps = {k: arrays.get(f"{MAYBE}.{k}") for k in ("T", "root")}
    ends = {k: arrays.get(f"target.right.{k}") for k in ("potential", "precision")}
    right = None if ends["potential"] is None else DenseSites(**ends)
    history = History(
        *(arrays[f"history.{k}"] for k in ("elbo", "step", "decrement")),
        passes=header["passes"],
        coarse=tuple(tuple(c) for c in header["coarse"]),
        node_passes=header.get("node_passes"),
    )
    dates = header.get("dates", {"unit": None, "origin": None})
    origin = None if dates["origin"] is None else np.datetime64(dates["origin"], "ns")
    values, errors = arrays["series.values"], arrays.get("series.errors")
    inputs, covariates = _inputs(header.get("inputs"), arrays), header.get("covariates")
    series = TimeSeries.counted(arrays["series.times"], values, dates["unit"], origin, errors, covariates, inputs)
    return Posterior(
        model=driven_on(model, series, arrays["times"]),
        series=series,
        times=arrays["times"],
        node=arrays["node"],
        moments=parts["moments"],
        natural=parts["natural"],
        target=Sites(parts["target.base"], parts["target.dense"], parts["target.data"], right),
        elbo=header["elbo"],
        history=history,
        status=header["status"],
        message=header["message"],
        seconds=header["seconds"],
        time=header["time"],
        rule=Rule(arrays["rule.nodes"], arrays["rule.weights"]) if "rule.nodes" in arrays else None,
        quadrature_error=header.get("quadrature_error"),
        exact_transitions=None if steps["T"] is None else Transitions(**steps),
    )


def _part(name: str, kind: Any, arrays: dict[str, Any]) -> Any:
    """Return a part of the posterior from its arrays."""
    fields = [f.name for f in dataclasses.fields(kind) if f.name != "before"]
    return kind(**{field: arrays[f"{name}.{field}"] for field in fields})


def _inputs(described: dict[str, Any] | None, arrays: dict[str, Any]) -> Inputs | None:
    """Return the inputs of the series."""
    if described is None:
        return None
    read = [{k: arrays[f"series.inputs.{i}.{k}"] for k in _OF_INPUTS} for i in range(len(described["kinds"]))]
    parts = [
        Part(kind, own["times"], own["values"], float(own["until"]))
        for kind, own in zip(described["kinds"], read, strict=True)
    ]
    return Inputs.of_parts(parts, described["names"])


def _population(header: dict[str, Any], arrays: dict[str, Any], given: dict[str, Any], path: Path) -> Model | None:
    """Return the model whose parameters depend on covariates, or None where there is none."""
    about = header.get("population")
    if about is None:
        return None
    if given["of_series"] is None:
        raise ValueError(
            f"{path} was made with a model of covariates by a function of your own, {about['of_series']}, which the "
            "file does not contain; give it again: gv.load(path, of_series=...)"
        )
    own = {k.removeprefix(POPULATION): v for k, v in arrays.items() if k.startswith(POPULATION)}
    values = {k.removeprefix("covariates."): v for k, v in own.items() if k.startswith("covariates.")}
    return _model(about, own, given, path).with_covariates(given["of_series"], **values)


def _model(header: dict[str, Any], arrays: dict[str, Any], given: dict[str, Any], path: Path) -> Model:
    if header.get("equations") is not None:
        return Model.from_equations(json.loads(header["equations"]["source"]), **header["equations"]["values"])
    emission = arrays.get("model.emission")
    if header.get("emission") is not None:
        emission = _restored("emission", header, (), arrays, given["emission"], path)
    noise = arrays.get("model.diffusion")
    if header.get("diffusion") is not None:
        noise = _restored("diffusion", header, DIFFUSIONS, arrays, given["diffusion"], path)
    return Model(
        drift=_restored("drift", header, DRIFTS, arrays, given["drift"], path),
        diffusion=noise,
        initial="stationary" if header["stationary"] else GaussianState(arrays["initial.mean"], arrays["initial.cov"]),
        likelihood=_restored("likelihood", header, LIKELIHOODS, arrays, given["likelihood"], path),
        emission=emission,
        offset=arrays.get("model.offset"),
        dim=header.get("dim"),
        state_names=header.get("state_names"),
        output_names=header.get("output_names"),
    )


def _restore(name: str, description: dict[str, Any], known: tuple[type, ...], arrays: dict[str, Any]) -> Any:
    kinds = {kind.__name__: kind for kind in known}
    if "parts" in description:
        parts = description["parts"]
        whole: Any = kinds[description["class"]]
        made = tuple(_restore(f"{name}.parts.{i}", p, known, arrays) for i, p in enumerate(parts))
        return whole(made, **_correlation(description))
    kind = kinds[description["class"]]
    values = {k: arrays[f"{name}.{k}"] for k in description["arrays"]} | description["settings"]
    values |= {k: _restore(f"{name}.{k}", p, known, arrays) for k, p in description.get("inside", {}).items()}
    values |= _correlation(description)
    if "layers" in description:
        part = object.__new__(kind)
        count = range(description["layers"])
        layers = tuple((arrays[f"{name}.layers.{i}.W"], arrays[f"{name}.layers.{i}.b"]) for i in count)
        for key, value in {**values, "layers": layers}.items():
            object.__setattr__(part, key, value)
        return part
    return kind(**values)


def _correlation(description: dict[str, Any]) -> dict[str, Any]:
    """Return the correlations of a noise as an argument, if the description has any."""
    value = description.get("correlation")
    return {} if value is None else {"correlation": value}


def _restored(name: str, header: dict[str, Any], known: tuple[type, ...], arrays: dict, given: Any, path: Path) -> Any:
    """Return the drift, noise, likelihood or emission as given, or else as stored in the file."""
    if given is not None:
        return given
    if header[name]["class"] is None:
        raise ValueError(
            f"{path} was made with a {name} of your own, {header[name]['repr']}, which the file does not contain; "
            f"give it again: gv.load(path, {name}=...)"
        )
    return _restore(name, header[name], known, arrays)
