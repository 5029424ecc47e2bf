"""What stands on the axes: names and units of states, outputs and parameters, and of time."""

from typing import Any

import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

_UNITS = {"us": "microseconds", "ms": "milliseconds", "s": "seconds", "min": "minutes", "h": "hours", "D": "days",
          "W": "weeks"}  # fmt: skip


def state_label(model: Any, i: int) -> str:
    """Return the name of a coordinate of the state, with its unit where the equations state one."""
    return _with_unit(_name(model.state_names, "x", i, model.dim), _stated(model, "states", i))


def output_label(model: Any, i: int) -> str:
    """Return the name of an output, with its unit where the equations state one."""
    return _with_unit(_name(model.output_names, "y", i, model.data_dim), _stated(model, "outputs", i))


def parameter_label(model: Any, path: str) -> str:
    """Return the name of a parameter, with its unit where the equations state one."""
    equations = getattr(model, "equations", None)
    units = {} if equations is None else {p.name: p.unit for p in equations.statement.parameters}
    return _with_unit(path, units.get(path))


def _name(names: Any, letter: str, i: int, count: int) -> str:
    return plain(names[i]) if names is not None else f"${letter}_{{{i + 1}}}$" if count > 1 else f"${letter}$"


def _with_unit(name: str, unit: str | None) -> str:
    return name if unit is None else f"{name} ({plain(unit)})"


def plain(text: str) -> str:
    """Return a text of the user's as matplotlib shows it literally: a dollar sign begins no formula."""
    return text.replace("$", r"\$")


def _stated(model: Any, part: str, i: int) -> str | None:
    equations = getattr(model, "equations", None)
    if equations is None:
        return None
    listed = getattr(equations.statement, part)
    return listed[i].unit if i < len(listed) else None


def axis_of(series: Any) -> Any:
    """Return the function from times of a series to places on an axis."""
    return np.asarray if series is None else series.axis


def label_time(ax: Any, series: Any) -> None:
    """Label the time axis: dates, or time with its unit where it is known."""
    if series is not None and series.origin is not None:
        locator = AutoDateLocator()
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        ax.set_xlabel("date")
        return
    unit = None if series is None else series.unit
    ax.set_xlabel("time $t$" if unit is None else f"time ({_UNITS.get(unit, unit)})")


def limits_of(likelihood: Any, output: int) -> tuple[float, float]:
    """Return the detection limits of an output, infinite where there are none."""
    parts = getattr(likelihood, "parts", None)
    part = likelihood if parts is None else parts[output]
    return float(getattr(part, "low", -np.inf)), float(getattr(part, "high", np.inf))


def counts(likelihood: Any, output: int) -> bool:
    """Whether the values of an output are whole numbers."""
    parts = getattr(likelihood, "parts", None)
    part = likelihood if parts is None else parts[output]
    return type(part).__name__ in ("Poisson", "NegativeBinomial", "Binomial", "Bernoulli", "Ordinal")


def shows_data_with_state(model: Any) -> bool:
    """Whether the data lie about the states themselves, so that both share their axes."""
    parts = getattr(model.likelihood, "parts", None) or (model.likelihood,)
    return bool(model.observation.is_direct) and all(part.about_z for part in parts)
