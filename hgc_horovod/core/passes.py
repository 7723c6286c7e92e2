"""The loops over a whole tensor that methods are made of, in NumPy: they define every byte.

`Passes` is the interface that the native kernels fill as well. Values are finite float32 (n,), C-contiguous;
*buckets* are runs of `bucket` entries (the last one may be shorter), each with a scale of its own. A *code*
of a signed level is 2 · level, plus 1 where the value is negative.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from . import sums
from .bits import pack, unpack
from .random import Draw
from .types import Bytes, Floats, Indices

ByteCodes = NDArray[np.uint8]
PowerCodes = NDArray[np.uint16]
HISTOGRAM_BINS = 64
POWER_BITS = 9  # an exponent of float32 and a sign
MOST_LEVELS = 127  # whose codes are bytes
LARGEST = float(np.finfo(np.float32).max)


class Moments(NamedTuple):
    """The moving averages of a tensor's values and squares, float32 (n,), ‖mean‖² and Σ|square − mean²|."""

    mean: Floats
    square: Floats
    norm_squared: float
    spread: float


class Passes(Protocol):
    """See the functions of `NumPyPasses`."""

    def bucket_max(self, values: Floats, bucket: int) -> Floats: ...
    def bucket_norm(self, values: Floats, bucket: int) -> Floats: ...
    def bucket_mean(self, values: Floats, bucket: int) -> Floats: ...
    def class_means(self, values: Floats) -> tuple[float, float]: ...
    def sum_below(self, values: Floats, bound: float) -> tuple[int, float]: ...
    def moments(self, values: Floats, mean: Floats, square: Floats, decay: float) -> Moments: ...
    def log_histograms(self, values: Floats, block: int, top: int) -> NDArray[np.int64]: ...
    def signs(self, values: Floats) -> ByteCodes: ...
    def round_levels(
        self, values: Floats, scales: Floats, bucket: int, top: int, draw: Draw
    ) -> ByteCodes: ...
    def nearest_levels(self, values: Floats, scales: Floats, bucket: int, edges: Floats) -> ByteCodes: ...
    def round_powers(self, values: Floats, draw: Draw) -> PowerCodes: ...
    def at_least(self, values: Floats, limits: Floats, block: int) -> Indices: ...
    def lucky(self, values: Floats, factor: float, draw: Draw) -> Indices: ...
    def pack_codes(self, codes: ByteCodes, bits: int) -> Bytes: ...
    def add_codes(
        self, packed: Bytes, bits: int, levels: Floats, scales: Floats, bucket: int, out: Floats
    ) -> None: ...
    def pack_powers(self, codes: PowerCodes) -> Bytes: ...
    def add_powers(self, packed: Bytes, factor: float, out: Floats) -> None: ...
    def add_outer(self, left: Floats, right: Floats, factor: float, out: Floats) -> None: ...


