"""`Direction`: how well the data determine one combination of the parameters."""

from collections.abc import Sequence
from typing import NamedTuple


class Direction(NamedTuple):
    """A direction of the parameters, and how well the data determine it.

    Attributes:
        weights: the share of every entry, by name. Positive parameters are counted by their logarithms, real ones in
            multiples of their size.
        spread: the standard deviation along the direction, in these units; infinite if the data tell nothing.
        sentence: the same in words.
    """

    weights: dict[str, float]
    spread: float
    sentence: str


def table(directions: Sequence[Direction]) -> str:
    """Return the directions as text, the widest first, one line for each."""
    lines = [f"{'sd (log or relative)':>20}  what the data tell"]
    return "\n".join([*lines, *(f"{d.spread:>20.3g}  {d.sentence}" for d in directions)])
