"""The wire format: one self-describing uint8 buffer per tensor. Normative: `docs/wire-format.md`."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from . import bits, elias_fano
from .quantize import BFloat16, Float32, Geometric, Quantizer, SignMean
from .types import Bytes, Floats, Indices

MAGIC, VERSION = b"HGC", 1
MAX_ENTRIES = 2**31 - 1
METHOD_IDS = {"custom": 0, "hgc": 1}
ALL, ELIAS_FANO = 0, 1

_HEADER = struct.Struct("<3sBBBBBII")
_METHOD_NAMES = {number: name for name, number in METHOD_IDS.items()}
_FIXED: dict[int, Quantizer] = {part.wire_id: part() for part in (Float32, BFloat16, SignMean)}


class PayloadError(ValueError):
    """The bytes are no payload of this format, or not one of the tensor that was expected."""


class Header(NamedTuple):
    """The first 16 bytes: `k` slots out of `n` entries, and how their positions and values are written."""

    method: str
    index_kind: int
    quantizer: Quantizer
    n: int
    k: int

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
    def sections(self) -> tuple[int, int, int, int]:
        """Where scales, high bits and fields begin, and where the payload ends."""
        scales = _HEADER.size
        high = scales + 4 * self.quantizer.scale_count
        fields = high + _whole_words(self.high_bits)
        return scales, high, fields, fields + _whole_words(self.k * self.field_bits)


@dataclass(frozen=True)
class Summary:
    """What a payload holds: `method`, `n` entries, `k` slots of which `kept` are used, `bits` per value, and
    its bytes by purpose (a field that holds index and value bits is divided between the two)."""

    method: str
    n: int
    k: int
    kept: int
    bits: int
    header_bytes: int
    index_bytes: int
    value_bytes: int
    total_bytes: int


def layout(n: int, k: int, quantizer: Quantizer, method: str = "custom") -> Header:
    """The header of a payload with k slots for n entries."""
    index_kind = ALL if k == n and quantizer.holds_zero else ELIAS_FANO
    return Header(method, index_kind, quantizer, n, k)


def payload_bytes(n: int, k: int, quantizer: Quantizer) -> int:
    """The size of a payload with k slots for n entries."""
    return layout(n, k, quantizer).sections[-1]


def pack(header: Header, indices: Indices, codes: np.ndarray, scales: Floats) -> Bytes:
    """Write a payload: ascending positions (m ≤ k,), their codes (m,) and the quantizer's scales."""
    at_scales, at_high, at_fields, end = header.sections
    payload = np.zeros(end, np.uint8)
    quantizer = header.quantizer
    head = _HEADER.pack(
        MAGIC,
        VERSION,
        METHOD_IDS.get(header.method, 0),
        header.index_kind,
        quantizer.wire_id,
        quantizer.bits,
        header.n,
        header.k,
    )
    payload[:at_scales] = np.frombuffer(head, np.uint8)
    payload[at_scales:at_high] = scales.astype("<f4").view(np.uint8)
    fields = codes.astype(np.uint64)
    if header.index_kind == ELIAS_FANO:
        high = elias_fano.pack_high(indices, header.n, header.k)
        payload[at_high : at_high + high.size] = high
        mask = np.uint64((1 << header.low_bits) - 1)
        fields = indices.astype(np.uint64) & mask | fields << np.uint64(header.low_bits)
    packed = bits.pack(fields, header.field_bits)
    payload[at_fields : at_fields + packed.size] = packed
    return payload


def check_buffer(buffer: Bytes) -> None:
    """Refuse what is no array of bytes. Raises PayloadError."""
    if not isinstance(buffer, np.ndarray) or buffer.dtype != np.uint8 or buffer.ndim != 1:
        raise PayloadError(f"a payload is a one-dimensional uint8 array; got {buffer!r:.40}")


