"""What a model has to know of its equations: which are affine in the states, and which noise is a known kind."""

from collections.abc import Collection
from typing import NamedTuple

from girsanov.model.equations.expression import Expression, number

_ZERO, _ONE = number(0.0), number(1.0)


class Affine(NamedTuple):
    """An expression Σ_i coefficients[x_i] · x_i + constant, in which no coefficient depends on the states."""

    coefficients: dict[str, Expression]
    constant: Expression


def affine(e: Expression, states: Collection[str]) -> Affine | None:
    """Return an expression as an affine function of the states, or None if its form does not show that it is one."""
    if not e.names() & set(states):
        return Affine({}, e)
    if e.kind == "name":
        return Affine({e.head: _ONE}, _ZERO)
    if e.kind == "call" or e.head not in ("+", "-", "*", "/", "neg"):
        return None
    parts = [affine(a, states) for a in e.arguments]
    if any(p is None for p in parts):
        return None
    first, *rest = (p for p in parts if p is not None)
    if e.head == "neg":
        return _scaled(first, _negative)
    (second,) = rest
    if e.head in ("+", "-"):
        other = second if e.head == "+" else _scaled(second, _negative)
        names = [*first.coefficients, *(n for n in other.coefficients if n not in first.coefficients)]
        sums = {n: plus(first.coefficients.get(n, _ZERO), other.coefficients.get(n, _ZERO)) for n in names}
        return Affine(sums, plus(first.constant, other.constant))
    if not second.coefficients:
        return _scaled(first, lambda c: _operation(e.head, c, second.constant))
    if e.head == "*" and not first.coefficients:
        return _scaled(second, lambda c: _operation("*", first.constant, c))
    return None


def _scaled(a: Affine, change) -> Affine:
    return Affine({n: change(c) for n, c in a.coefficients.items()}, change(a.constant))


def _negative(e: Expression) -> Expression:
    return number(-e.head) if e.kind == "number" else Expression("operation", "neg", (e,))


def _operation(head: str, a: Expression, b: Expression) -> Expression:
    if head == "*" and _ZERO in (a, b):
        return _ZERO
    if head == "*" and a == _ONE:
        return b
    if b == _ONE or (head == "/" and a == _ZERO):
        return a
    return Expression("operation", head, (a, b))


def plus(a: Expression, b: Expression) -> Expression:
    """Return the sum of two expressions."""
    return b if a == _ZERO else a if b == _ZERO else Expression("operation", "+", (a, b))


def log(e: Expression) -> Expression:
    """Return the logarithm of an expression; that of exp(a) is a."""
    return e.arguments[0] if e.kind == "call" and e.head == "exp" else Expression("call", "log", (e,))


def log_odds(e: Expression) -> Expression:
    """Return the log odds of a probability; those of logistic(a) are a."""
    if e.kind == "call" and e.head == "logistic":
        return e.arguments[0]
    other = Expression("operation", "-", (_ONE, e))
    return Expression("operation", "-", (log(e), log(other)))


class Noise(NamedTuple):
    """The noise of one state: scale · x^exponent, with exponent 0 for constant noise, or none of these (None)."""

    scale: Expression
    exponent: Expression | None


def noise_of(e: Expression, state: str) -> Noise:
    """Return the noise of a state as a known kind, if its form shows that it is one."""
    if state not in e.names():
        return Noise(e, _ZERO)
    scale, power = _ONE, None
    for factor, divides in _factors(e, False):
        if state not in factor.names():
            scale = _operation("/" if divides else "*", scale, factor)
        elif power is None and not divides:
            power = _power(factor, state)
        else:
            return Noise(e, None)
    return Noise(e, None) if power is None else Noise(scale, power)


def _factors(e: Expression, divides: bool):
    """Yield the factors of a product, each with whether it is divided by."""
    if e.kind == "operation" and e.head in ("*", "/"):
        yield from _factors(e.arguments[0], divides)
        yield from _factors(e.arguments[1], divides ^ (e.head == "/"))
    else:
        yield e, divides


def _power(factor: Expression, state: str) -> Expression | None:
    """Return p for a factor x^p, or None."""
    x = Expression("name", state)
    if factor == x:
        return _ONE
    if factor == Expression("call", "sqrt", (x,)):
        return number(0.5)
    if factor.kind == "operation" and factor.head == "^" and factor.arguments[0] == x:
        return None if state in factor.arguments[1].names() else factor.arguments[1]
    return None
