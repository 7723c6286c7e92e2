"""Bit fields: unsigned integers of a fixed width, one after the other in a byte string.

Field i occupies the bits [i·width, (i+1)·width) of the stream, least significant bit first; bit j of the
stream is bit j mod 8 of byte j div 8.

>>> pack(np.array([1, 2, 3]), 4).tolist()
[33, 3]
>>> unpack(np.array([33, 3], np.uint8), 4, 3).tolist()
[1, 2, 3]
"""

from __future__ import annotations

import numpy as np

from .types import Bytes, Codes

MAX_WIDTH = 63


def packed_bytes(count: int, width: int) -> int:
    """The number of bytes that `count` fields of `width` bits take."""
    return (count * width + 7) // 8


def pack(values: Codes, width: int) -> Bytes:
    """Pack unsigned integers (count,), each below 2**width, into uint8 (packed_bytes(count, width),).

    Bits behind the last field are zero. `width` is 0…63; at width 0 there is nothing to store.
    """
    _check_width(width)
    octets = np.ascontiguousarray(values, dtype="<u8").view(np.uint8).reshape(-1, 8)
    return np.packbits(np.unpackbits(octets, axis=1, count=width, bitorder="little"), bitorder="little")


def unpack(buffer: Bytes, width: int, count: int) -> Codes:
    """Read `count` fields of `width` bits from uint8 (≥ packed_bytes,) as uint64 (count,)."""
    _check_width(width)
    if buffer.size < packed_bytes(count, width):
        raise ValueError(f"{count} fields of {width} bits need more than {buffer.size} bytes")
    octets = np.zeros((count, 8), np.uint8)
    if width and count:
        fields = np.unpackbits(buffer, count=count * width, bitorder="little").reshape(count, width)
        octets[:, : packed_bytes(1, width)] = np.packbits(fields, axis=1, bitorder="little")
    return octets.view("<u8").reshape(count).astype(np.uint64, copy=False)


def _check_width(width: int) -> None:
    if not 0 <= width <= MAX_WIDTH:
        raise ValueError(f"width must be 0 to {MAX_WIDTH} bits; got {width}")
