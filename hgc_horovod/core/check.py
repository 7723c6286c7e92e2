"""Argument checks with one form of message: what is wrong, and what would be right."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """`value` as an int between `least` and `most`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least or (most is not None and value > most):
        bound = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be a whole number {bound}; got {value!r}")
    return int(value)


def real(name: str, value: Any, above: float | None = None, least: float | None = None,
         most: float | None = None, below: float | None = None) -> float:
    """`value` as a finite float within the given open (`above`, `below`) and closed (`least`, `most`) bounds."""
    bounds = [(above, "above", lambda v, b: v > b), (least, "at least", lambda v, b: v >= b),
              (most, "at most", lambda v, b: v <= b), (below, "below", lambda v, b: v < b)]
    wanted = [(bound, words, holds) for bound, words, holds in bounds if bound is not None]
    good = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not all(holds(value, bound) for bound, _, holds in wanted):
        text = " and ".join(f"{words} {bound:g}" for bound, words, _ in wanted)
        raise ValueError(f"{name} must be a finite number {text}; got {value!r}")
    return float(value)
