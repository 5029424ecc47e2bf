"""A first model for a data file: a state that returns to its mean for every column, with values that data suggest."""

import dataclasses
import keyword
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from girsanov.cli.options import DataOptions
from girsanov.cli.reading import Read, read_data

_UNITS = {"year": 360.0, "month": 27.0, "W": 6.9, "D": 0.9, "h": 0.9 / 24, "min": 0.9 / 1440, "s": 0.9 / 86400}  # days
_WIDE = 20.0  # positive numbers whose largest is so many times the least are modelled by their logarithm


class Made(NamedTuple):
    """A first model as TOML, the line on what was read, notes, and the options that other commands need."""

    text: str
    line: str
    notes: list[str]
    options: list[str]


def first_model(file: Path, o: DataOptions) -> Made:
    """Look at the columns of a file and state a model for them."""
    read, o, notes = _read(file, o)
    data = read.data
    members = [data] if hasattr(data, "times") else list(data.values())
    names = members[0].source.names if members[0].source is not None else []
    outputs = _identifiers(names)
    gap = float(np.median(np.concatenate([np.diff(s.times) for s in members if len(s) > 1] or [np.ones(1)])))
    columns = [np.concatenate([s.values[:, j] for s in members]) for j in range(len(names))]
    parts = [
        _column(name, output, y, gap, len(names) == 1, members[0].errors is not None)
        for name, output, y in zip(names, outputs, columns, strict=True)
    ]
    options = [f"--{k.replace('_', '-')} {v}" for k, v in vars(o).items() if isinstance(v, str)]
    options += [f"--errors {v}" for v in o.errors or []]
    if list(outputs) != list(names) or o.values:
        options += [f"--values {v!r}" if " " in v else f"--values {v}" for v in names]
    unit = f" in {o.unit}" if o.unit else ""
    head = [
        f"# A first model of {file.name}, made by girsanov init. Read it and change what does not fit.",
        "# Every state returns to a mean, moved by noise; docs/equations.md has what may stand here,",
        "# and `girsanov models` lists other models.",
        f"# Time is counted{unit} from the first row." if o.unit else "# Time is that of the file.",
        "",
    ]
    tables = [block for part in parts for block in (part["state"], part["output"])]
    text = "\n".join([*head, *tables, "[parameters]", *(line for part in parts for line in part["parameters"])]) + "\n"
    return Made(text, read.line, notes, options)


def _read(file: Path, o: DataOptions) -> tuple[Read, DataOptions, list[str]]:
    """Read a file, with a unit for its dates where none is given."""
    try:
        return read_data(file, o), o, []
    except ValueError as error:
        if o.unit is not None or "unit='D'" not in str(error):
            raise
    days = read_data(file, dataclasses.replace(o, unit="D"))
    members = [days.data] if hasattr(days.data, "times") else list(days.data.values())
    gap = float(np.median(np.concatenate([np.diff(s.times) for s in members if len(s) > 1] or [np.ones(1)])))
    unit = next((name for name, least in _UNITS.items() if gap >= least), "s")
    o = dataclasses.replace(o, unit=unit)
    return read_data(file, o), o, [f"the times are dates; they are counted in the unit {unit} (--unit chooses another)"]


def _identifiers(names: list[str]) -> list[str]:
    """Return names for the outputs: those of the columns where equations can have them."""
    from girsanov.model.equations.expression import FUNCTIONS, NUMBERS
    from girsanov.model.equations.statement import RESERVED

    found: list[str] = []
    for i, name in enumerate(names):
        text = re.sub(r"\W+", "_", name.encode("ascii", "ignore").decode()).strip("_")
        text = f"y_{text}" if text and text[0].isdigit() else text or f"y{i + 1}"
        taken = {*FUNCTIONS, *NUMBERS, *RESERVED, *found}
        found.append(f"{text}_" if text in taken or keyword.iskeyword(text) else text)
    return found


def _column(name: str, output: str, y: np.ndarray, gap: float, alone: bool, errors: bool) -> dict[str, Any]:
    """Return the state, the output and the parameters for one column."""
    seen = y[~np.isnan(y)]
    kind, level = _kind(seen)
    z = level(y)
    good = z[~np.isnan(z)]
    mean, sd = float(good.mean()), float(good.std()) or max(abs(float(good.mean())), 1.0) * 0.1
    end = "" if alone else f"_{output}"
    x, rho = f"x{end}", _memory(z)
    decay = -math.log(rho) / gap
    noise = sd * math.sqrt(2.0 * decay)
    about = {
        "poisson": "counts; the state is the logarithm of their mean",
        "bernoulli": "yes or no; the state is the log odds of yes",
        "lognormal": "positive and of many sizes; the state is the logarithm",
        "gaussian": "the state, with errors of measurement",
    }[kind]
    measures = {"poisson": f"exp({x})", "bernoulli": f"logistic({x})", "lognormal": f"exp({x})"}.get(kind, x)
    state = (
        f'[states.{x}]\ndrift = "-decay{end} * ({x} - mean{end})"  # the speed at which the state changes\n'
        f'noise = "s{end}"  # of its random part, per root of time; "s{end} * {x}" for noise in proportion\n'
        f"start = {_number(mean)}  # mean and standard deviation at the first time\nstart_sd = {_number(sd)}\n"
    )
    has_sd = kind in ("gaussian", "lognormal") and not (errors and kind == "gaussian")
    law = "" if errors and kind == "gaussian" else f'distribution = "{kind}"  # column {name!r}: {about}\n'
    out = f'[outputs.{output}]\nmeasures = "{measures}"\n{law}' + (f'sd = "tau{end}"\n' if has_sd else "")
    what = f" of {name}" if not alone else ""
    mark = what.replace('"', "'")
    lines = [
        f'mean{end} = {{start = {_number(mean)}, meaning = "long-run mean{mark}"}}',
        f'decay{end} = {{start = {_number(decay)}, low = 0, meaning = "rate of return to the mean{mark}"}}',
        f's{end} = {{start = {_number(noise)}, low = 0, meaning = "size of the noise{mark}"}}',
    ]
    if has_sd:
        lines.append(f'tau{end} = {{start = {_number(0.3 * sd)}, low = 0, meaning = "error of measurement{mark}"}}')
    return {"state": state, "output": out, "parameters": lines}


def _kind(seen: np.ndarray) -> tuple[str, Any]:
    """Return the distribution of a column, and what brings its values to the level of the state."""
    whole = bool((seen == np.round(seen)).all())
    if set(np.unique(seen)) == {0.0, 1.0}:
        return "bernoulli", lambda y: np.where(np.isnan(y), np.nan, np.where(y > 0.5, 1.5, -1.5))
    if whole and (seen >= 0.0).all() and seen.max() < 1000.0 and seen.max() > 0.0 and len(np.unique(seen)) > 1:
        return "poisson", lambda y: np.log(y + 0.5)
    if (seen > 0.0).all() and seen.max() > _WIDE * seen.min():
        return "lognormal", np.log
    return "gaussian", lambda y: y


def _memory(z: np.ndarray) -> float:
    """Return how alike neighbouring rows are: their correlation, within limits."""
    a, b = z[:-1], z[1:]
    both = ~np.isnan(a) & ~np.isnan(b)
    if both.sum() < 3 or np.ptp(a[both]) == 0.0 or np.ptp(b[both]) == 0.0:
        return 0.5
    return float(np.clip(np.corrcoef(a[both], b[both])[0, 1], 0.1, 0.95))


def _number(value: float) -> str:
    return f"{value:.3g}" if any(c in f"{value:.3g}" for c in ".en") else f"{value:.3g}.0"
