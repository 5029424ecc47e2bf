"""What a description of a model by equations says: states, outputs, inputs, parameters, definitions, checked, in order.

The description is a mapping, or a TOML file with the same names. It is kept as text, so that it can be part of a
compiled program, and is read only once.
"""

import functools
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from girsanov._core.checks import is_finite
from girsanov.data.inputs import KINDS
from girsanov.model.equations.definitions import checked, read_definitions, substituted
from girsanov.model.equations.expression import (
    FUNCTIONS,
    NUMBERS,
    EquationError,
    Expression,
    check_names,
    hint,
    measure,
    number,
    parse,
)
from girsanov.model.equations.priors import Prior, parse_prior

# The settings of every kind of observation: those that must be given, and those that may be.
DISTRIBUTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gaussian": (("sd",), ()),
    "student_t": (("scale",), ("df",)),
    "censored": (("sd",), ("low", "high")),
    "poisson": ((), ("exposure",)),
    "negative_binomial": (("dispersion",), ()),
    "binomial": (("trials",), ()),
    "bernoulli": ((), ()),
    "gamma": (("shape",), ()),
    "lognormal": (("sd",), ()),
    "stochastic_volatility": ((), ()),
}
FIXED_SETTINGS = ("low", "high", "trials")  # numbers, not expressions
RESERVED = ("drift", "diffusion", "initial", "likelihood", "emission", "offset", "t")
_STATE = ("drift", "noise", "start", "start_sd", "range", "unit")
_OUTPUT = ("measures", "distribution", "unit")
_PARAMETER = ("start", "low", "high", "fixed", "prior", "unit", "meaning")
_INPUT = ("kind", "unit", "meaning")
_TABLES = ("states", "outputs", "inputs", "parameters", "definitions")


class State(NamedTuple):
    """A state: its drift, its noise per root of time, its start, and the range of its values for the noise."""

    name: str
    drift: Expression
    noise: Expression
    start: Expression
    start_sd: Expression
    range: tuple[float, float] | None
    unit: str | None


class Output(NamedTuple):
    """An output: what it measures, and the distribution of what is observed, with its settings."""

    name: str
    measures: Expression
    distribution: str | None
    settings: dict[str, Expression | float]
    unit: str | None


class Given(NamedTuple):
    """A parameter: its starting value, its range, its prior, and whether it is fixed."""

    name: str
    start: float
    low: float
    high: float
    fixed: bool
    prior: Prior | None
    unit: str | None
    meaning: str | None

    @property
    def kind(self) -> str | tuple[float, float]:
        """The constraint of learning."""
        if self.low == 0.0 and self.high == float("inf"):
            return "positive"
        return "real" if self.low == -float("inf") else (self.low, self.high)


class Input(NamedTuple):
    """An input, and the kind as which a column of that name is read; see `gv.Inputs`."""

    name: str
    kind: str
    unit: str | None
    meaning: str | None


class Statement(NamedTuple):
    """A model as its equations state it. Definitions are already put in their places."""

    states: tuple[State, ...]
    outputs: tuple[Output, ...]
    parameters: tuple[Given, ...]
    definitions: dict[str, Expression]
    texts: dict[str, str]  # what was written, by place, for tables and pages
    inputs: tuple[Input, ...] = ()

    @property
    def free(self) -> tuple[str, ...]:
        """The names of the parameters that are not fixed."""
        return tuple(p.name for p in self.parameters if not p.fixed)


def read_source(source: Any) -> str:
    """Return the description as JSON text: of a mapping, of TOML text, or of a TOML file.

    Args:
        source: a mapping; a path; or TOML text, which has several lines.
    """
    if isinstance(source, Mapping):
        described: Any = source
    elif isinstance(source, str | Path):
        described = _toml(source)
    else:
        raise ValueError(f"equations must be a mapping, the path of a TOML file, or its text, got {source!r}")
    try:
        return json.dumps(_plain(described, "the description"), allow_nan=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"equations must consist of names, texts and numbers: {error}") from None


def _toml(source: str | Path) -> Any:
    where = "the text"
    if isinstance(source, Path) or "\n" not in source:
        path = Path(source)
        if not path.is_file():
            raise ValueError(f"there is no file {path}; give the path of a TOML file, or equations as a mapping")
        where, source = str(path), path.read_text(encoding="utf-8")
    try:
        return tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise EquationError(f"{where} is not valid TOML: {error}") from None
    except RecursionError:
        raise EquationError(f"{where} is not valid TOML: too many brackets are open at once") from None


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    if depth > 8:
        raise ValueError(f"{where} has too many levels")
    if isinstance(value, Mapping):
        return {str(k): _plain(v, f"{where}.{k}", depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, where, depth + 1) for v in value]
    if isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    raise ValueError(f"{where} is {value!r}")


