"""The model that a command works with: from a file of equations, an earlier run, or options."""

import importlib.util
import inspect
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from girsanov.cli.options import ModelOptions, numbers, pair

if TYPE_CHECKING:
    import girsanov as gv

_RESULTS = ("fit.gv", "posterior.gv")  # of a run folder, the first that is there


class Stated(NamedTuple):
    """A model, what result.json stores of it, a name for titles, and the file that states it, if one does."""

    model: "gv.Model"
    settings: dict[str, Any]
    name: str
    file: Path | None


def is_model(path: Path) -> bool:
    """Return whether a path is a file of equations, a result, or the folder of a run."""
    return path.suffix.lower() in (".toml", ".gv") or path.is_dir()


def models_and_data(files: Sequence[Path]) -> tuple[list[Path], Path]:
    """Return the files of models, and that of data, which is the last; raise a ValueError if they are otherwise."""
    for path in files:
        if not path.exists():
            raise ValueError(f"there is no file {path}")
    *models, data = files
    if is_model(data):
        what = "a folder" if data.is_dir() else "a model"
        raise ValueError(f"{data} is {what}: give the file with the data after it, as in MODEL.toml DATA.csv")
    for path in models:
        if not is_model(path):
            raise ValueError(
                f"of several files the last has the data, and {path} before it is no model: a file of equations "
                "(.toml), a result (.gv) or the folder of a run"
            )
    return models, data


def stated_model(file: Path | None, options: ModelOptions) -> Stated:
    """Return the model of a file or of the options; only one of the two may state it."""
    import girsanov as gv

    if file is None:
        return _by_options(options)
    for option in _given(options):
        if file.suffix.lower() == ".toml" or option != "--drift":
            raise ValueError(f"{option} and the equations in {file} both state the model: leave {option} out")
    if file.suffix.lower() == ".toml":
        model = gv.Model.from_equations(file)
        return Stated(model, {"equations": json.loads(model.equations.source)}, file.name, file)
    result = load_result(file, options)
    model = result.model
    source = None if model.equations is None else json.loads(model.equations.source)
    return Stated(model, {"model": file.name, **({"equations": source} if source else {})}, file.name, file)


def _given(options: ModelOptions) -> dict[str, Any]:
    """Return the options that are not at their defaults, by their names."""
    plain = ModelOptions()
    found = {name: value for name, value in vars(options).items() if value and value != getattr(plain, name)}
    return {f"--{name.replace('_', '-')}": value for name, value in found.items()}


def load_result(path: Path, options: ModelOptions | None = None) -> Any:
    """Return the fit or the posterior in a file, or in the folder of a run."""
    import girsanov as gv

    if path.is_dir():
        there = [path / name for name in _RESULTS if (path / name).exists()]
        if not there or not (path / "result.json").exists():
            raise ValueError(f"{path} is not the folder of a finished run: it has no posterior.gv and result.json")
        path = there[0]
    drift = None if options is None or options.drift is None else _drift(options.drift, options.param or [])[0]
    return gv.load(path, **({} if drift is None else {"drift": drift}))


def drift_kinds() -> dict[str, type]:
    """Return the library's drifts by their names in snake case, without networks, whose weights no option can give."""
    from girsanov.model.drifts import DRIFTS, Sum

    kinds = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in DRIFTS if kind is not Sum}
    return {name: kind for name, kind in kinds.items() if "key" not in inspect.signature(kind).parameters}


def _by_options(o: ModelOptions) -> Stated:
    import girsanov as gv

    if o.drift is None or (o.noise is None and o.likelihood is None):
        missing = "--drift" if o.drift is None else "--noise"
        raise ValueError(
            f"{missing} is missing: give a file of equations before the data (girsanov init DATA writes one), or state "
            "the model by options"
        )
    if o.noise is not None and o.likelihood is not None:
        raise ValueError("--noise is the variance of Gaussian noise: leave it or --likelihood out")
    f, params = _drift(o.drift, o.param or [])
    texts = {"diffusion": o.diffusion, "initial-mean": o.initial_mean, "initial-cov": o.initial_cov}
    texts |= {} if o.noise is None else {"noise": o.noise}
    value = {k.replace("-", "_"): numbers(f"--{k}", v) for k, v in texts.items()}
    H = None if o.emission is None else np.atleast_2d(numbers("--emission", o.emission))
    likelihood = gv.likelihoods.Gaussian(value["noise"]) if o.likelihood is None else _likelihood(o.likelihood)
    initial = gv.GaussianState(mean=value["initial_mean"], cov=value["initial_cov"])
    model = gv.Model(f, value["diffusion"], initial, likelihood, H)
    settings = {"drift": o.drift, "params": params, **value, "emission": H}
    settings |= {} if o.likelihood is None else {"likelihood": o.likelihood}
    return Stated(model, settings, o.drift, None)


def _drift(name: str, params: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Return the drift of this name, or of a function in a file of Python, and its parameters as a dictionary."""
    path, colon, function = name.rpartition(":")
    given = {k: numbers(f"--param {k}", v) for k, v in (pair("--param", text) for text in params)}
    if colon and path.endswith(".py"):
        found = _from_file(Path(path), function)
        if not inspect.isclass(found):
            if given:
                raise ValueError(f"--param is for drifts that are classes, and {name} is a function: leave it out")
            return found, {}
        kind = found
    else:
        kinds = drift_kinds()
        if name not in kinds:
            raise ValueError(f"unknown drift {name!r}; choose one of {', '.join(kinds)}, or give your own as my.py:f")
        kind = kinds[name]
    known = inspect.signature(kind).parameters
    for key in given:
        if key not in known:
            raise ValueError(f"drift {name} has no parameter {key!r}; its parameters are {', '.join(known)}")
    missing = [k for k, p in known.items() if p.default is p.empty and k not in given]
    if missing:
        raise ValueError(f"drift {name} needs a value for {missing[0]!r}: give --param {missing[0]}=…")
    return kind(**given), given


def _from_file(path: Path, name: str) -> Any:
    """Return what a file of Python calls `name`; the file is run."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # code of the user, which may raise anything
        raise ValueError(f"--drift {path} could not be run: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise ValueError(f"--drift: {path} has no function {name!r}; write def {name}(x, t): … in it")
    return found


def _likelihood(text: str) -> Any:
    """Return a likelihood from its name and settings, as in student_t:scale=1,df=4; those of equations."""
    from girsanov.model.equations.parts import LIKELIHOODS
    from girsanov.model.equations.statement import DISTRIBUTIONS

    name, _, rest = text.partition(":")
    if name not in DISTRIBUTIONS:
        raise ValueError(f"unknown --likelihood {name!r}; choose one of {', '.join(DISTRIBUTIONS)}")
    needed, possible = DISTRIBUTIONS[name]
    given = dict(pair("--likelihood", part) for part in rest.split(",")) if rest else {}
    for key in given:
        if key not in (*needed, *possible):
            known = ", ".join((*needed, *possible)) or "none"
            raise ValueError(f"--likelihood {name} has no setting {key!r}; its settings: {known}")
    for key in needed:
        if key not in given:
            raise ValueError(f"--likelihood {name} needs {key}: give --likelihood {name}:{key}=…")
    return LIKELIHOODS[name](**{k: numbers(f"--likelihood {name}:{k}", v) for k, v in given.items()})
