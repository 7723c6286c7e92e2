"""Quantizers: a kept value becomes a code of b bits, and a code becomes a value.

A quantizer's *scales* are the float32 numbers that stand once in the payload and give its codes a meaning.
Every operation that decides a byte is correctly rounded (+, ×, ÷, √, comparison, integer), so that every
implementation produces the same codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from . import check, sums
from .context import Context
from .types import Codes, Floats


class Quantizer(Protocol):
    """Values to codes and back. A frozen dataclass, registered in `method.PARTS` under its `kind`.

    `wire_id` names it in a payload, and `holds_zero` tells whether it takes zeros.
    """

    kind: ClassVar[str]
    wire_id: ClassVar[int]
    holds_zero: ClassVar[bool]

    @property
    def bits(self) -> int:
        """Bits per value, sign included."""

    def scale_words(self, k: int) -> int:
        """How many scales it sends for k values, float32 each."""

    def quantize(self, values: Floats, context: Any = None) -> tuple[Codes, Floats]:
        """Finite float32 (m,), nonzero unless `holds_zero` -> codes (m,) below 2**bits, and scales."""

    def dequantize(self, codes: Codes, scales: Floats) -> Floats:
        """Codes and scales -> finite float32 (m,); ValueError where the scales or codes are no encoder's."""


class _Plain:
    """A quantizer that sends `scale_count` scales, however many values there are."""

    scale_count: ClassVar[int] = 0

    def scale_words(self, k: int) -> int:
        return self.scale_count


@dataclass(frozen=True)
class Float32(_Plain):
    """The value itself, 32 bits."""

    kind: ClassVar[str] = "float32"
    wire_id: ClassVar[int] = 0
    holds_zero: ClassVar[bool] = True
    bits: int = 32

    def __post_init__(self) -> None:
        check.whole("bits", self.bits, 32, 32)

    def quantize(self, values: Floats, context: Context | None = None) -> tuple[Codes, Floats]:
        return values.view(np.uint32).astype(np.uint64), _scales()

    def dequantize(self, codes: Codes, scales: Floats) -> Floats:
        return _finite(codes.astype(np.uint32).view(np.float32))


@dataclass(frozen=True)
class BFloat16(_Plain):
    """The upper 16 bits of the float32, rounded half to even but never up to infinity."""

    kind: ClassVar[str] = "bfloat16"
    wire_id: ClassVar[int] = 1
    holds_zero: ClassVar[bool] = True
    bits: int = 16

    def __post_init__(self) -> None:
        check.whole("bits", self.bits, 16, 16)

    def quantize(self, values: Floats, context: Context | None = None) -> tuple[Codes, Floats]:
        word = values.view(np.uint32).astype(np.uint64)
        rounded = (word + 0x7FFF + (word >> 16 & 1)) >> 16
        return rounded - ((rounded & 0x7FFF) == 0x7F80), _scales()

    def dequantize(self, codes: Codes, scales: Floats) -> Floats:
        return _finite((codes << 16).astype(np.uint32).view(np.float32))


@dataclass(frozen=True)
class SignMean(_Plain):
    """One bit: the sign, times the mean magnitude. Bit 1 is negative. Scales: (mean,)."""

    kind: ClassVar[str] = "sign_mean"
    wire_id: ClassVar[int] = 2
    scale_count: ClassVar[int] = 1
    holds_zero: ClassVar[bool] = False
    bits: int = 1

    def __post_init__(self) -> None:
        check.whole("bits", self.bits, 1, 1)

    def quantize(self, values: Floats, context: Context | None = None) -> tuple[Codes, Floats]:
        mean = sums.abs_sum(values) / max(values.size, 1)
        return np.signbit(values).astype(np.uint64), _scales(mean)

    def dequantize(self, codes: Codes, scales: Floats) -> Floats:
        _check_range(scales[0], scales[0], codes.size)
        return np.array([scales[0], -scales[0]], np.float32)[codes]


@dataclass(frozen=True)
class Geometric(_Plain):
    """A sign and one of L = 2**(bits-1) levels that stand geometrically on [lo, hi]. Scales: (lo, hi).

    The range is cut into L intervals of equal ratio, and a magnitude becomes the geometric middle of its
    interval. lo is the least magnitude and hi the largest, but no more than lo·4**L: then no level is more
    than twice the magnitude it stands for, so that |v - decode(v)| ≤ |v| for every entry (save by a smallest
    denormal among denormals), and magnitudes above hi take the highest level. Code: the level's number times
    2, plus 1 where the value is negative.
    """

    kind: ClassVar[str] = "geometric"
    wire_id: ClassVar[int] = 3
    scale_count: ClassVar[int] = 2
    holds_zero: ClassVar[bool] = False
    bits: int

    def __post_init__(self) -> None:
        check.whole("bits", self.bits, 2, 8)

    def quantize(self, values: Floats, context: Context | None = None) -> tuple[Codes, Floats]:
        if not values.size:
            return np.zeros(0, np.uint64), _scales(0, 0)
        magnitudes = np.abs(values)
        lo, hi = float(magnitudes.min()), float(magnitudes.max())
        scales = _scales(lo, min(hi, lo * 4.0**2 ** (self.bits - 1)))
        inner_edges = geometric_nodes(scales, self.bits)[2:-1:2]
        levels = np.searchsorted(inner_edges, magnitudes, side="right").astype(np.uint64)
        return levels << np.uint64(1) | np.signbit(values).astype(np.uint64), scales

    def dequantize(self, codes: Codes, scales: Floats) -> Floats:
        _check_range(scales[0], scales[1], codes.size)
        levels = geometric_nodes(scales, self.bits)[1::2]
        signed: Floats = np.stack([levels, -levels], axis=1).ravel()
        return signed[codes]


def geometric_nodes(scales: Floats, bits: int) -> Floats:
    """The 2**bits + 1 nodes from lo to hi, each the geometric mean of its neighbours, float32.

    Even nodes are the interval edges, odd ones the levels. Computed in float64 by `bits` rounds of
    √(a·b), which every IEEE machine rounds alike, and rounded to float32 once.
    """
    nodes = scales.astype(np.float64)
    for _ in range(bits):
        finer = np.empty(2 * nodes.size - 1)
        finer[::2] = nodes
        finer[1::2] = np.sqrt(nodes[:-1] * nodes[1:])
        nodes = finer
    return nodes.astype(np.float32)


def for_bits(bits: int) -> Quantizer:
    """The hybrid method's quantizer for 1 to 8, 16 or 32 bits a value."""
    if (
        isinstance(bits, bool)
        or not isinstance(bits, (int, np.integer))
        or bits not in (*range(1, 9), 16, 32)
    ):
        raise ValueError(f"bits must be 1 to 8, 16 or 32; got {bits!r}")
    whole: dict[int, Quantizer] = {1: SignMean(), 16: BFloat16(), 32: Float32()}
    return whole.get(bits) or Geometric(int(bits))


def _scales(*values: float) -> Floats:
    return np.array(values, np.float32)


def _finite(values: Floats) -> Floats:
    if not np.isfinite(values).all():
        raise ValueError("a value is not finite")
    return values


def _check_range(lo: np.float32, hi: np.float32, count: int) -> None:
    good = np.isfinite(hi) and 0 < lo <= hi if count else lo.tobytes() == hi.tobytes() == bytes(4)
    if not good:
        raise ValueError(f"the scales {lo}, {hi} are no range of {count} magnitudes")
