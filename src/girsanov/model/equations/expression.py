"""Expressions in text: names, numbers, arithmetic, comparisons and known functions, and nothing else.

The text is parsed by Python's own parser and its tree is copied node by node; whatever is not listed here is refused
with its place. Nothing of the text is ever executed, so that a file from elsewhere can do no harm.
"""

import ast
import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from girsanov._core.checks import is_finite

LONGEST = 1000  # characters of an expression
DEEPEST = 40  # brackets, or operations, inside each other

FUNCTIONS: dict[str, tuple[int, Callable]] = {
    "exp": (1, jnp.exp),
    "log": (1, jnp.log),
    "sqrt": (1, jnp.sqrt),
    "sin": (1, jnp.sin),
    "cos": (1, jnp.cos),
    "tan": (1, jnp.tan),
    "sinh": (1, jnp.sinh),
    "cosh": (1, jnp.cosh),
    "tanh": (1, jnp.tanh),
    "arctan": (1, jnp.arctan),
    "abs": (1, jnp.abs),
    "sign": (1, jnp.sign),
    "logistic": (1, jax.nn.sigmoid),
    "softplus": (1, jax.nn.softplus),
    "min": (2, jnp.minimum),
    "max": (2, jnp.maximum),
    "where": (3, lambda condition, a, b: jnp.where(condition != 0.0, a, b)),
}
NUMBERS = {"pi": 3.141592653589793}
_BINARY: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "^"}
_COMPARE: dict[type, str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_OPERATIONS: dict[str, Callable] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "^": lambda a, b: a**b,
    "<": lambda a, b: 1.0 * (a < b),
    "<=": lambda a, b: 1.0 * (a <= b),
    ">": lambda a, b: 1.0 * (a > b),
    ">=": lambda a, b: 1.0 * (a >= b),
    "==": lambda a, b: 1.0 * (a == b),
    "!=": lambda a, b: 1.0 * (a != b),
}


class Expression(NamedTuple):
    """A node of an expression.

    Attributes:
        kind: "number", "name", "operation" or "call".
        head: the number, the name, the operator (or "neg") or the function.
        arguments: the nodes below.
    """

    kind: str
    head: Any
    arguments: tuple["Expression", ...] = ()

    def names(self) -> set[str]:
        """Return the names that the expression refers to."""
        if self.kind == "name":
            return {self.head}
        return set().union(*(a.names() for a in self.arguments))

    def __repr__(self) -> str:
        if self.kind == "number":
            return f"{self.head:.12g}"
        if self.kind == "name":
            return self.head
        if self.kind == "call":
            return f"{self.head}({', '.join(map(repr, self.arguments))})"
        parts = [f"({a!r})" if a.kind == "operation" else repr(a) for a in self.arguments]
        return f"-{parts[0]}" if self.head == "neg" else f"{parts[0]} {self.head} {parts[1]}"


class EquationError(ValueError):
    """An expression, or a description of a model, that is not valid; the message has the line and a caret."""


def parse(text: Any, where: str) -> Expression:
    """Parse an expression.

    Args:
        text: the expression, or a number.
        where: what the expression is, such as "the drift of x", for messages.

    Returns:
        The tree of the expression.

    Raises:
        EquationError: if the text is anything but arithmetic.
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        if not is_finite(text):
            raise EquationError(f"{where} must be a finite number that fits into 64 bits, got {str(text)[:40]}")
        return number(float(text))
    if not isinstance(text, str) or not text.strip():
        raise EquationError(f"{where} must be an expression in quotes, or a number, got {text!r}")
    source = _Source(text, where)
    source.check_size()
    try:
        tree = ast.parse(source.python, mode="eval")
    except (SyntaxError, ValueError) as error:
        place = getattr(error, "offset", None) or 1
        said = str(getattr(error, "msg", error)).replace("'**'", "'^'")
        raise source.error(f"this is not an expression ({said})", source.back(place - 1)) from None
    except (MemoryError, RecursionError):
        raise source.error(f"this has more than {DEEPEST} operations inside each other", 0) from None
    return _copied(tree.body, source, 0)


def number(value: float) -> Expression:
    """Return the expression of a number."""
    return Expression("number", float(value))


class _Source:
    """The text of an expression, and its translation for Python's parser, in which ^ is **."""

    def __init__(self, text: str, where: str):
        self.text, self.where = " ".join(text.split()), where
        self.python = self.text.replace("^", "**")

    def check_size(self) -> None:
        if len(self.text) > LONGEST:
            raise self.error(
                f"the expression has {len(self.text)} characters, and {LONGEST} are allowed: split it by [definitions]",
                LONGEST,
            )
        depth = 0
        for i, c in enumerate(self.text):
            depth += (c in "([{") - (c in ")]}")
            if depth > DEEPEST:
                raise self.error(f"more than {DEEPEST} brackets are open here", i)
            if not (c.isascii() and (c.isalnum() or c in " _+-*/^().,<>=!")):
                raise self.error(f"the character {c!r} has no meaning in an expression", i)

    def back(self, offset: int) -> int:
        """Return the place in the text of a place in its translation."""
        seen = translated = 0
        while translated < offset and seen < len(self.text):
            translated += 2 if self.text[seen] == "^" else 1
            seen += 1
        return seen

    def error(self, said: str, place: int, length: int = 1) -> EquationError:
        """Return an error that shows the line with carets under the place."""
        first = max(0, place - 60)
        line = self.text[first : first + 100]
        carets = " " * (place - first) + "^" * max(1, min(length, len(line) - (place - first)))
        return EquationError(f"{self.where}: {said}\n    {line}\n    {carets}")

    def at(self, node: ast.expr, said: str) -> EquationError:
        begin, end = self.back(node.col_offset), self.back(node.end_col_offset or node.col_offset + 1)
        return self.error(said, begin, end - begin)


