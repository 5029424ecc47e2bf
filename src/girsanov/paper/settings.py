"""Settings of the paper's experiments, which are files in `configs`, and changes to them."""

import copy
import functools
import tomllib
from importlib import resources
from typing import Any

PROCESSES = ("ou", "benes", "double_well", "sine", "sqrt", "van_der_pol")
REAL = ("finance", "gps")


@functools.cache
def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files("girsanov.paper").joinpath(f"configs/{name}.toml").read_text("utf-8"))


def experiment(name: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the settings of one experiment, with changes by dotted path, such as {"simulation.noise": 0.05}."""
    if name not in (*PROCESSES, *REAL):
        raise ValueError(f"unknown experiment {name!r}; choose one of {', '.join((*PROCESSES, *REAL))}")
    out = copy.deepcopy(_read(name))
    for path, value in (changes or {}).items():
        _set(out, name, path, value)
    return out


def printed(table: str) -> dict[str, dict[str, list[float]]]:
    """Return the numbers that the paper prints in one table: row → column → [mean, sd]."""
    return _read("printed")[table]


def parse_changes(texts: list[str], names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Parse changes of settings such as `double_well.inference.rho=0.2`; return them by experiment and path.

    Values are read as TOML; what is not TOML is text. `names` are the experiments that may be changed.
    """
    out: dict[str, dict[str, Any]] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        name, dot, rest = path.strip().partition(".")
        if not (equals and dot and rest):
            raise ValueError(
                f"--set must be experiment.path=value, such as double_well.inference.rho=0.2; got {text!r}"
            )
        if name not in names:
            raise ValueError(f"--set {text!r}: unknown experiment {name!r}; choose one of {', '.join(names)}")
        try:
            out.setdefault(name, {})[rest] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            out.setdefault(name, {})[rest] = value
        experiment(name, out[name])  # raises a ValueError if the path does not exist
    return out


def _set(settings: dict[str, Any], name: str, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    here: Any = settings
    for part in parents:
        here = here.get(part) if isinstance(here, dict) else None
    if not isinstance(here, dict) or last not in here:
        known = ", ".join(_paths(settings))
        raise ValueError(f"{name} has no setting {path!r}; it has {known}")
    if isinstance(here[last], dict) != isinstance(value, dict):
        raise ValueError(
            f"{name}.{path} is {here[last]!r}; {value!r} cannot replace it, because only one of the two is a table of "
            "settings"
        )
    here[last] = value


def _paths(settings: dict[str, Any], before: str = "") -> list[str]:
    out = []
    for key, value in settings.items():
        out += _paths(value, f"{before}{key}.") if isinstance(value, dict) and value else [before + key]
    return out
