"""Definitions of a description: expressions that others use by name, put into each other and kept at a size."""

from collections.abc import Mapping
from typing import Any

from girsanov.model.equations.expression import (
    DEEPEST,
    EquationError,
    Expression,
    Measure,
    check_names,
    error_at,
    measure,
    parse,
)

LARGEST = 2000  # operations of an expression with its definitions


def read_definitions(table: dict[str, Any], names: set[str], texts: dict[str, str]) -> dict[str, Expression]:
    """Return the definitions, each with the others put into it.

    Raises an EquationError where they go in a circle, or where one that is put into others again and again would become
    too long to work with: twenty lines that each use the next one twice have a million operations.
    """
    parsed = {name: parse(text, f"definitions.{name}") for name, text in table.items()}
    done: dict[str, Expression] = {}
    sizes: dict[str, Measure] = {}
    for name, e in parsed.items():
        check_names(e, table[name], f"definitions.{name}", names | set(table))
        texts[f"definitions.{name}"] = str(table[name])

    def finish(name: str, path: tuple[str, ...]) -> Expression:
        before = path[-1] if path else name
        if name in path:
            circle = " → ".join((*path[path.index(name) :], name))
            said = f"the definitions go in a circle, {circle}"
            raise error_at(name, table[before], f"definitions.{before}", said)
        if len(path) > DEEPEST:
            said = f"more than {DEEPEST} definitions are inside each other here"
            raise error_at(name, table[before], f"definitions.{before}", said)
        if name not in done:
            inner = {n: finish(n, (*path, name)) for n in parsed[name].names() & set(parsed)}
            sizes[name] = checked(parsed[name], sizes, f"definitions.{name}")
            done[name] = substituted(parsed[name], inner)
        return done[name]

    for name in parsed:
        finish(name, ())
    return done


def checked(e: Expression, sizes: Mapping[str, Measure], where: str) -> Measure:
    """Return the measure of an expression with definitions, or raise an EquationError if it is too long or too deep."""
    found = measure(e, sizes)
    if found.size > LARGEST or found.depth > 2 * DEEPEST:
        raise EquationError(
            f"{where}: with its definitions this has {found.size} operations, {found.depth} of them inside each other; "
            f"{LARGEST} and {2 * DEEPEST} are allowed"
        )
    return found


def substituted(e: Expression, definitions: Mapping[str, Expression]) -> Expression:
    """Return the expression with definitions in the place of their names."""
    if e.kind == "name":
        return definitions.get(e.head, e)
    return e._replace(arguments=tuple(substituted(a, definitions) for a in e.arguments))
