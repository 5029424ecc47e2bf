"""Expressions in text: what they mean, and what is refused, with its place."""

import math

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import example, given, settings

from girsanov.model.equations.expression import FUNCTIONS, EquationError, check_names, evaluate, parse

VALUES = {"x": 0.7, "y": -1.3, "rate_2": 2.5}


def value(text, **values):
    return float(evaluate(parse(text, "f"), VALUES | values))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1 + 2 * 3", 7.0),
        ("-x^2", -(0.7**2)),
        ("2 ^ 3 ^ 2", 512.0),
        ("2 ** -1", 0.5),
        ("(x - y) / rate_2", 0.8),
        ("-y", 1.3),
        ("+ x", 0.7),
        ("exp(-x) * cos(pi * y)", math.exp(-0.7) * math.cos(math.pi * -1.3)),
        ("where(x > 0.5, x, y)", 0.7),
        ("where(x > 1, x, y)", -1.3),
        ("(x < 1) + (x >= 1)", 1.0),
        ("max(x, y) - min(x, y)", 2.0),
        ("logistic(x)", 1.0 / (1.0 + math.exp(-0.7))),
        ("y^3", (-1.3) ** 3),
        ("1e-3 * x", 7e-4),
        ("x\n   + y", -0.6),
    ],
)
def test_values_are_those_of_arithmetic(text, wanted):
    with jax.enable_x64(True):
        assert value(text) == pytest.approx(wanted, rel=1e-12)


def test_every_function_is_that_of_numpy():
    with jax.enable_x64(True):
        for name in ("exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "arctan", "abs", "sign"):
            assert FUNCTIONS[name][0] == 1
            assert value(f"{name}(x)") == pytest.approx(getattr(np, name)(0.7), rel=1e-12)


def test_a_whole_power_has_a_derivative_at_zero():
    e = parse("x^2 + x^3", "f")
    with jax.enable_x64(True):
        assert float(jax.grad(lambda x: evaluate(e, {"x": x}))(0.0)) == 0.0


HARMFUL = [
    "__import__('os').system('true')",
    "x.__class__",
    "(lambda: 1)()",
    "[x for x in (1, 2)]",
    "x if y else 1",
    "open('f')",
    "f'{x}'",
    "x := 3",
    "x[0]",
    "{1: 2}",
    "exp(x=1)",
    "exp(*x)",
    "x and y",
    "not x",
    "x < y < 1",
    "x @ y",
    "x // y",
    "x % y",
    "x | y",
    "~x",
    "'text'",
    "True",
    "None",
    "1j",
    "...",
    "await x",
    "yield x",
    "eval(x)",
    "exp(x, y)",
    "exp",
    "x y",
    "x +",
    ")",
    "(" * 1000 + "x" + ")" * 1000,
    "-" * 900 + "x",
    "x" + " + x" * 5000,
    "9" * 400,
    "x; y",
    "x = 1",
    "import os",
    "x # comment",
    "x\\y",
    "ｘ",
    "x\x00",
]


@pytest.mark.parametrize("text", HARMFUL, ids=range(len(HARMFUL)))
def test_anything_but_arithmetic_is_refused_with_its_place(text):
    """A bare name of a function is a name that nothing defines."""
    with pytest.raises(EquationError) as caught:
        check_names(parse(text, "the drift of x"), text, "the drift of x", VALUES)
    said = str(caught.value).splitlines()
    assert said[0].startswith("the drift of x: ") and len(said[0]) < 300
    assert len(said) == 3 and set(said[2].strip()) == {"^"}


def test_the_caret_stands_under_the_place():
    with pytest.raises(EquationError) as caught:
        parse("x^2 + foo(y^2) * 3", "f")
    _, line, carets = str(caught.value).splitlines()
    assert line[carets.index("^") : carets.rindex("^") + 1] == "foo"
    with pytest.raises(EquationError, match=r"'rate' is not defined \(did you mean 'rate_2'\?\)") as caught:
        check_names(parse("x^2 - rate * y", "f"), "x^2 - rate * y", "f", VALUES)
    _, line, carets = str(caught.value).splitlines()
    assert line[carets.index("^") : carets.rindex("^") + 1] == "rate"


@pytest.mark.parametrize("wrong", [None, "", "  ", True, [1], {"a": 1}])
def test_other_things_than_text_and_numbers_are_refused(wrong):
    with pytest.raises(EquationError, match="must be an expression in quotes, or a number"):
        parse(wrong, "the drift of x")


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60))
@example("exp(exp(x))")
@example("x.__init__.__globals__")
def test_no_text_does_harm(text):
    """Whatever the text, it is an expression of known names and functions, or an error of ours."""
    try:
        e = parse(text, "f")
        check_names(e, text, "f", VALUES)
    except EquationError:
        return
    assert e.names() <= set(VALUES)
    evaluate(e, VALUES)


NUMBERS = st.floats(0.1, 5.0).map(lambda v: f"{v:.3f}")
TERMS = st.recursive(
    st.sampled_from(["x", "y", "rate_2"]) | NUMBERS,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})")
        | inner.map(lambda a: f"sin({a})")
        | inner.map(lambda a: f"(-{a})")
        | inner.map(lambda a: f"({a})^2")
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(TERMS)
def test_values_are_those_of_python(text):
    wanted = eval(text.replace("^", "**"), {"__builtins__": {}, "sin": math.sin}, dict(VALUES))
    with jax.enable_x64(True):
        assert value(text) == pytest.approx(wanted, rel=1e-9, abs=1e-9)
        assert value(repr(parse(text, "f"))) == pytest.approx(wanted, rel=1e-9, abs=1e-9)
