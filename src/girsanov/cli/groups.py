"""Groups of options that several commands share: a dataclass, whose fields are options, is one parameter of each."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any


def with_groups(command: Callable) -> Callable:
    """Return the command with the fields of its dataclasses as parameters of its own, as typer needs them.

    A parameter of a command is a group if its annotation is a dataclass.
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for p in inspect.signature(command).parameters.values():
        if not dataclasses.is_dataclass(p.annotation):
            parameters.append(p.replace(kind=p.KEYWORD_ONLY))
            continue
        groups[p.name] = p.annotation
        for field in dataclasses.fields(p.annotation):
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            parameters.append(inspect.Parameter(field.name, p.KEYWORD_ONLY, default=default, annotation=field.type))

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in dataclasses.fields(kind)})
        return command(**given)

    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    return run