@functools.lru_cache(maxsize=64)
def read_statement(source: str) -> Statement:
    """Return the statement of a description that `read_source` returned; raise an EquationError if it is not valid."""
    described = json.loads(source)
    _check_keys(described, _TABLES, "the description")
    tables = {k: _table(described.get(k, {}), k) for k in _TABLES}
    if not tables["states"]:
        raise EquationError('the description has no state: give e.g. states = {"x": {"drift": "-x", "noise": 1}}')
    texts: dict[str, str] = {}
    parameters = tuple(_parameter(name, value) for name, value in tables["parameters"].items())
    inputs = tuple(_input(name, value) for name, value in tables["inputs"].items())
    _check_distinct(tables)
    given = {p.name for p in parameters}
    definitions = read_definitions(tables["definitions"], {*tables["states"], *tables["inputs"], *given, "t"}, texts)
    reader = _Reader(given, set(tables["states"]), set(tables["inputs"]), definitions, texts)
    states = tuple(_state(name, value, reader) for name, value in tables["states"].items())
    outputs = tables["outputs"] or {"y": {"measures": states[0].name}} if len(states) == 1 else tables["outputs"]
    if not outputs:
        raise EquationError(
            "the description has several states and no output: say what is measured, e.g. outputs = "
            f'{{"y": {{"measures": "{states[0].name}", "distribution": "gaussian", "sd": 0.1}}}}'
        )
    found = tuple(_output(name, value, reader) for name, value in outputs.items())
    _check_used("parameters", [p.name for p in parameters], reader.used)
    _check_used("inputs", list(tables["inputs"]), reader.used)
    return Statement(states, found, parameters, definitions, texts, inputs)


