"""Payloads, written and read: one self-describing uint8 buffer per tensor; docs/wire-format.md defines it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from . import bits, elias_fano
from .bucketed import Bucketed, PowerOfTwo, TwoMeans
from .header import (
    ALL as ALL,
)
from .header import (
    ELIAS_FANO as ELIAS_FANO,
)
from .header import (
    HEADER as HEADER,
)
from .header import (
    MAGIC as MAGIC,
)
from .header import (
    MAX_ENTRIES as MAX_ENTRIES,
)
from .header import (
    METHOD_IDS as METHOD_IDS,
)
from .header import (
    METHOD_NAMES as METHOD_NAMES,
)
from .header import (
    OUTER as OUTER,
)
from .header import (
    VERSION as VERSION,
)
from .header import (
    Header as Header,
)
from .header import (
    PayloadError as PayloadError,
)
from .header import (
    add_quantizer as add_quantizer,
)
from .header import (
    check_buffer as check_buffer,
)
from .header import (
    layout as layout,
)
from .header import (
    payload_bytes as payload_bytes,
)
from .header import (
    read_header as read_header,
)
from .matrices import Factors
from .passes import Passes
from .quantize import Quantizer
from .types import Bytes, Floats, Indices

_NONE = np.zeros(0, np.float32)


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


def pack(header: Header, indices: Indices, codes: np.ndarray, scales: Floats, notes: Floats = _NONE) -> Bytes:
    """Write a payload: ascending positions (m ≤ k,), their codes (m,), scales and notes."""
    payload = begin(header, scales, notes)
    _, at_high, at_fields, _ = header.sections
    fields = codes.astype(np.uint64)
    if header.index_kind == ELIAS_FANO:
        high = elias_fano.pack_high(indices, header.n, header.k)
        payload[at_high : at_high + high.size] = high
        mask = np.uint64((1 << header.low_bits) - 1)
        fields = indices.astype(np.uint64) & mask | fields << np.uint64(header.low_bits)
    packed = bits.pack(fields, header.field_bits)
    payload[at_fields : at_fields + packed.size] = packed
    return payload


def begin(header: Header, scales: Floats, notes: Floats = _NONE) -> Bytes:
    """A payload without positions and codes, zeros in their place. Scales of unused buckets may lack."""
    at_scales, _, _, end = header.sections
    payload = np.zeros(end, np.uint8)
    quantizer = header.quantizer
    head = HEADER.pack(
        MAGIC,
        VERSION,
        METHOD_IDS.get(header.method, 0),
        header.index_kind | header.notes << 4,
        quantizer.wire_id,
        quantizer.bits,
        header.n,
        header.k,
    )
    payload[: HEADER.size] = np.frombuffer(head, np.uint8)
    payload[HEADER.size : at_scales] = notes.astype("<f4").view(np.uint8)
    words = scales.astype("<f4").view(np.uint8)
    payload[at_scales : at_scales + words.size] = words
    return payload


def nothing(n: int, k: int, quantizer: Quantizer, method: str, notes: int, rows: int) -> Bytes:
    """A payload of zeros."""
    scales = np.zeros(quantizer.scale_words(k), np.float32)
    if isinstance(quantizer, Factors):
        k, quantizer = min(n, 1), Factors(rows=rows if n else 1)
        scales = quantizer.word
    elif isinstance(quantizer, Bucketed) and not isinstance(quantizer, TwoMeans):
        scales[:1] = quantizer.word
    return begin(layout(n, k, quantizer, method, notes), scales, np.zeros(notes, np.float32))


def check_whole(payload: Bytes) -> Header:
    """The header of a buffer that holds one payload and nothing else. Raises PayloadError."""
    header = read_header(payload)
    end = header.sections[-1]
    if payload.size != end:
        raise PayloadError(f"{header.k} of {header.n} entries take {end} bytes; got {payload.size}")
    return header


def read_notes(payload: Bytes) -> Floats:
    """The notes of a payload that `read_header` takes, float32 (notes,)."""
    header = read_header(payload)
    return payload[HEADER.size : header.sections[0]].copy().view("<f4").astype(np.float32)


def read_scales(header: Header, payload: Bytes) -> Floats:
    """The scales of a payload with this header, float32 (scales,)."""
    at_scales, at_high, _, _ = header.sections
    return payload[at_scales:at_high].copy().view("<f4").astype(np.float32)


def packed_fields(header: Header, payload: Bytes) -> Bytes:
    """The fields of a payload with this header, without what fills them up to whole words."""
    at = header.sections[2]
    return payload[at : at + bits.packed_bytes(header.fields * header.field_bits, 1)]


def check_table(header: Header, payload: Bytes) -> tuple[Floats, Floats, int]:
    """Levels, scales and bucket of a payload of all entries in bucketed codes. Raises PayloadError where it
    is damaged."""
    quantizer = header.quantizer
    assert isinstance(quantizer, Bucketed)
    with _named(header):
        _check_rest(header, payload)
        return quantizer.table(read_scales(header, payload), header.k)


def check_powers(header: Header, payload: Bytes, passes: Passes) -> Floats:
    """The values of a payload of all entries in powers of two. Raises PayloadError where it is damaged."""
    values = np.zeros(header.n, np.float32)
    with _named(header):
        _check_rest(header, payload)
        passes.add_powers(packed_fields(header, payload), 1.0, values)
        if not np.isfinite(values).all():
            raise ValueError("a value is not finite")
    return values


def _check_rest(header: Header, payload: Bytes) -> None:
    """ValueError where bits behind the last field are set, or a note is not finite."""
    used = header.fields * header.field_bits
    rest = payload[header.sections[2] + used // 8 :]
    if rest.size and (rest[0] >> used % 8 or rest[1:].any()):
        raise ValueError("unused bits are set")
    if not np.isfinite(read_notes(payload)).all():
        raise ValueError("a note is not finite")


@contextlib.contextmanager
def _named(header: Header) -> Iterator[None]:
    """Errors in this payload as PayloadError."""
    try:
        yield
    except ValueError as error:
        raise PayloadError(f"a damaged payload of {header.k} of {header.n} entries: {error}") from error


def unpack(payload: Bytes, factor: float = 1.0) -> tuple[Header, Indices, Floats]:
    """Read a payload: its header, the ascending positions (m,) and the values (m,), times `factor`.

    Every bit is accounted for: what `pack` would not write is refused. Raises PayloadError. Factors of outer
    products are values at the positions 0, 1, ...
    """
    header = check_whole(payload)
    _, at_high, at_fields, _ = header.sections
    fields = bits.unpack(payload[at_fields:], header.field_bits, header.fields)
    scales = read_scales(header, payload)
    codes = fields >> np.uint64(header.low_bits)
    try:
        if header.index_kind != ELIAS_FANO:
            indices = np.arange(header.fields)
        else:
            high_bytes = bits.packed_bytes(header.high_bits, 1)
            high = elias_fano.unpack_high(payload[at_high : at_high + high_bytes], header.n, header.k)
            low = fields[: high.size] & np.uint64((1 << header.low_bits) - 1)
            indices = high << header.low_bits | low.astype(np.int64)
            if indices.size and (indices[-1] >= header.n or (np.diff(indices) <= 0).any()):
                raise ValueError(f"positions do not ascend below {header.n}")
        codes = codes[: indices.size]
        values = _values(header.quantizer, codes, scales, factor)
        notes = read_notes(payload)
        if not np.isfinite(notes).all():
            raise ValueError("a note is not finite")
        if not np.array_equal(pack(header, indices, codes, scales, notes), payload):
            raise ValueError("unused bits are set")
    except ValueError as error:
        raise PayloadError(f"a damaged payload of {header.k} of {header.n} entries: {error}") from error
    return header, indices, values


def _values(quantizer: Quantizer, codes: np.ndarray, scales: Floats, factor: float) -> Floats:
    if isinstance(quantizer, (Bucketed, PowerOfTwo)):
        return quantizer.dequantize(codes, scales, factor)
    values = quantizer.dequantize(codes, scales)
    return values if factor == 1 else np.float32(factor) * values


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
    kept = header.k if header.index_kind == OUTER else indices.size
    return Summary(
        header.method,
        header.n,
        header.k,
        kept,
        header.quantizer.bits,
        header.sections[0],
        index_bytes,
        payload.size - header.sections[0] - index_bytes,
        payload.size,
    )
