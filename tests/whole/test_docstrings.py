"""What the site shows of the API: every public name is there, and says what it takes and returns."""

import functools
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import girsanov as gv

ROOT = Path(__file__).resolve().parents[2]
LOCATED = importlib.util.spec_from_file_location("site_api", ROOT / "docs" / "site" / "api.py")
assert LOCATED is not None and LOCATED.loader is not None
api = importlib.util.module_from_spec(LOCATED)
LOCATED.loader.exec_module(api)


def things() -> Iterator[tuple[str, Any]]:
    for _, _, names in api.groups().values():
        yield from ((f"gv.{name}", getattr(gv, name)) for name in names)
    for _, _, module in api.PARTS.values():
        yield from ((f"{module.__name__}.{name}", getattr(module, name)) for name in module.__all__)
    for paths in api.MORE.values():
        yield from ((path, api.resolve(path)) for path in paths)


def called() -> dict[str, Callable]:
    """Functions, and the methods of what a user holds in the hand; not those that a base class asks one to write."""
    found = {}
    for name, thing in things():
        if not inspect.isclass(thing):
            found[name] = inspect.unwrap(thing)
        elif thing not in api.BASES and api.with_members(thing):
            methods = [(n, getattr(thing, n)) for n in dir(thing) if not n.startswith("_") and n != "of"]
            found |= {
                f"{name}.{n}": inspect.unwrap(m)
                for n, m in methods
                if inspect.isfunction(inspect.unwrap(m)) or inspect.ismethod(m)
            }
    return {n: f for n, f in found.items() if str(f.__module__).startswith("girsanov")}


CALLED = called()


def undocumented(function: Callable) -> list[str]:
    """What a docstring leaves out: parameters that "Args" does not name, and "Returns"."""
    doc = inspect.getdoc(function) or ""
    args = doc.partition("Args:")[2]
    signature = inspect.signature(function)
    named = [p.name for p in signature.parameters.values() if p.name not in ("self", "cls", "unknown", "options")]
    left_out = [
        name for name in named if not re.search(rf"^ +([\w*, ]+, )?\*{{0,2}}{name}\b[^\n]*:", args, re.MULTILINE)
    ]
    silent = signature.return_annotation in (None, "None")
    says = "Returns:" in doc or "Yields:" in doc or (doc.startswith(("Return ", "Whether ")) and not named)
    return left_out + ([] if silent or says else ["Returns"])


def test_every_public_name_is_on_a_page(monkeypatch):
    shown = set(re.findall(r":: girsanov\.(\w+)$", "\n".join(api.pages().values()), re.MULTILINE))
    assert shown | set(api.PARTS) >= set(gv.__all__)
    monkeypatch.delitem(api.GROUPS, "inside")  # as if these names had come since
    assert ":: girsanov.prepare\n" in api.pages()["more"]


def test_what_is_left_out_is_found():
    def call(times: Any, key: Any) -> int:
        """Do it.

        Args:
            times: when.
        """
        return 0

    assert undocumented(call) == ["key", "Returns"]


@pytest.mark.parametrize("name", sorted(CALLED))
def test_a_call_says_what_it_takes_and_returns(name):
    assert undocumented(CALLED[name]) == []


@pytest.mark.parametrize("name", sorted({name for name, thing in things() if inspect.isclass(thing)}))
def test_a_class_and_its_properties_say_what_they_are(name):
    thing = dict(things())[name]
    assert (thing.__doc__ or "").strip()
    assert not thing.__doc__.startswith(f"{thing.__name__}("), "the docstring that dataclasses make"
    own = {key for c in thing.__mro__ if c.__module__.startswith("girsanov") for key in vars(c) if key[0] != "_"}
    for key in sorted(own) if api.with_members(thing) else ():
        if isinstance(inspect.getattr_static(thing, key), property | functools.cached_property):
            first = (inspect.getdoc(inspect.getattr_static(thing, key)) or "").partition("\n")[0]
            assert first, key
            assert ":" not in first, f"{key}: what stands before a colon would be shown as the type"
