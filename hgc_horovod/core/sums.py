"""Sums that come out the same in any order, on any number of threads, on any device.

Each term is rounded to a fixed-point integer on one scale that depends on the largest magnitude alone, and
integers are added exactly. The scale takes as many bits as fit into a signed 64-bit sum of all terms, so the
relative error is far below what a compression scale or a norm needs.
"""

from __future__ import annotations

import math

import numpy as np

from .types import Floats


def abs_sum(values: Floats) -> float:
    """Σ|v|, order-independent. Values are finite float32."""
    fixed, shift = _fixed_point(values, bits=62 - values.size.bit_length())
    return math.ldexp(int(fixed.sum()), shift)


def square_sum(values: Floats) -> float:
    """Σv², order-independent. Values are finite float32."""
    fixed, shift = _fixed_point(values, bits=(62 - values.size.bit_length()) // 2)
    return math.ldexp(int((fixed * fixed).sum()), 2 * shift)


def _fixed_point(values: Floats, bits: int) -> tuple[np.ndarray, int]:
    """|v| as int64 multiples of 2**shift, none above 2**bits; rounded half to even."""
    largest = float(np.abs(values).max(initial=0))
    shift = math.frexp(largest)[1] - bits
    return np.rint(np.ldexp(np.abs(values).astype(np.float64), -shift)).astype(np.int64), shift
