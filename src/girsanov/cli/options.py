"""What several commands take: a model and a series from options."""

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

if TYPE_CHECKING:
    import girsanov as gv

_NUMBERS = "a number, a list 1,2 or a matrix 1,2;3,4"
File = Annotated[Path, typer.Argument(help="CSV file with a header.", exists=True, dir_okay=False)]
Drift = Annotated[str, typer.Option(help="Name of the drift f, such as double_well.")]
Param = Annotated[list[str] | None, typer.Option(help="Parameter of the drift, name=value; may be repeated.")]
Diffusion = Annotated[str, typer.Option(help=f"Spectral density Q: {_NUMBERS}.")]
Noise = Annotated[str, typer.Option(help=f"Variance of the Gaussian observation noise: {_NUMBERS}.")]
InitialMean = Annotated[str, typer.Option(help="Mean of the state at the start of the span: a number or a list.")]
InitialCov = Annotated[str, typer.Option(help=f"Covariance of that state: {_NUMBERS}.")]
Emission = Annotated[str | None, typer.Option(help="Matrix H, where H x is observed and not x: rows 1,0;0,1.")]
Step = Annotated[float, typer.Option(help="Step of the time grid; the observation times are added to it.")]
TimeColumn = Annotated[str, typer.Option(help="Column of the times.")]
ValueColumns = Annotated[
    list[str] | None, typer.Option(help="Column of values; may be repeated. By default all but the time.")
]
Unit = Annotated[
    str | None, typer.Option(help="The times are dates (ISO 8601): count them in us, ms, s, min, h, D or W.")
]
Span = Annotated[
    tuple[float, float] | None,
    typer.Option(help="Time of the initial state and end of the horizon. By default first and last observation."),
]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.")]
Out = Annotated[Path, typer.Option(help="Folder for the results; made if missing.", file_okay=False)]


def key(seed: int) -> Any:
    import jax

    return jax.random.key(seed)


def random_times(rng: np.random.Generator, span: tuple[float, float], n: int) -> np.ndarray:
    return np.sort(rng.uniform(*span, n))


def drift_kinds() -> dict[str, type]:
    """The library's drifts by their names in snake case; a network's weights are no option of a command."""
    from girsanov.model.drifts import DRIFTS

    kinds = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in DRIFTS}
    return {name: kind for name, kind in kinds.items() if "key" not in inspect.signature(kind).parameters}


def _numbers(option: str, text: str) -> Any:
    """4 is a number, 1,2 a list and 1,2;3,4 a matrix."""
    try:
        rows = [[float(v) for v in row.split(",")] for row in text.split(";")]
        return np.array(rows) if ";" in text else np.array(rows[0]) if "," in text else rows[0][0]
    except ValueError:
        raise ValueError(f"{option} {text!r} is not {_NUMBERS}") from None


def _drift(name: str, params: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """The drift of this name, and its parameters as they were read."""
    kinds = drift_kinds()
    if name not in kinds:
        raise ValueError(f"unknown drift {name!r}; choose one of {', '.join(kinds)}")
    known = inspect.signature(kinds[name]).parameters
    values: dict[str, Any] = {}
    for text in params:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--param {text!r} is not name=value")
        if key not in known:
            raise ValueError(f"drift {name} has no parameter {key!r}; its parameters are {', '.join(known)}")
        values[key] = _numbers(f"--param {key}", value)
    missing = [k for k, p in known.items() if p.default is p.empty and k not in values]
    if missing:
        raise ValueError(f"drift {name} needs a value for {missing[0]!r}: give --param {missing[0]}=…")
    return kinds[name](**values), values


def series_of(
    file: Path, time: str, values: list[str] | None, unit: str | None
) -> tuple["gv.TimeSeries", dict[str, Any]]:
    """The series in a file, and the options for result.json."""
    import girsanov as gv

    series = gv.TimeSeries.from_csv(file, time=time, values=values or None, unit=unit)
    return series, {"time": time, "values": values, "unit": unit}


def model_of(
    drift: str, param: list[str] | None, diffusion: str, noise: str, mean: str, cov: str, emission: str | None
) -> tuple["gv.Model", dict[str, Any]]:
    """The model that the options state, and the options for result.json."""
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