def read_header(buffer: Bytes) -> Header:
    """The header at the start of a buffer that may hold more behind the payload."""
    check_buffer(buffer)
    if buffer.size < _HEADER.size:
        raise PayloadError(f"a payload has at least {_HEADER.size} bytes; got {buffer.size}")
    fields = _HEADER.unpack(buffer[: _HEADER.size].tobytes())
    magic, version, method, index_kind, value_kind, value_bits, n, k = fields
    if magic != MAGIC or version != VERSION:
        raise PayloadError(
            f"a payload starts with {MAGIC!r} and version {VERSION}; got {magic!r} and {version}"
        )
    if value_kind == Geometric.wire_id and 2 <= value_bits <= 8:
        quantizer: Quantizer = Geometric(value_bits)
    elif value_kind in _FIXED and _FIXED[value_kind].bits == value_bits:
        quantizer = _FIXED[value_kind]
    else:
        raise PayloadError(f"value kind {value_kind} with {value_bits} bits is none of version {VERSION}")
    if method not in _METHOD_NAMES or n > MAX_ENTRIES or not (0 < k <= n or k == n == 0):
        raise PayloadError(f"method {method}, {n} entries or {k} slots is none of version {VERSION}")
    header = layout(n, k, quantizer, _METHOD_NAMES[method])
    if header.index_kind != index_kind:
        raise PayloadError(f"{k} of {n} entries take index kind {header.index_kind}; got {index_kind}")
    if buffer.size < header.sections[-1]:
        raise PayloadError(f"{k} of {n} entries take {header.sections[-1]} bytes; got {buffer.size}")
    return header


def check_whole(payload: Bytes) -> Header:
    """The header of a buffer that holds one payload and nothing else. Raises PayloadError."""
    header = read_header(payload)
    end = header.sections[-1]
    if payload.size != end:
        raise PayloadError(f"{header.k} of {header.n} entries take {end} bytes; got {payload.size}")
    return header


def unpack(payload: Bytes) -> tuple[Header, Indices, Floats]:
    """Read a payload: its header, the ascending positions (m,) and the values (m,).

    Every bit is accounted for: what `pack` would not write is refused. Raises PayloadError.
    """
    header = check_whole(payload)
    at_scales, at_high, at_fields, _ = header.sections
    fields = bits.unpack(payload[at_fields:], header.field_bits, header.k)
    scales = payload[at_scales:at_high].copy().view("<f4").astype(np.float32)
    codes = fields >> np.uint64(header.low_bits)
    try:
        if header.index_kind == ALL:
            indices = np.arange(header.n)
        else:
            high_bytes = bits.packed_bytes(header.high_bits, 1)
            high = elias_fano.unpack_high(payload[at_high : at_high + high_bytes], header.n, header.k)
            low = fields[: high.size] & np.uint64((1 << header.low_bits) - 1)
            indices = high << header.low_bits | low.astype(np.int64)
            if indices.size and (indices[-1] >= header.n or (np.diff(indices) <= 0).any()):
                raise ValueError(f"positions do not ascend below {header.n}")
        codes = codes[: indices.size]
        values = header.quantizer.dequantize(codes, scales)
        if not np.array_equal(pack(header, indices, codes, scales), payload):
            raise ValueError("unused bits are set")
    except ValueError as error:
        raise PayloadError(f"a damaged payload of {header.k} of {header.n} entries: {error}") from error
    return header, indices, values


def split(buffer: Bytes) -> list[Bytes]:
    """Cut a buffer of payloads, one behind the other, into views of each."""
    payloads = []
    while buffer.size:
        end = read_header(buffer).sections[-1]
        payloads.append(buffer[:end])
        buffer = buffer[end:]
    return payloads


def inspect(payload: Bytes | bytes) -> Summary:
    """What a payload holds, given as uint8 (bytes,) or as bytes. Raises PayloadError where it is none."""
    if isinstance(payload, bytes):
        payload = np.frombuffer(payload, np.uint8)
    header, indices, _ = unpack(payload)
    index_bytes = bits.packed_bytes(header.high_bits + header.k * header.low_bits, 1)
    return Summary(
        header.method,
        header.n,
        header.k,
        indices.size,
        header.quantizer.bits,
        _HEADER.size,
        index_bytes,
        payload.size - _HEADER.size - index_bytes,
        payload.size,
    )


def _whole_words(bit_count: int) -> int:
    """The bytes of the 4-byte words that hold `bit_count` bits."""
    return -(-bit_count // 32) * 4
