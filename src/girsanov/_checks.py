"""Checks of single numbers that a user gives, by name: a ValueError says what was given and what is wanted."""

from typing import Any

import numpy as np


def check_whole(least: int = 1, **values: Any) -> None:
    """Whole numbers that are not below `least`."""
    for name, value in values.items():
        if not np.isfinite(value) or int(value) != value or value < least:
            raise ValueError(f"{name} must be a whole number ≥ {least}, got {value!r}")


def check_positive(**values: Any) -> None:
    for name, value in values.items():
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, got {value!r}")