def _table(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise EquationError(f"{name} must be a table of names, got {value!r}")
    for key in value:
        if not (key.isidentifier() and key.isascii()):
            raise EquationError(f"{name}.{key}: a name consists of letters, digits and _, and begins with a letter")
        if key in FUNCTIONS or key in NUMBERS or key in RESERVED:
            raise EquationError(f"{name}.{key}: this name has a meaning of its own; choose another one")
    return value


def _check_distinct(tables: dict[str, dict]) -> None:
    """Raise an EquationError if a name is used twice; an output may have the name of the state that it measures."""
    seen: dict[str, str] = {}
    for kind in ("states", "inputs", "parameters", "definitions"):
        for name in tables[kind]:
            if name in seen:
                raise EquationError(f"{kind}.{name}: {seen[name]} has this name already")
            seen[name] = f"one of the {kind}"


def _check_keys(value: Any, known: tuple[str, ...], where: str) -> None:
    if not isinstance(value, dict):
        raise EquationError(f"{where} must be a table with {', '.join(known)}, got {value!r}")
    for key in value:
        if key not in known:
            raise EquationError(f"{where} has no setting {key!r}{hint(key, known)}; there are {', '.join(known)}")


def _parameter(name: str, value: Any) -> Given:
    where = f"parameters.{name}"
    value = value if isinstance(value, dict) else {"start": value}
    _check_keys(value, _PARAMETER, where)
    if "start" not in value:
        raise EquationError(f"{where} has no start: give a number, e.g. {name} = {{start = 1.0}}")
    start, low, high = (
        _number(value.get(k, default), f"{where}.{k}")
        for k, default in (("start", None), ("low", -float("inf")), ("high", float("inf")))
    )
    if not low < high or not low <= start <= high:
        raise EquationError(f"{where}: low < high is needed and start between them, got {low}, {start}, {high}")
    endless = low == -float("inf") or high == float("inf")
    if endless and (low, high) not in ((0.0, float("inf")), (-float("inf"), float("inf"))):
        raise EquationError(f"{where}: a range has two ends, or low = 0 alone for a positive parameter")
    fixed = value.get("fixed", False)
    if not isinstance(fixed, bool):
        raise EquationError(f"{where}.fixed must be true or false, got {fixed!r}")
    if not fixed and not low < start < high:
        raise EquationError(f"{where}: start = {start} lies at an end of the range, and learning starts inside it")
    prior = parse_prior(value["prior"], f"{where}.prior") if "prior" in value else None
    return Given(name, start, low, high, fixed, prior, _text(value, "unit", where), _text(value, "meaning", where))


def _input(name: str, value: Any) -> Input:
    where = f"inputs.{name}"
    value = value if isinstance(value, dict) else {"kind": value}
    _check_keys(value, _INPUT, where)
    kind = value.get("kind", KINDS[0])
    if kind not in KINDS:
        raise EquationError(f"{where}.kind must be one of {', '.join(KINDS)}, got {kind!r}")
    return Input(name, kind, _text(value, "unit", where), _text(value, "meaning", where))


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise EquationError(f"{where} must be a number, got {value!r}")
    if isinstance(value, int) and not is_finite(value):
        raise EquationError(f"{where} must fit into 64 bits, got {str(value)[:40]}…")
    return float(value)


def _text(value: dict, key: str, where: str) -> str | None:
    if not isinstance(value.get(key), str | None):
        raise EquationError(f"{where}.{key} must be text, got {value[key]!r}")
    return value.get(key)


class _Reader:
    """Reads the expressions of one description."""

    def __init__(
        self, parameters: set[str], states: set[str], inputs: set[str], definitions: dict[str, Expression], texts: dict
    ):
        self.parameters, self.states, self.inputs = parameters, states, inputs
        self.definitions, self.texts = definitions, texts
        self.sizes = {name: measure(d, {}) for name, d in definitions.items()}
        self.used: set[str] = set()

    def read(self, text: Any, where: str, constant: bool = False, drift: bool = False) -> Expression:
        """Return an expression with all definitions put in; a constant one has no state and no time.

        Inputs act in drifts only.
        """
        e, known = parse(text, where), self.parameters | set(self.definitions) | self.inputs
        if not constant:
            known |= self.states | {"t"}
        check_names(e, text, where, known)
        self.texts[where] = str(text)
        checked(e, self.sizes, where)
        e = substituted(e, self.definitions)
        if constant and e.names() & (self.states | {"t"}):
            moving = sorted(e.names() & (self.states | {"t"}))
            raise EquationError(f"{where} may depend on parameters only, and here it depends on {', '.join(moving)}")
        if not drift and e.names() & self.inputs:
            acting = ", ".join(sorted(e.names() & self.inputs))
            raise EquationError(f"{where} depends on the input {acting}: inputs may stand in the drifts of states only")
        self.used |= e.names()
        return e


def _state(name: str, value: Any, reader: _Reader) -> State:
    where = f"states.{name}"
    _check_keys(value, _STATE, where)
    if "drift" not in value:
        raise EquationError(f'{where} has no drift: give e.g. drift = "-{name}"')
    bounds = value.get("range")
    if bounds is not None:
        ends = [_number(v, f"{where}.range") for v in bounds] if isinstance(bounds, list) else []
        if len(ends) != 2 or not ends[0] < ends[1] or not all(is_finite(v) for v in ends):
            raise EquationError(f"{where}.range must be [low, high] with low < high, got {bounds!r}")
        bounds = (ends[0], ends[1])
    return State(
        name,
        reader.read(value["drift"], f"{where}.drift", drift=True),
        reader.read(value.get("noise", 0.0), f"{where}.noise"),
        reader.read(value.get("start", 0.0), f"{where}.start", constant=True),
        reader.read(value.get("start_sd", 1.0), f"{where}.start_sd", constant=True),
        bounds,
        _text(value, "unit", where),
    )


def _output(name: str, value: Any, reader: _Reader) -> Output:
    where = f"outputs.{name}"
    if not isinstance(value, dict) or "measures" not in value:
        raise EquationError(f'{where} must say what it measures, e.g. {name} = {{measures = "x"}}, got {value!r}')
    kind = value.get("distribution")
    if kind is not None and kind not in DISTRIBUTIONS:
        close = hint(str(kind), DISTRIBUTIONS)
        raise EquationError(f"{where}.distribution: unknown {kind!r}{close}; there are {', '.join(DISTRIBUTIONS)}")
    needed, possible = ((), ()) if kind is None else DISTRIBUTIONS[kind]
    _check_keys(value, (*_OUTPUT, *needed, *possible), where)
    for key in needed:
        if key not in value:
            raise EquationError(f"{where}: the distribution {kind!r} needs {key}, e.g. {key} = 0.1")
    settings: dict[str, Any] = {}
    for key in (*needed, *possible):
        if key in value and key in FIXED_SETTINGS:
            settings[key] = _number(value[key], f"{where}.{key}")
        elif key in value:
            settings[key] = reader.read(value[key], f"{where}.{key}", constant=True)
    measures = reader.read(value["measures"], f"{where}.measures")
    return Output(name, measures, kind, settings, _text(value, "unit", where))


def _check_used(table: str, names: list[str], used: set[str]) -> None:
    for name in names:
        if name not in used:
            raise EquationError(f"{table}.{name} is used nowhere: take it out, or look for a misspelt name")


def starts(statement: Statement) -> dict[str, float]:
    """Return the starting values of all parameters."""
    return {p.name: p.start for p in statement.parameters}


ZERO = number(0.0)
