"""The passes of `core.passes` in C++ (`csrc/`): the same bytes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..core import check
from ..core.bits import packed_bytes
from ..core.passes import (
    HISTOGRAM_BINS,
    LARGEST,
    MOST_LEVELS,
    POWER_BITS,
    ByteCodes,
    Moments,
    PowerCodes,
)
from ..core.random import Draw, Words
from ..core.types import Bytes, Floats, Indices
from . import library
from .calls import Native, address, expect_ok
from .interface import check_codes

_MAX, _NORM, _MEAN = range(3)  # hgc_scale of csrc/hgc.h
_HALF_OCTAVES = 512  # more than there are


class NativePasses(Native):
    """See `core.passes.NumPyPasses`, and `Native` for the arguments.

    Arrays must be contiguous, of the dtypes and sizes that are said there: ValueError where one is not.
    """

    def words(self, draw: Draw, count: int) -> Words:
        """See `Draw.words`."""
        out = np.empty(check.whole("count", count, 0), np.uint32)
        self._run("draw_words", count, _draw(draw), count, address(out))
        return out

    def bucket_max(self, values: Floats, bucket: int) -> Floats:
        return self._scales(values, bucket, _MAX)

    def bucket_norm(self, values: Floats, bucket: int) -> Floats:
        return self._scales(values, bucket, _NORM)

    def bucket_mean(self, values: Floats, bucket: int) -> Floats:
        return self._scales(values, bucket, _MEAN)

    def class_means(self, values: Floats) -> tuple[float, float]:
        out = (ctypes.c_double * 2)()
        self._run("class_means", values.size, *_given(values), ctypes.addressof(out))
        return out[0], out[1]

    def sum_below(self, values: Floats, bound: float) -> tuple[int, float]:
        count, total = ctypes.c_int64(), ctypes.c_double()
        to = ctypes.addressof(count), ctypes.addressof(total)
        self._run("sum_below", values.size, *_given(values), bound, *to)
        return count.value, total.value

    def moments(self, values: Floats, mean: Floats, square: Floats, decay: float) -> Moments:
        n, sums = values.size, (ctypes.c_double * 2)()
        before = _array("mean", mean, np.float32, n), _array("square", square, np.float32, n)
        new_mean, new_square = np.empty(n, np.float32), np.empty(n, np.float32)
        to = address(new_mean), address(new_square), ctypes.addressof(sums)
        self._run("moments", n, *_given(values), decay, 1 - decay, *before, *to)
        return Moments(new_mean, new_square, sums[0], sums[1])

    def log_histograms(self, values: Floats, block: int, top: int) -> NDArray[np.int64]:
        n, block = values.size, _bucket("block", block, values.size)
        first = int(min(max(top - (HISTOGRAM_BINS - 1), -_HALF_OCTAVES), _HALF_OCTAVES))
        out = np.empty((-(-n // block), HISTOGRAM_BINS), np.int64)
        self._run("log_histograms", n, *_given(values), block, first, address(out))
        return out

    def signs(self, values: Floats) -> ByteCodes:
        out = np.empty(values.size, np.uint8)
        self._run("signs", values.size, *_given(values), address(out))
        return out

    def round_levels(self, values: Floats, scales: Floats, bucket: int, top: int, draw: Draw) -> ByteCodes:
        top = check.whole("top", top, 1, MOST_LEVELS)
        buckets, out = _buckets("scales", scales, bucket, values.size), np.empty(values.size, np.uint8)
        given = *_given(values), *buckets, top, _draw(draw)
        self._run("round_levels", values.size, *given, address(out))
        return out

    def nearest_levels(self, values: Floats, scales: Floats, bucket: int, edges: Floats) -> ByteCodes:
        check.whole("the number of edges", edges.size, 0, MOST_LEVELS)
        buckets, out = _buckets("scales", scales, bucket, values.size), np.empty(values.size, np.uint8)
        given = *_given(values), *buckets, _array("edges", edges, np.float32, edges.size), edges.size
        self._run("nearest_levels", values.size, *given, address(out))
        return out

    def round_powers(self, values: Floats, draw: Draw) -> PowerCodes:
        out = np.empty(values.size, np.uint16)
        self._run("round_powers", values.size, *_given(values), _draw(draw), address(out))
        return out

    def at_least(self, values: Floats, limits: Floats, block: int) -> Indices:
        return self._picked("mark_at_least", values, *_buckets("limits", limits, block, values.size))

    def lucky(self, values: Floats, factor: float, draw: Draw) -> Indices:
        return self._picked("mark_lucky", values, min(factor, LARGEST), _draw(draw))

    def pack_powers(self, codes: PowerCodes) -> Bytes:
        out = np.empty(packed_bytes(codes.size, POWER_BITS), np.uint8)
        start, threads = _array("codes", codes, np.uint16, codes.size), self._threads(codes.size)
        expect_ok(self._calls.hgc_pack_powers(start, codes.size, address(out), threads))
        return out

    def add_powers(self, packed: Bytes, factor: float, out: Floats) -> None:
        start = _array("packed", packed, np.uint8, packed_bytes(out.size, POWER_BITS))
        self._run("add_powers", out.size, start, out.size, factor, _written(out))

    def add_outer(self, left: Floats, right: Floats, factor: float, out: Floats) -> None:
        (atoms, rows), (others, columns) = left.shape, right.shape
        if atoms != others or out.size != rows * columns:
            raise ValueError(f"left, right and out do not fit: {left.shape}, {right.shape}, {out.shape}")
        factors = (
            _array("left", left.reshape(-1), np.float32, atoms * rows),
            _array("right", right.reshape(-1), np.float32, atoms * columns),
        )
        self._run("add_outer", out.size, *factors, atoms, rows, columns, factor, _written(out))

    def pack_codes(self, codes: NDArray[np.uint8], bits: int) -> Bytes:
        check.whole("bits", bits, 1, 8)
        codes = np.ascontiguousarray(codes, np.uint8)
        packed = np.empty(packed_bytes(codes.size, bits), np.uint8)
        threads = self._threads(codes.size)
        expect_ok(self._calls.hgc_pack_codes(address(codes), codes.size, bits, address(packed), threads))
        return packed

    def add_codes(
        self, packed: Bytes, bits: int, levels: Floats, scales: Floats, bucket: int, out: Floats
    ) -> None:
        bucket = check_codes(packed, bits, levels, scales, bucket, out)
        expect_ok(
            self._calls.hgc_add_codes(
                address(packed),
                out.size,
                bits,
                address(levels),
                address(scales),
                bucket,
                address(out),
                self._path,
                self._threads(out.size),
            )
        )

    def _run(self, name: str, size: int, *arguments: Any) -> None:
        expect_ok(getattr(self._calls, f"hgc_{name}")(*arguments, self._path, self._threads(size)))

    def _scales(self, values: Floats, bucket: int, kind: int) -> Floats:
        n, bucket = values.size, _bucket("bucket", bucket, values.size)
        out = np.empty(-(-n // bucket), np.float32)
        self._run("bucket_scales", n, *_given(values), bucket, kind, address(out))
        return out

    def _picked(self, name: str, values: Floats, *arguments: Any) -> Indices:
        n, threads = values.size, self._threads(values.size)
        marks, counts = np.empty(-(-n // 64), np.uint64), np.empty(threads, np.int64)
        to = address(marks), address(counts)
        self._run(name, n, *_given(values), *arguments, *to)
        out = np.empty(int(counts.sum()), np.int64)
        expect_ok(self._calls.hgc_positions(to[0], n, to[1], address(out), threads))
        return out


def _given(values: Floats) -> tuple[int, int]:
    return _array("values", values, np.float32, values.size), values.size


def _array(name: str, array: NDArray[Any], dtype: DTypeLike, size: int) -> int:
    """The address of an array that is what the library takes it for."""
    flags = array.flags
    if array.dtype != dtype or array.shape != (size,) or not (flags.c_contiguous and flags.aligned):
        wanted = f"contiguous {np.dtype(dtype)} of shape ({size},)"
        raise ValueError(f"{name} must be {wanted}; got {array.dtype}, {array.shape}")
    return address(array)


def _written(out: Floats) -> int:
    if not out.flags.writeable:
        raise ValueError("out must not be read-only")
    return _array("out", out, np.float32, out.size)


def _bucket(name: str, bucket: int, n: int) -> int:
    """No longer than the tensor, so that it fits the library's integers."""
    return min(check.whole(name, bucket, 1), max(n, 1))


def _buckets(name: str, scales: Floats, bucket: int, n: int) -> tuple[int, int]:
    """A scale for each bucket, and the length of one. A single scale is that of all entries."""
    bucket = max(n, 1) if scales.size == 1 else _bucket("bucket", bucket, n)
    return _array(name, scales, np.float32, -(-n // bucket) if scales.size != 1 else 1), bucket


def _draw(draw: Draw) -> Any:
    """hgc_draw of a draw, as an argument that keeps it alive."""
    step, rank = draw.step & 0xFFFFFFFF, draw.rank & 0xFFFFFFFF
    return ctypes.byref(library.Draw((ctypes.c_uint32 * 2)(*draw.key), step, draw.stream, rank))