def _copied(node: ast.expr, source: _Source, depth: int) -> Expression:
    """Copy a node of Python's tree, or raise an error if it is none of those that are allowed."""
    if depth > DEEPEST:
        raise source.at(node, f"this has more than {DEEPEST} operations inside each other")
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise source.at(node, f"{node.value!r} is not a number")
        try:
            value = float(node.value)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise source.at(node, "this number is too large for floating-point arithmetic")
        return number(value)
    if isinstance(node, ast.Name):
        return Expression("name", node.id) if node.id not in NUMBERS else number(NUMBERS[node.id])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inner = _copied(node.operand, source, depth + 1)
        return inner if isinstance(node.op, ast.UAdd) else Expression("operation", "neg", (inner,))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        parts = tuple(_copied(part, source, depth + 1) for part in (node.left, node.right))
        return Expression("operation", _BINARY[type(node.op)], parts)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
        parts = tuple(_copied(part, source, depth + 1) for part in (node.left, node.comparators[0]))
        return Expression("operation", _COMPARE[type(node.ops[0])], parts)
    if isinstance(node, ast.Call):
        return _call(node, source, depth)
    raise source.at(node, "only names, numbers, + - * / ^, comparisons of two sides and known functions may stand here")


def _call(node: ast.Call, source: _Source, depth: int) -> Expression:
    if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
        name = node.func.id if isinstance(node.func, ast.Name) else "this"
        raise source.at(
            node.func, f"{name} is not a known function{hint(name, FUNCTIONS)}; there are {_listed(FUNCTIONS)}"
        )
    count = FUNCTIONS[node.func.id][0]
    if node.keywords or len(node.args) != count or any(isinstance(a, ast.Starred) for a in node.args):
        raise source.at(node, f"{node.func.id} takes {count} {'number' if count == 1 else 'numbers'}")
    return Expression("call", node.func.id, tuple(_copied(a, source, depth + 1) for a in node.args))


def error_at(name: str, text: Any, where: str, said: str) -> EquationError:
    """Return an error that shows an expression, with carets under the first place of a name in it."""
    source = _Source(str(text), where)
    places = [place for place, _ in _places(source.text, {name})]
    return source.error(said, min(places, default=0), len(name))


class Measure(NamedTuple):
    """How many operations an expression has in all, and how many inside each other."""

    size: int
    depth: int


def measure(e: Expression, of_names: Mapping[str, Measure]) -> Measure:
    """Return the measure of an expression once the names with a measure are put in."""
    if e.kind == "name":
        return of_names.get(e.head, Measure(1, 1))
    below = [measure(a, of_names) for a in e.arguments]
    return Measure(1 + sum(m.size for m in below), 1 + max((m.depth for m in below), default=0))


def hint(name: str, known: Any) -> str:
    """Return a question whether a similar name was meant, or nothing."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))


def check_names(expression: Expression, text: Any, where: str, known: Any) -> None:
    """Raise an EquationError at the first name in the text that is not known."""
    unknown = expression.names() - set(known)
    if not unknown:
        return
    source = _Source(str(text), where)
    place, name = min(_places(source.text, unknown))
    said = f"{name!r} is not defined{hint(name, known)}; the names are {_listed(known)}"
    raise source.error(said, place, len(name))


def _places(text: str, names: set[str]) -> Iterator[tuple[int, str]]:
    """Yield where the names stand in the text."""
    i = 0
    while i < len(text):
        if text[i].isalpha() or text[i] == "_":
            end = i
            while end < len(text) and (text[end].isalnum() or text[end] == "_"):
                end += 1
            if text[i:end] in names:
                yield i, text[i:end]
            i = end
        else:
            i += 1


def evaluate(expression: Expression, values: Mapping[str, Any]) -> Any:
    """Return the value of an expression; the values of its names may be traced by JAX."""
    if expression.kind == "number":
        return expression.head
    if expression.kind == "name":
        return values[expression.head]
    arguments = [evaluate(a, values) for a in expression.arguments]
    if expression.head == "neg":
        return -arguments[0]
    if expression.head == "^" and expression.arguments[1].kind == "number" and float(arguments[1]).is_integer():
        return arguments[0] ** int(arguments[1])  # a whole power has a derivative where the base is zero or below
    fn = FUNCTIONS[expression.head][1] if expression.kind == "call" else _OPERATIONS[expression.head]
    return fn(*(jnp.asarray(a, float) for a in arguments))
