"""A payload's header, and where its sections stand. Normative: `docs/wire-format.md`."""

from __future__ import annotations

import contextlib
import struct
from typing import NamedTuple

import numpy as np

from . import check, elias_fano
from .bucketed import Bucketed, DynamicTree, PowerOfTwo, Sign, TwoMeans, Uniform
from .matrices import Factors
from .quantize import BFloat16, Float32, Geometric, Quantizer, SignMean
from .types import Bytes

MAGIC, VERSION = b"HGC", 1
MAX_ENTRIES = 2**31 - 1
METHOD_NAMES = (
    *(
        "custom",
        "hgc",
        "adaqs",
        "dqsgd",
        "oland_raj",
        "mqgrad",
        "aiot_partition",
        "qsgd",
        "terngrad",
        "signsgd",
    ),
    *("ef_signsgd", "onebit", "strom", "gradient_dropping", "dgc", "memsgd", "adacomp", "eightbit", "atomo"),
    *("wangni", "natural", "powersgd", "budget"),
)
METHOD_IDS = {name: number for number, name in enumerate(METHOD_NAMES)}
ALL, ELIAS_FANO, OUTER = 0, 1, 2

HEADER = struct.Struct("<3sBBBBBII")
_FIXED: dict[int, Quantizer] = {
    part.wire_id: part() for part in (Float32, BFloat16, SignMean, TwoMeans, PowerOfTwo)
}
_BUCKETED: dict[int, type] = {part.wire_id: part for part in (Uniform, Sign, DynamicTree)}
_ADDED: dict[int, type] = {}
ADDED_IDS = range(128, 256)  # value kinds that are not this package's


class PayloadError(ValueError):
    """The bytes are no payload of this format, or not one of the tensor that was expected."""


class Header(NamedTuple):
    """The first 16 bytes: `k` slots out of `n` entries, and how their positions and values are written; and
    the number of `notes` behind them."""

    method: str
    index_kind: int
    quantizer: Quantizer
    n: int
    k: int
    notes: int = 0

    @property
    def low_bits(self) -> int:
        return elias_fano.low_bits(self.n, self.k) if self.index_kind == ELIAS_FANO else 0

    @property
    def high_bits(self) -> int:
        return elias_fano.high_bits(self.n, self.k) if self.index_kind == ELIAS_FANO else 0

    @property
    def field_bits(self) -> int:
        return self.low_bits + self.quantizer.bits

    @property
    def fields(self) -> int:
        """How many fields there are: one a slot, or the entries of all factors."""
        if isinstance(self.quantizer, Factors):
            return self.k * (self.quantizer.rows + self.n // self.quantizer.rows)
        return self.k

    @property
    def sections(self) -> tuple[int, int, int, int]:
        """Where scales, high bits and fields begin, and where the payload ends."""
        scales = HEADER.size + 4 * self.notes
        high = scales + 4 * self.quantizer.scale_words(self.k)
        fields = high + _whole_words(self.high_bits)
        return scales, high, fields, fields + _whole_words(self.fields * self.field_bits)


def layout(n: int, k: int, quantizer: Quantizer, method: str = "custom", notes: int = 0) -> Header:
    """The header of a payload with k slots for n entries."""
    if isinstance(quantizer, Factors):
        index_kind = OUTER
    else:
        index_kind = ALL if k == n and quantizer.holds_zero else ELIAS_FANO
    return Header(method, index_kind, quantizer, n, k, notes)


def payload_bytes(n: int, k: int, quantizer: Quantizer) -> int:
    """The size of a payload with k slots for n entries."""
    return layout(n, k, quantizer).sections[-1]


def check_buffer(buffer: Bytes) -> None:
    """Refuse what is no array of bytes. Raises PayloadError."""
    if not isinstance(buffer, np.ndarray) or buffer.dtype != np.uint8 or buffer.ndim != 1:
        raise PayloadError(f"a payload is a one-dimensional uint8 array; got {buffer!r:.40}")


def read_header(buffer: Bytes) -> Header:
    """The header at the start of a buffer that may hold more behind the payload."""
    check_buffer(buffer)
    if buffer.size < HEADER.size:
        raise PayloadError(f"a payload has at least {HEADER.size} bytes; got {buffer.size}")
    fields = HEADER.unpack(buffer[: HEADER.size].tobytes())
    magic, version, method, index_kind, value_kind, value_bits, n, k = fields
    if magic != MAGIC or version != VERSION:
        raise PayloadError(
            f"a payload starts with {MAGIC!r} and version {VERSION}; got {magic!r} and {version}"
        )
    notes, index_kind = divmod(index_kind, 16)
    if method >= len(METHOD_NAMES) or n > MAX_ENTRIES or not (0 < k <= n or k == n == 0):
        raise PayloadError(f"method {method}, {n} entries or {k} slots is none of version {VERSION}")
    first = buffer[HEADER.size + 4 * notes :][:4].tobytes()  # of the scales
    quantizer = _quantizer(value_kind, value_bits, int.from_bytes(first, "little"), n)
    if quantizer is None:
        raise PayloadError(f"value kind {value_kind} with {value_bits} bits is none of version {VERSION}")
    header = layout(n, k, quantizer, METHOD_NAMES[method], notes)
    if header.index_kind != index_kind:
        raise PayloadError(f"{k} of {n} entries take index kind {header.index_kind}; got {index_kind}")
    if buffer.size < header.sections[-1]:
        raise PayloadError(f"{k} of {n} entries take {header.sections[-1]} bytes; got {buffer.size}")
    return header


def _quantizer(kind: int, value_bits: int, word: int, n: int) -> Quantizer | None:
    """The quantizer of these numbers, if there is one; `word` is its first scale's."""
    if kind == Geometric.wire_id and 2 <= value_bits <= 8:
        return Geometric(value_bits)
    if kind in _FIXED and _FIXED[kind].bits == value_bits:
        return _FIXED[kind]
    if kind in _BUCKETED and word <= MAX_ENTRIES:
        with contextlib.suppress(ValueError):
            quantizer: Quantizer = _BUCKETED[kind](bits=value_bits, bucket=word)
            return quantizer
    if kind in _ADDED:
        with contextlib.suppress(ValueError):
            added: Quantizer = _ADDED[kind](bits=value_bits)
            return added
    if kind == Factors.wire_id and value_bits == 32 and 0 < word <= max(n, 1) and n % word == 0:
        return Factors(rows=word)
    return None


def add_quantizer(part: type) -> None:
    """Let payloads hold the codes of a quantizer that is not this package's; ValueError where its `wire_id`
    is not one of `ADDED_IDS` or another quantizer's."""
    number = check.whole("wire_id", getattr(part, "wire_id", None), ADDED_IDS[0], ADDED_IDS[-1])
    table = _BUCKETED if issubclass(part, Bucketed) else _ADDED
    for other in (_BUCKETED, _ADDED):
        if other.get(number, part) is not part:
            raise ValueError(f"wire_id {number} is that of {other[number].__name__}")
    table[number] = part


def _whole_words(bit_count: int) -> int:
    """The bytes of the 4-byte words that hold `bit_count` bits."""
    return -(-bit_count // 32) * 4
