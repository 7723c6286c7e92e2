"""Quantizers with one scale for each bucket of values: a code stands for a level, times its bucket's scale.

A bucket is `bucket` values that follow one another, the last one maybe fewer; 0 stands for all values. In the
payload the bucket's size, an unsigned word, stands before the scales. A code is 2 · level, plus 1 where the
value is negative, so that every kind has a table of 2**bits signed levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from . import check
from .context import Context
from .types import Codes, Floats

MAX_BUCKET = 2**31 - 1


class Bucketed:
    """What these quantizers have in common."""

    kind: ClassVar[str]
    wire_id: ClassVar[int]
    holds_zero: ClassVar[bool] = True
    bits: int
    bucket: int

    def scale_words(self, k: int) -> int:
        """The bucket's size and the scales of k values."""
        return 1 + -(-k // (self.bucket or max(k, 1)))

    @cached_property
    def levels(self) -> Floats:
        """What each code stands for, float32 (2**bits,), before it is scaled."""
        raise NotImplementedError

    def quantize(self, values: Floats, context: Any = None) -> tuple[Codes, Floats]:
        bucket = self.bucket or max(values.size, 1)
        scales = self._scales(values, bucket, context)
        return self._codes(values, scales, bucket, context), np.append(self.word, scales)

    def dequantize(self, codes: Codes, scales: Floats, factor: float = 1.0) -> Floats:
        levels, scales, bucket = self.table(scales, codes.size)
        scales = np.float32(factor) * scales
        return np.repeat(scales, bucket)[: codes.size] * levels[codes]

    def table(self, scales: Floats, k: int) -> tuple[Floats, Floats, int]:
        """Levels, scales and bucket of k codes, for `Passes.add_codes`; ValueError where they are damaged.
        There may be more scales than k codes use: where slots stay unused, and those must be 0."""
        _check_scales(scales[1:], self.scale_words(k) - 1)
        return self.levels, scales[1:], min(self.bucket or max(k, 1), max(k, 1))

    @property
    def word(self) -> np.float32:
        """The bucket's size as it stands before the scales."""
        return np.float32(np.array([self.bucket], np.uint32).view(np.float32)[0])

    def _check(self, least: int, most: int) -> None:
        for name, low, high in (("bits", least, most), ("bucket", 0, MAX_BUCKET)):
            object.__setattr__(self, name, check.whole(name, getattr(self, name), low, high))

    def _scales(self, values: Floats, bucket: int, context: Context) -> Floats:
        raise NotImplementedError

    def _codes(self, values: Floats, scales: Floats, bucket: int, context: Context) -> Codes:
        raise NotImplementedError


@dataclass(frozen=True)
class Uniform(Bucketed):
    """Whole levels 0 to s = 2**(bits-1) - 1 of the bucket's norm, rounded up or down at random: unbiased.

    |v| / norm · s becomes one of its two neighbours, the upper one with the probability of the fraction.
    `norm` is "l2" or "max"; `sigmas` limits it to that many times the root mean square of all values, which
    larger values are clipped to.
    """

    kind: ClassVar[str] = "uniform"
    wire_id: ClassVar[int] = 4
    bits: int
    norm: str = "l2"
    bucket: int = 512
    sigmas: float | None = None

    def __post_init__(self) -> None:
        self._check(2, 8)
        if self.norm not in ("l2", "max"):
            raise ValueError(f'norm must be "l2" or "max"; got {self.norm!r}')
        if self.sigmas is not None:
            object.__setattr__(self, "sigmas", check.factor("sigmas", self.sigmas))

    @property
    def top(self) -> int:
        """s, the number of levels above 0."""
        return int(2 ** (self.bits - 1) - 1)

    @cached_property
    def levels(self) -> Floats:
        return _signed(np.arange(self.top + 1, dtype=np.float32) / np.float32(self.top))

    def _scales(self, values: Floats, bucket: int, context: Context) -> Floats:
        passes = context.passes
        scales = (passes.bucket_norm if self.norm == "l2" else passes.bucket_max)(values, bucket)
        if self.sigmas is not None:
            whole = float(passes.bucket_norm(values, max(values.size, 1)).sum())
            scales = np.minimum(scales, np.float32(self.sigmas * whole / math.sqrt(max(values.size, 1))))
        return scales

    def _codes(self, values: Floats, scales: Floats, bucket: int, context: Context) -> Codes:
        return context.passes.round_levels(values, scales, bucket, self.top, context.draw)


@dataclass(frozen=True)
class Sign(Bucketed):
    """One bit: the sign, that of 0 being +, times the bucket's mean magnitude, or with `scale` "one", 1."""

    kind: ClassVar[str] = "sign"
    wire_id: ClassVar[int] = 5
    bits: int = 1
    scale: str = "mean"
    bucket: int = 0

    def __post_init__(self) -> None:
        self._check(1, 1)
        if self.scale not in ("mean", "one"):
            raise ValueError(f'scale must be "mean" or "one"; got {self.scale!r}')

    @cached_property
    def levels(self) -> Floats:
        return np.array([1, -1], np.float32)

    def _scales(self, values: Floats, bucket: int, context: Context) -> Floats:
        if self.scale == "one":
            return np.ones(-(-values.size // bucket), np.float32)
        return context.passes.bucket_mean(values, bucket)

    def _codes(self, values: Floats, scales: Floats, bucket: int, context: Context) -> Codes:
        return context.passes.signs(values)


@dataclass(frozen=True)
class TwoMeans(Bucketed):
    """One bit, with a value for each sign: the mean of the values that are not negative, and of those that
    are. Scales: (mean, |mean|)."""

    kind: ClassVar[str] = "two_means"
    wire_id: ClassVar[int] = 6
    bits: int = 1
    bucket: int = 0

    def __post_init__(self) -> None:
        self._check(1, 1)
        check.whole("bucket", self.bucket, 0, 0)

    def scale_words(self, k: int) -> int:
        return 2

    def quantize(self, values: Floats, context: Any = None) -> tuple[Codes, Floats]:
        means = np.array(context.passes.class_means(values), np.float32)
        return context.passes.signs(values), means

    def table(self, scales: Floats, k: int) -> tuple[Floats, Floats, int]:
        _check_scales(scales, 2 if k else 0)
        return scales * np.array([1, -1], np.float32), np.ones(min(k, 1), np.float32), max(k, 1)


@dataclass(frozen=True)
class DynamicTree(Bucketed):
    """Eight bits: a sign and seven of a dynamic tree, which trade range for precision; scale: the largest
    magnitude. Each becomes the nearest level.

    The zeros that lead the seven bits are a decimal exponent, the first 1 ends it, and the r bits behind it
    number the middles of 2**r equal parts of [0.1, 1]. Seven zeros are 0.
    """

    kind: ClassVar[str] = "dynamic_tree"
    wire_id: ClassVar[int] = 7
    bits: int = 8
    bucket: int = 0

    def __post_init__(self) -> None:
        self._check(8, 8)

    @cached_property
    def levels(self) -> Floats:
        return _signed(_tree())

    def _scales(self, values: Floats, bucket: int, context: Context) -> Floats:
        return context.passes.bucket_max(values, bucket)

    def _codes(self, values: Floats, scales: Floats, bucket: int, context: Context) -> Codes:
        tree = _tree()
        edges = (tree[:-1] + tree[1:]) * np.float32(0.5)
        return context.passes.nearest_levels(values, scales, bucket, edges)


@dataclass(frozen=True)
class PowerOfTwo:
    """Nine bits: the sign and the exponent of float32, rounded up or down at random: unbiased.

    |v| = 2^e · (1 + f) becomes 2^(e+1) with probability f, and 2^e else; below 2^-126 it becomes 2^-126 or 0.
    Only above 2^127, which float32 cannot double, it is always rounded down.
    """

    kind: ClassVar[str] = "power_of_two"
    wire_id: ClassVar[int] = 8
    holds_zero: ClassVar[bool] = True
    bits: int = 9

    def __post_init__(self) -> None:
        check.whole("bits", self.bits, 9, 9)

    def scale_words(self, k: int) -> int:
        return 0

    def quantize(self, values: Floats, context: Any = None) -> tuple[Codes, Floats]:
        return context.passes.round_powers(values, context.draw), np.zeros(0, np.float32)

    def dequantize(self, codes: Codes, scales: Floats, factor: float = 1.0) -> Floats:
        codes = codes.astype(np.uint32)
        if (codes >> 1 == 0xFF).any():
            raise ValueError("a value is not finite")
        return np.float32(factor) * ((codes & 1) << 31 | codes >> 1 << 23).view(np.float32)


def _check_scales(scales: Floats, used: int) -> None:
    if not np.isfinite(scales).all() or np.signbit(scales).any():
        raise ValueError("a scale is not finite, or below 0")
    if scales[used:].any():
        raise ValueError("a scale that no value has is not 0")


def _signed(levels: Floats) -> Floats:
    """Level j at 2·j, and its negative at 2·j + 1."""
    return np.stack([levels, -levels], axis=1).ravel()


def _tree() -> Floats:
    levels = [0.0]
    for zeros in range(6, -1, -1):
        parts = 2 ** (6 - zeros)
        levels += [10.0**-zeros * (0.1 + 0.9 * (j + 0.5) / parts) for j in range(parts)]
    return np.array(levels, np.float32)
