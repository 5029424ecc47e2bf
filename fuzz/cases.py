"""What the families share: random numbers by case, the outcome of a case, and the script of a failure."""

import dataclasses
import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

FAILURES = ("wrong", "crashed")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one case.

    - outcome: "right", "wrong" (said to have converged but is not right, or not finite), "refused" (a ValueError),
      "crashed" (any other exception), or the status of a run that says itself that it did not converge.
    - error: the largest deviation from the oracle as a multiple of what is allowed; NaN where there is no answer.
    - group: for the table of this family in detail.
    - condition: of the problem, where the family knows it.
    """

    family: str
    case: str
    outcome: str
    error: float
    message: str = ""
    group: str = ""
    condition: float | None = None
    script: str = ""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return self.outcome in FAILURES


class NoOracle(Exception):
    """The oracle does not resolve this case."""


def attempt(fn: Callable[[], Any]) -> tuple[Any, str, str]:
    """What the library returned; or None, with "refused" or "crashed" and the error's text."""
    try:
        return fn(), "", ""
    except ValueError as problem:
        return None, "refused", str(problem)
    except Exception as problem:
        return None, "crashed", f"{type(problem).__name__}: {problem}"


def judge(errors: dict[str, float], claims: bool, status: str) -> tuple[str, float, str]:
    """Outcome, worst error and message, from every deviation as a multiple of what is allowed.

    - claims: whether the answer says that it is right. One that does not still has to be finite.
    """
    worst = max(errors, key=lambda k: errors[k])
    error = errors[worst]
    named = [k for k in errors if errors[k] > 1] or [worst]
    message = ", ".join(f"{k}: {errors[k]:.3g}" for k in named) + " times what is allowed"
    if claims or not math.isfinite(error):
        return ("right" if error <= 1 else "wrong"), error, message
    return status, error, message


def generator(seed: int, family: str, index: int) -> np.random.Generator:
    """The random numbers of one case, the same whichever other cases run."""
    return np.random.default_rng([seed, zlib.crc32(family.encode()), index])


def decades(rng: np.random.Generator, low: float, high: float, size: Any = None) -> Any:
    """Uniform on a logarithmic scale between 10^low and 10^high."""
    return 10.0 ** rng.uniform(low, high, size)


def chance(rng: np.random.Generator, probability: float) -> bool:
    return bool(rng.random() < probability)


def literal(value: Any) -> str:
    """A number, array or None as Python source that gives the same float64 again."""
    if value is None or isinstance(value, str):
        return repr(value)
    whole = value if isinstance(value, tuple) else np.asarray(value).tolist()
    text = repr(whole).replace("nan", "float('nan')").replace("inf", "float('inf')")
    return text if len(text) < 100 else text.replace("], [", "],\n    [")


def assignments(values: dict[str, Any]) -> str:
    return "".join(f"{name} = {literal(value)}\n" for name, value in values.items())