class NumPyPasses:
    """See `Passes`."""

    def bucket_max(self, values: Floats, bucket: int) -> Floats:
        """The largest magnitude of each bucket, float32 (⌈n / bucket⌉,)."""
        largest: Floats = _in_buckets(np.abs(values), bucket).max(axis=1, initial=0)
        return largest

    def bucket_norm(self, values: Floats, bucket: int) -> Floats:
        """The L2 norm of each bucket, float32 (⌈n / bucket⌉,), from the order-independent sum, and no more
        than the largest float32."""
        norms = [np.sqrt(sums.square_sum(each)) for each in _parts(values, bucket)]
        return np.minimum(norms, LARGEST).astype(np.float32)

    def bucket_mean(self, values: Floats, bucket: int) -> Floats:
        """The mean magnitude of each bucket, float32 (⌈n / bucket⌉,), from the order-independent sum."""
        return np.array([sums.abs_sum(each) / each.size for each in _parts(values, bucket)], np.float32)

    def class_means(self, values: Floats) -> tuple[float, float]:
        """The mean magnitudes of the values that are not negative and of those that are; 0 of none."""
        negative = values < 0
        return _mean(values[~negative]), _mean(values[negative])

    def sum_below(self, values: Floats, bound: float) -> tuple[int, float]:
        """How many magnitudes are below a bound, and their order-independent sum."""
        below = values[np.abs(values) < np.float32(bound)]
        return below.size, sums.abs_sum(below)

    def moments(self, values: Floats, mean: Floats, square: Floats, decay: float) -> Moments:
        """decay · old + (1 − decay) · new of values and squares, every product and sum rounded to float32 and
        no larger than its largest, and what the averages sum up to. `square` is not negative."""
        old, new = np.float32(decay), np.float32(1 - decay)
        with np.errstate(over="ignore"):  # what overflows is cut
            mean = np.clip(old * mean + new * values, -LARGEST, LARGEST)
            square = np.minimum(old * square + new * np.minimum(values * values, LARGEST), LARGEST)
            spread = square - np.minimum(mean * mean, LARGEST)
        return Moments(mean, square, sums.square_sum(mean), sums.abs_sum(spread))

    def log_histograms(self, values: Floats, block: int, top: int) -> NDArray[np.int64]:
        """Of each block of entries, how many magnitudes lie in each of 64 bins, int64 (⌈n / block⌉, 64).

        There are two bins an octave, at 1 and 1.5 times a power of two: `half_octave` numbers them. The last
        one is `top` and all above, the first one all that is 63 or more below, zeros among them.
        """
        bins = np.clip(half_octave(values) - top + HISTOGRAM_BINS - 1, 0, HISTOGRAM_BINS - 1)
        blocks = -(-values.size // block)
        places = np.arange(values.size) // block * HISTOGRAM_BINS + bins
        return np.bincount(places, minlength=blocks * HISTOGRAM_BINS).reshape(blocks, HISTOGRAM_BINS)

    def signs(self, values: Floats) -> ByteCodes:
        """1 where a value is negative, 0 elsewhere, also for -0; uint8 (n,)."""
        return (values < 0).astype(np.uint8)

    def round_levels(self, values: Floats, scales: Floats, bucket: int, top: int, draw: Draw) -> ByteCodes:
        """Codes of whole levels up to `top`, at most 127, uint8 (n,): |v| / scale · top, rounded up with the
        probability of its fraction by one word of `draw` an entry, and down else. A level of 0 has no
        sign."""
        ratio = _ratios(values, scales, bucket)
        with np.errstate(over="ignore"):
            place = np.minimum(ratio * np.float32(top), np.float32(top))
        down = np.floor(place)
        chance = ((place - down) * np.float32(2**31)).astype(np.uint32)
        level = down.astype(np.uint8) + ((draw.words(values.size) >> 1) < chance)
        return _signed(level, values)

    def nearest_levels(self, values: Floats, scales: Floats, bucket: int, edges: Floats) -> ByteCodes:
        """Codes of the number of edges (ascending, at most 127) that |v| / scale reaches, uint8 (n,)."""
        level = np.searchsorted(edges, _ratios(values, scales, bucket), side="right")
        return _signed(level.astype(np.uint8), values)

    def round_powers(self, values: Floats, draw: Draw) -> PowerCodes:
        """Codes of powers of two, uint16 (n,): the level is the exponent of float32, and one more with the
        probability of the mantissa's fraction, but never that of infinity."""
        word = values.view(np.uint32)
        up = (draw.words(values.size) >> 9) < (word & 0x7FFFFF)
        exponent = np.minimum((word >> 23 & 0xFF) + up, 254)
        codes: PowerCodes = (exponent << 1 | (word >> 31) * (exponent > 0)).astype(np.uint16)
        return codes

    def at_least(self, values: Floats, limits: Floats, block: int) -> Indices:
        """The ascending positions of nonzero values whose magnitude reaches their block's limit."""
        magnitudes = np.abs(values)
        return np.flatnonzero((magnitudes >= _spread(limits, block, values.size)) & (magnitudes > 0))

    def lucky(self, values: Floats, factor: float, draw: Draw) -> Indices:
        """The ascending positions of values that are drawn with the probability min(1, factor · |v|), by one
        word of `draw` an entry. A factor beyond float32 is its largest, so that 0 keeps the probability 0."""
        with np.errstate(over="ignore"):
            chance = np.minimum(np.abs(values) * np.float32(min(factor, LARGEST)), np.float32(1))
        return np.flatnonzero((draw.words(values.size) >> 1) < (chance * np.float32(2**31)).astype(np.uint32))

    def pack_codes(self, codes: ByteCodes, bits: int) -> Bytes:
        """Dense bit fields: codes (n,) below 2**bits, bits 1 to 8, as uint8 (⌈n·bits / 8⌉,)."""
        return pack(codes.astype(np.uint64), bits)

    def add_codes(
        self, packed: Bytes, bits: int, levels: Floats, scales: Floats, bucket: int, out: Floats
    ) -> None:
        """out[i] += scales[i div bucket] · levels[code i], product and sum rounded to float32."""
        out += _spread(scales, bucket, out.size) * levels[unpack(packed, bits, out.size)]

    def pack_powers(self, codes: PowerCodes) -> Bytes:
        """The codes of `round_powers` in 9 bits each, uint8 (⌈9·n / 8⌉,)."""
        return pack(codes.astype(np.uint64), POWER_BITS)

    def add_powers(self, packed: Bytes, factor: float, out: Floats) -> None:
        """out[i] += factor · (the power of two of code i, 0 at level 0), rounded to float32 each."""
        codes = unpack(packed, POWER_BITS, out.size).astype(np.uint32)
        out += np.float32(factor) * (codes >> 1 << 23 | codes << 31).view(np.float32)

    def add_outer(self, left: Floats, right: Floats, factor: float, out: Floats) -> None:
        """out[i, j] += (factor · left[a, i]) · right[a, j], one a after the other, rounded to float32 each.

        `left` is (atoms, rows), `right` (atoms, columns) and `out` (rows · columns,), all float32.
        """
        table = out.reshape(left.shape[1], right.shape[1])
        for column, row in zip(np.float32(factor) * left, right, strict=True):
            table += column[:, None] * row


def half_octave(values: Floats) -> NDArray[np.int64]:
    """Twice the exponent of float32, plus 1 from 1.5 times the power of two upwards; int64."""
    return ((np.asarray(values, np.float32).view(np.uint32) & 0x7FFFFFFF) >> 22).astype(np.int64)


def _parts(values: Floats, bucket: int) -> list[Floats]:
    return [values[begin : begin + bucket] for begin in range(0, values.size, bucket)]


def _in_buckets(values: Floats, bucket: int) -> Floats:
    """(buckets, bucket), with zeros behind the end; a bucket of more than all values is one of all."""
    bucket = min(bucket, max(values.size, 1))
    padded = np.zeros(-(-values.size // bucket) * bucket, np.float32)
    padded[: values.size] = values
    return padded.reshape(-1, bucket)


def _spread(scales: Floats, bucket: int, n: int) -> Floats:
    return np.repeat(scales, bucket)[:n] if scales.size > 1 else np.broadcast_to(scales, (n,))


def _ratios(values: Floats, scales: Floats, bucket: int) -> Floats:
    """|v| / scale, and 0 where the scale is 0."""
    scale = _spread(scales, bucket, values.size)
    with np.errstate(over="ignore"):
        return np.divide(np.abs(values), scale, out=np.zeros(values.size, np.float32), where=scale > 0)


def _signed(level: ByteCodes, values: Floats) -> ByteCodes:
    codes: ByteCodes = np.bitwise_or(level << 1, (values < 0) & (level > 0), dtype=np.uint8)
    return codes


def _mean(values: Floats) -> float:
    return sums.abs_sum(values) / max(values.size, 1)
