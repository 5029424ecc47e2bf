"""Write the posteriors of a panel to one file, in the format of `saving`, and read them.

The arrays of all series are stored one after the other, since a file of very many small arrays is slow to read. An
array that is the same in all series, as those of the model are, is stored once.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from girsanov._core.precision import frozen
from girsanov.result.saving import POPULATION, pack, pack_population, write

_SHAPES, _ONCE = ".shapes", "once:"
_MODEL = ("model.", "initial.", "drift.", "likelihood.", "diffusion.")


def save_panel(posts: Any, path: str | Path) -> Path:
    """Write all posteriors of a panel and return the path of the file."""
    packed = [pack(post) for post in posts.values()]
    headers = [header for header, _ in packed]
    once = {k: v for k, v in headers[0].items() if all(header[k] == v for header in headers)}
    rest = [{k: v for k, v in header.items() if k not in once} for header in headers]
    arrays: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(k for _, part in packed for k in part):
        parts = [None if name not in part else np.asarray(part[name]) for _, part in packed]
        some = [a for a in parts if a is not None]
        equal = all(np.array_equal(a, some[0], equal_nan=a.dtype.kind == "f") for a in some)
        if equal and len(some) == len(parts):
            arrays[_ONCE + name] = some[0]
            continue
        arrays[name] = np.concatenate([a.ravel() for a in some])
        # A series without this array has a shape of −1s.
        arrays[name + _SHAPES] = np.array([(-1,) * some[0].ndim if a is None else a.shape for a in parts])
    head: dict[str, Any] = {"kind": "panel", "format": once["format"], "names": list(posts), "seconds": posts.seconds}
    pack_population(posts.model, head, arrays)
    return write(path, {**head, "once": once, "each": rest}, arrays)


def unpack_panel(
    header: dict[str, Any], arrays: dict[str, Any], model_of: Callable, unpack: Callable
) -> dict[str, Any]:
    """Return the posteriors by name.

    `model_of(header, arrays)` makes a model, which is made once if it is the same for all series, and
    `unpack(header, arrays, model)` makes a posterior.
    """
    names = header["names"]
    alike = not any(key.startswith(_MODEL) for key in arrays)
    parts: list[dict[str, Any]] = [{} for _ in names]
    for key, values in arrays.items():
        if key.startswith(POPULATION):
            continue
        if key.startswith(_ONCE):
            for part in parts:
                part[key.removeprefix(_ONCE)] = values
        elif not key.endswith(_SHAPES):
            start = 0
            for part, shape in zip(parts, arrays[key + _SHAPES].tolist(), strict=True):
                if -1 not in shape:
                    size = int(np.prod(shape))
                    part[key] = frozen(values[start : start + size].reshape(shape))
                    start += size
    headers = [{**header["once"], **own} for own in header["each"]]
    model = model_of(headers[0], parts[0]) if alike else None
    return {
        name: unpack(head, part, model or model_of(head, part))
        for name, head, part in zip(names, headers, parts, strict=True)
    }
