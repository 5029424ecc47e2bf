"""Options that several commands have, and the model and the series that they define."""

import csv
import inspect
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

if TYPE_CHECKING:
    import girsanov as gv

_NUMBERS = "a number, a list 1,2 or a matrix 1,2;3,4"
File = Annotated[
    Path,
    typer.Argument(help="CSV file with a header; or a TOML file of equations, before it.", exists=True, dir_okay=False),
]
Data = Annotated[
    Path | None, typer.Argument(help="CSV file, if the first is a file of equations.", exists=True, dir_okay=False)
]
Drift = Annotated[
    str | None,
    typer.Option(help="Name of the drift f in snake case, such as double_well; or a file of equations is given."),
]
Param = Annotated[list[str] | None, typer.Option(help="Parameter of the drift, name=value; may be repeated.")]
Diffusion = Annotated[str, typer.Option(help=f"Spectral density Q of the diffusion: {_NUMBERS}.")]
Noise = Annotated[str | None, typer.Option(help=f"Variance of the Gaussian observation noise: {_NUMBERS}.")]
InitialMean = Annotated[str, typer.Option(help="Mean of the state at the start of the span: a number or a list.")]
InitialCov = Annotated[str, typer.Option(help=f"Covariance of the state at the start of the span: {_NUMBERS}.")]
Emission = Annotated[
    str | None, typer.Option(help="Matrix H, if H x is observed instead of x; rows are separated by ;, as in 1,0;0,1.")
]
Step = Annotated[float, typer.Option(help="Step of the time grid; the observation times are added to it.")]
TimeColumn = Annotated[str, typer.Option(help="Name of the column with the times.")]
ValueColumns = Annotated[
    list[str] | None,
    typer.Option(help="Name of a column with values; may be repeated. By default all columns but the time."),
]
Unit = Annotated[
    str | None,
    typer.Option(help="Unit of time if the times are dates (ISO 8601): us, ms, s, min, h, D or W."),
]
Span = Annotated[
    tuple[float, float] | None,
    typer.Option(help="Time of the initial state and end of the horizon. By default the first and last observation."),
]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.")]
Out = Annotated[Path, typer.Option(help="Folder for the results; it is made if it does not exist.", file_okay=False)]


def key(seed: int) -> Any:
    """Return the JAX random key of a seed."""
    import jax

    return jax.random.key(seed)


def random_times(rng: np.random.Generator, span: tuple[float, float], n: int) -> np.ndarray:
    """Draw n times in a span, uniformly, in increasing order."""
    return np.sort(rng.uniform(*span, n))


def drift_kinds() -> dict[str, type]:
    """Return the library's drifts by their names in snake case, without networks, whose weights no option can give."""
    from girsanov.model.drifts import DRIFTS, Sum

    kinds = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in DRIFTS if kind is not Sum}
    return {name: kind for name, kind in kinds.items() if "key" not in inspect.signature(kind).parameters}


def _numbers(option: str, text: str) -> Any:
    """Parse the text of an option: 4 is a number, 1,2 is a list and 1,2;3,4 is a matrix."""
    try:
        rows = [[float(v) for v in row.split(",")] for row in text.split(";")]
        return np.array(rows) if ";" in text else np.array(rows[0]) if "," in text else rows[0][0]
    except ValueError:
        raise ValueError(f"{option} {text!r} is not {_NUMBERS}") from None


def _drift(name: str, params: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Return the drift of this name, and its parameters as a dictionary."""
    kinds = drift_kinds()
    if name not in kinds:
        raise ValueError(f"unknown drift {name!r}; choose one of {', '.join(kinds)}")
    known = inspect.signature(kinds[name]).parameters
    values: dict[str, Any] = {}
    for text in params:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--param {text!r} is not of the form name=value")
        if key not in known:
            raise ValueError(f"drift {name} has no parameter {key!r}; its parameters are {', '.join(known)}")
        values[key] = _numbers(f"--param {key}", value)
    missing = [k for k, p in known.items() if p.default is p.empty and k not in values]
    if missing:
        raise ValueError(f"drift {name} needs a value for {missing[0]!r}: give --param {missing[0]}=…")
    return kinds[name](**values), values


def files_of(first: Path, second: Path | None) -> tuple[Path | None, Path]:
    """Return the file of equations, or None, and the file of data."""
    equations = first.suffix.lower() == ".toml"
    if second is None and equations:
        raise ValueError(f"{first} is a file of equations: give the CSV file with the data after it")
    if second is not None and not equations:
        raise ValueError(f"of two files the first is one of equations, whose name ends in .toml, got {first}")
    return (None, first) if second is None else (first, second)


def series_of(
    file: Path, time: str, values: list[str] | None, unit: str | None, outputs: Sequence[str] = ()
) -> tuple["gv.TimeSeries", dict[str, Any]]:
    """Return the series in a file, and the options as result.json stores them.

    The values are by default the columns with the names of the `outputs` of a model, and all of them must be there:
    another column is never taken for an output.
    """
    import girsanov as gv

    if not values and outputs:
        header, values = _header(file), list(outputs)
        missing = [name for name in outputs if name not in header]
        if missing:
            raise ValueError(
                f"{file} has no column {missing[0]!r}, which the equations call an output; it has {', '.join(header)}. "
                f"Name the columns of {', '.join(outputs)} in this order: --values NAME for each"
            )
    series = gv.TimeSeries.from_csv(file, time=time, values=values or None, unit=unit)
    return series, {"time": time, "values": values, "unit": unit}


def _header(file: Path) -> list[str]:
    with file.open(newline="", encoding="utf-8-sig") as lines:
        return [name.strip() for name in next(csv.reader(lines), [])]


def model_in(
    file: Path | None,
    drift: str | None,
    param: list[str] | None,
    diffusion: str,
    noise: str | None,
    mean: str,
    cov: str,
    emission: str | None,
) -> tuple["gv.Model", dict[str, Any]]:
    """Return the model of a file of equations or else of the options, and what result.json stores of it."""
    import girsanov as gv

    if file is None:
        if drift is None or noise is None:
            missing = "--drift" if drift is None else "--noise"
            raise ValueError(f"{missing} is missing: state the model by options, or give a file of equations first")
        return model_of(drift, param, diffusion, noise, mean, cov, emission)
    given = {"--drift": drift, "--param": param, "--noise": noise, "--emission": emission}
    given |= {"--diffusion": diffusion != "1", "--initial-mean": mean != "0", "--initial-cov": cov != "1"}
    for option, value in given.items():
        if value:
            raise ValueError(f"{option} and the equations in {file} both state the model: leave {option} out")
    model = gv.Model.from_equations(file)
    return model, {"equations": json.loads(model.equations.source)}


def model_of(
    drift: str, param: list[str] | None, diffusion: str, noise: str, mean: str, cov: str, emission: str | None
) -> tuple["gv.Model", dict[str, Any]]:
    """Return the model that the options define, and the options as result.json stores them."""
    import girsanov as gv

    f, params = _drift(drift, param or [])
    texts = {"diffusion": diffusion, "noise": noise, "initial-mean": mean, "initial-cov": cov}
    value = {k.replace("-", "_"): _numbers(f"--{k}", v) for k, v in texts.items()}
    H = None if emission is None else np.atleast_2d(_numbers("--emission", emission))
    model = gv.Model(
        drift=f,
        diffusion=value["diffusion"],
        initial=gv.GaussianState(mean=value["initial_mean"], cov=value["initial_cov"]),
        likelihood=gv.likelihoods.Gaussian(variance=value["noise"]),
        emission=H,
    )
    return model, {"drift": drift, "params": params, **value, "emission": H}
