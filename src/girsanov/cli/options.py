"""Options that several commands have, in groups."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

_MODEL, _DATA, _RUN = "Model by options, instead of a file", "Columns of the data", "Run"


def _model(help: str, **more: Any) -> Any:
    return typer.Option(help=help, rich_help_panel=_MODEL, show_default=False, **more)


def _data(help: str, **more: Any) -> Any:
    return typer.Option(help=help, rich_help_panel=_DATA, show_default=False, **more)


def run_option(help: str, *names: str, **more: Any) -> Any:
    """Return an option in the group of those of a run; a flag has its name given, so that there is no --no-name."""
    return typer.Option(*names, help=help, rich_help_panel=_RUN, **{"show_default": False, **more})


Files = Annotated[
    list[Path],
    typer.Argument(metavar="[MODEL] DATA", help="Model (.toml, .gv, run folder), then data."),
]


@dataclasses.dataclass
class ModelOptions:
    """The model, where no file states it."""

    drift: Annotated[str | None, _model("Drift: double_well, …, or my.py:f", metavar="NAME")] = None
    param: Annotated[list[str] | None, _model("Parameter of the drift; repeatable", metavar="NAME=VALUE")] = None
    diffusion: Annotated[str, _model("Spectral density Q: 1, 1,2 or 1,0;0,1", metavar="NUMBERS")] = "1"
    noise: Annotated[str | None, _model("Variance of Gaussian noise of the data", metavar="NUMBERS")] = None
    likelihood: Annotated[str | None, _model("Instead: poisson, student_t:scale=1,df=4, …", metavar="NAME")] = None
    initial_mean: Annotated[str, _model("Mean of the first state", metavar="NUMBERS")] = "0"
    initial_cov: Annotated[str, _model("Covariance of the first state", metavar="NUMBERS")] = "1"
    emission: Annotated[str | None, _model("Matrix H of what is observed, 1,0;0,1", metavar="MATRIX")] = None


@dataclasses.dataclass
class DataOptions:
    """Where the data are in their file."""

    time: Annotated[str | None, _data("Column of the times; t, time, date, … if not given", metavar="NAME")] = None
    values: Annotated[list[str] | None, _data("Column of values; repeatable", metavar="NAME")] = None
    errors: Annotated[list[str] | None, _data("Column of their standard deviations", metavar="NAME")] = None
    inputs: Annotated[list[str] | None, _data("Column of inputs; NAME:previous, NAME:impulse", metavar="NAME")] = None
    id: Annotated[str | None, _data("Column of names, for many series in one file", metavar="NAME")] = None
    unit: Annotated[str | None, _data("Of dates: s, min, h, D, W, month, year, …", metavar="UNIT")] = None
    decimal: Annotated[str | None, _data("Decimal sign", metavar=". or ,", hidden=True)] = None
    date_order: Annotated[str | None, _data("Order in dates", metavar="DMY or MDY", hidden=True)] = None


Step = Annotated[float | None, run_option("Step of the grid; else found and checked", metavar="NUMBER")]
Span = Annotated[tuple[str, str] | None, run_option("Times or dates; else first and last row", metavar="BEGIN END")]
Seed = Annotated[int, run_option("Seed of all random numbers", metavar="NUMBER")]
Out = Annotated[Path, run_option("Folder for the results; out/COMMAND", metavar="FOLDER")]


@dataclasses.dataclass
class SayOptions:
    """What is printed."""

    quiet: Annotated[bool, run_option("Print errors and warnings only", "--quiet")] = False
    json: Annotated[bool, run_option("Print result.json instead of tables", "--json")] = False


def key(seed: int) -> Any:
    """Return the JAX random key of a seed."""
    import jax

    return jax.random.key(seed)


def random_times(rng: np.random.Generator, span: tuple[float, float], n: int) -> np.ndarray:
    """Draw n times in a span, uniformly, in increasing order."""
    return np.sort(rng.uniform(*span, n))


def numbers(option: str, text: str) -> Any:
    """Parse the text of an option: 4 is a number, 1,2 is a list and 1,2;3,4 is a matrix."""
    try:
        rows = [[float(v) for v in row.split(",")] for row in text.split(";")]
        return np.array(rows) if ";" in text else np.array(rows[0]) if "," in text else rows[0][0]
    except ValueError:
        raise ValueError(f"{option} {text!r} is not a number, a list 1,2 or a matrix 1,2;3,4") from None


def pair(option: str, text: str) -> tuple[str, str]:
    """Return the name and the value of an option of the form name=value."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise ValueError(f"{option} {text!r} is not of the form name=value")
    return name.strip(), value.strip()
