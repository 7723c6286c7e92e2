"""Argument checks with one form of message: what is wrong, and what would be right."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np

_MOST = 2.0**128 - 2.0**104  # of float32


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """`value` as an int between `least` and `most`."""
    if (
        not isinstance(value, (int, np.integer))
        or isinstance(value, bool)
        or value < least
        or (most is not None and value > most)
    ):
        bound = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be a whole number {bound}; got {value!r}")
    return int(value)


def flag(name: str, value: Any) -> bool:
    """`value` as True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False; got {value!r}")
    return bool(value)


def real(name: str, value: Any) -> float:
    """`value` as a finite float."""
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an int beyond float's range
            if math.isfinite(value):
                return float(value)
    raise ValueError(f"{name} must be a finite number; got {value!r}")


def single(name: str, value: Any) -> float:
    """`value` as a float that is finite in float32, too."""
    if not isinstance(value, float):
        value = real(name, value)
    if not abs(value) <= _MOST:
        raise ValueError(f"{name} must be a finite number that fits float32; got {value!r}")
    return float(value)


def factor(name: str, value: Any) -> float:
    """`value` as a float that is above 0 and finite in float32, too."""
    if not isinstance(value, float):
        value = real(name, value)
    if not 2.0**-149 <= value <= _MOST:  # nor NaN
        raise ValueError(f"{name} must be above 0 and fit float32; got {value!r}")
    return float(value)


def fraction(name: str, value: Any) -> float:
    """`value` as a float above 0 and at most 1."""
    if not 0 < real(name, value) <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1; got {value!r}")
    return float(value)
