"""Elias–Fano index sets: up to k ascending positions out of n in about 2 + log2(n/k) bits each.

The low ``l = floor(log2(n/k))`` bits of each position are stored as they are. The high bits of the i-th
position, h, set bit ``h + i`` of a vector of ``k + ceil(n / 2**l)`` bits. The size depends on n and k alone,
and both directions are a scan, not a serial decoding. A set with fewer than k members leaves bits unset.

Source: P. Elias, Efficient storage and retrieval by content and address of static files, JACM 1974.
"""

from __future__ import annotations

import numpy as np

from . import bits
from .types import Bytes, Indices


def low_bits(n: int, k: int) -> int:
    """l, the number of low bits that are stored verbatim: floor(log2(n/k)), and 0 where k is 0."""
    return (n // k).bit_length() - 1 if k else 0


def high_bits(n: int, k: int) -> int:
    """The length of the high-bit vector in bits, and 0 where k is 0."""
    return k + -(-n >> low_bits(n, k)) if k else 0


def pack_high(indices: Indices, n: int, k: int) -> Bytes:
    """The high-bit vector of m ≤ k strictly ascending positions below n, as uint8 (⌈high_bits / 8⌉,)."""
    vector = np.zeros(high_bits(n, k), np.uint8)
    vector[(indices >> low_bits(n, k)) + np.arange(indices.size)] = 1
    return np.packbits(vector, bitorder="little")


def unpack_high(buffer: Bytes, n: int, k: int) -> Indices:
    """The high parts of the positions, int64 (m,), from a high-bit vector; ValueError where m > k."""
    length = high_bits(n, k)
    if buffer.size != bits.packed_bytes(length, 1):
        raise ValueError(f"the high bits of {k} of {n} positions take {length} bits; got {buffer.size} bytes")
    ones = np.flatnonzero(np.unpackbits(buffer, bitorder="little"))
    if ones.size > k or (ones.size and ones[-1] >= length):
        raise ValueError(f"the high-bit vector holds {ones.size} positions where at most {k} fit")
    return ones - np.arange(ones.size)
