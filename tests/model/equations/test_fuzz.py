"""Files of equations from anywhere: nothing in them is executed, none hangs, and what is refused is refused by us."""

import os
import time

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings

from girsanov.model.equations import (
    EquationError,
    algebra,
    expression,
    priors,
    read_source,
    read_statement,
    statement,
)
from girsanov.model.equations.definitions import LARGEST

GOOD = """
[states.x]
drift = "pull - rate * x"
noise = "s * x"
start = "K / 2"

[states.v]
drift = "-v"
noise = 1

[outputs.y]
measures = "exp(x)"
distribution = "poisson"

[outputs.z]
measures = "v"
distribution = "gaussian"
sd = "tau"

[parameters]
rate = {start = 1.0, low = 0, prior = "lognormal(0, 1)"}
K = 2.0
s = {start = 0.2, low = 0, high = 3}
tau = {start = 0.1, low = 0, fixed = true}

[definitions]
pull = "square * K"
square = "v^2"
"""
SECONDS = 5.0  # far more than any of them needs, on a machine that has much else to do


@pytest.fixture
def nothing_runs(monkeypatch):
    """Whatever text would need to do harm fails the test when it is called."""

    def never(*_, **__):
        raise AssertionError("text of a model was executed")

    for module in (expression, statement, algebra, priors):
        for name in ("eval", "exec", "open", "getattr", "__import__"):
            monkeypatch.setattr(module, name, never, raising=False)  # before the builtin of that name
    monkeypatch.setattr(os, "system", never)


def outcome(text: object) -> str | None:
    """The message with which a description is refused, or None."""
    begun = time.perf_counter()
    try:
        read_statement(read_source(text))
        return None
    except ValueError as error:
        return str(error)
    finally:
        assert time.perf_counter() - begun < SECONDS


def drift(text: str, **definitions: str) -> dict:
    return {"states": {"x": {"drift": text, "noise": 1}}, "definitions": definitions}


REFUSED = {
    "import": drift("__import__('os').system('true')"),
    "import without text": drift("__import__(x)"),
    "attribute": drift("x.__class__"),
    "attribute of a function": drift("exp.__globals__"),
    "lambda": drift("(lambda: x)()"),
    "unknown name": drift("x * speed"),
    "cycle": drift("a", a="b + x", b="2 * a"),
    "a definition of itself": drift("a", a="a + 1"),
    "nested brackets": drift("(" * 1000 + "x" + ")" * 1000),
    "nested calls": drift("exp(" * 300 + "x" + ")" * 300),
    "powers of powers": drift("9^" * 200 + "9"),
    "a number without end": drift("9e999 * x"),
    "a chain of definitions": drift("d0", **{f"d{i}": f"-d{i + 1}" for i in range(1500)}, d1500="x"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_do_harm_is_refused_with_its_line_and_a_caret(name, nothing_runs):
    said = outcome(REFUSED[name])
    assert said is not None
    place, line, carets = said.splitlines()
    assert place.startswith(("states.x.drift: ", "definitions.")) and set(carets.strip()) == {"^"}
    assert len(carets.rstrip()) <= len(line.rstrip()) + 1


def test_definitions_that_multiply_are_refused():
    """Each uses the next one twice: the last has 2^30 operations, which no machine would finish."""
    laugh = {f"d{i}": f"d{i + 1} * d{i + 1}" for i in range(30)} | {"d30": "x + 1"}
    said = outcome(drift("d0", **laugh))
    assert said is not None and f"{LARGEST} and" in said
    long = " + ".join(["d0"] * 30)
    said = outcome(drift(long, **{f"d{i}": f"d{i + 1} * d{i + 1}" for i in range(6)}, d6="x"))
    assert said is not None and said.startswith("states.x.drift: with its definitions this has ")
    assert outcome(drift("d0 + d0", d0="d1 * d1", d1="x + 1")) is None


def test_a_file_without_a_state_says_so():
    for text in ("[parameters]\na = 1\n", "[states]\n\n", "[states.x]\nnoise = 1\n"):
        said = outcome(text)
        assert said is not None and ("no state" in said or "states.x has no drift" in said)


PIECES = st.sampled_from(
    [
        "__import__('os')", "x.y", "lambda: 1", "(" * 60, ")" * 60, "eval(x)", "x if x else x", "[x for x in x]",
        "9^9^9^9^9", "1e400", "-" * 70, "where(x, x, x)", "min(x)", "\\\\u0000", "#", '"', "'''", "{", "}", "[[", "]]",
        "\n", "nan", "inf", "true", "1979-05-27", "x = {x = {x = 1}}", "pull", "square", "t", "exp", "low = 1", ".",
        ",", "=", "x := 1",
    ]
)  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, len(GOOD)), st.integers(0, 12), PIECES | st.text(max_size=8)), max_size=4))
def test_a_file_that_was_damaged_is_read_or_refused(changes):
    text = GOOD
    for place, gone, piece in changes:
        text = text[:place] + piece + text[place + gone :]
    outcome(text + "\n")


NAMES = st.sampled_from(["x", "y", "a", "b", "t", "pi", "exp", "drift", "x y", "", "é", "_", "__class__"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | PIECES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
TABLES = st.dictionaries(
    st.sampled_from(["states", "outputs", "parameters", "definitions", "state"]),
    st.dictionaries(NAMES, VALUES | st.fixed_dictionaries({"drift": VALUES, "noise": VALUES}), max_size=3) | VALUES,
    max_size=4,
)


@settings(max_examples=200, deadline=None)
@given(TABLES)
@example({"states": {"x": {"drift": "x", "noise": 10**400}}})
@example({"states": {"x": {"drift": 10**400}}})
@example({"states": {"x": {"drift": "a"}}, "parameters": {"a": 10**400}})
@example({"states": {"x": {"drift": float("nan")}}})
def test_any_mapping_is_read_or_refused(tables):
    outcome(tables)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=80))
def test_any_text_as_a_drift_is_read_or_refused(text):
    said = outcome(drift(text))
    if said is None:
        assert read_statement(read_source(drift(text))).states[0].drift.names() <= {"x", "t"}


def test_errors_of_equations_are_errors_of_values():
    assert issubclass(EquationError, ValueError)
