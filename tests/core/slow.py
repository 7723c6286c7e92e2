"""The format of docs/wire-format.md once more, written from that page alone.

Python integers, fractions and floats, no NumPy, nothing of the package: slow, plain and independent. Value
kinds from 4 on are in `slow_dense`.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from . import slow_dense
from .slow_numbers import abs_sum, bits_float, float32, float_bits

BFLOAT16_INF = 0x7F80
METHODS = 23
BITS = {0: [32], 1: [16], 2: [1], 3: range(2, 9), **slow_dense.BITS}


class Parts(NamedTuple):
    """What a payload says. `scales` and `notes` are float32 bit patterns, so that nothing is lost on the way.
    With index kind outer, positions are the numbers of the fields."""

    method: int
    value_kind: int
    bits: int
    n: int
    k: int
    scales: tuple[int, ...]
    positions: tuple[int, ...]
    codes: tuple[int, ...]
    notes: tuple[int, ...] = ()


def pack_fields(values: list[int], width: int) -> bytes:
    """Fields as one large integer."""
    stream = sum(v << i * width for i, v in enumerate(values))
    return stream.to_bytes((len(values) * width + 7) // 8, "little")


def unpack_fields(data: bytes, width: int, count: int) -> list[int]:
    stream = int.from_bytes(data, "little")
    return [stream >> i * width & ((1 << width) - 1) for i in range(count)]


def low_bits(n: int, k: int) -> int:
    """⌊log2(n/k)⌋ by counting up."""
    low = 0
    while k and k << low + 1 <= n:
        low += 1
    return low


def high_bits(n: int, k: int) -> int:
    return k + math.ceil(Fraction(n, 1 << low_bits(n, k))) if k else 0


def high_vector(positions: list[int], n: int, k: int) -> int:
    return sum(1 << (p >> low_bits(n, k)) + i for i, p in enumerate(positions))


def words(data: bytes) -> bytes:
    """Zeros appended up to whole 4-byte words."""
    return data + bytes(-len(data) % 4)


def index_kind(parts: Parts) -> int:
    if parts.value_kind == slow_dense.FACTORS:
        return 2
    return 0 if parts.k == parts.n and parts.value_kind not in (2, 3) else 1


def scale_count(value_kind: int, k: int, word: int) -> int:
    """S, where the first scale word is this one."""
    return max(0, value_kind - 1) if value_kind < 4 else slow_dense.scale_count(value_kind, k, word)


def field_count(parts: Parts) -> int:
    """F, which the scales tell with index kind outer."""
    return parts.k * (parts.scales[0] + parts.n // parts.scales[0]) if index_kind(parts) == 2 else parts.k


def build(parts: Parts) -> bytes:
    """The payload of these parts."""
    elias_fano = index_kind(parts) == 1
    low = low_bits(parts.n, parts.k) if elias_fano else 0
    high_length = high_bits(parts.n, parts.k) if elias_fano else 0
    vector = high_vector(list(parts.positions), parts.n, parts.k) if elias_fano else 0
    fields = [p % (1 << low) + (c << low) for p, c in zip(parts.positions, parts.codes, strict=True)]
    fields += [0] * (field_count(parts) - len(fields))
    kinds = index_kind(parts) + 16 * len(parts.notes)
    header = b"HGC" + bytes([1, parts.method, kinds, parts.value_kind, parts.bits])
    words_behind = (*parts.notes, *parts.scales)
    header += struct.pack(f"<{2 + len(words_behind)}I", parts.n, parts.k, *words_behind)
    high = vector.to_bytes((high_length + 7) // 8, "little")
    return header + words(high) + words(pack_fields(fields, low + parts.bits))


def parse(data: bytes) -> Parts:
    """The parts of a payload; ValueError where a decoder refuses it."""
    refuse(len(data) < 16 or data[:4] != b"HGC\x01" or data[4] >= METHODS, "no header of this version")
    method, kinds, value_kind, bits = data[4:8]
    n, k = struct.unpack("<II", data[8:16])
    refuse(bits not in BITS.get(value_kind, []), "value kind")
    refuse(n > 2**31 - 1 or k > n or (n > 0) != (k > 0), "n and k")
    kind, note_count = kinds % 16, kinds // 16
    notes, (word, *_) = uint32s(data, 16, note_count), uint32s(data, 16 + 4 * note_count, 1)
    # Of the scales, one is needed to know how many there are; a number there that is none is refused here.
    refuse(value_kind == 9 and slow_dense.fault(9, [word], n, k, k) is not None, "rows")
    parts = Parts(method, value_kind, bits, n, k, (word,), (), (), notes)
    refuse(kind != index_kind(parts), "index kind")
    low, high_length = (low_bits(n, k), high_bits(n, k)) if kind == 1 else (0, 0)
    count, fields_bits = scale_count(value_kind, k, word), field_count(parts) * (low + bits)
    sizes = [16 + 4 * note_count, 4 * count, 4 * math.ceil(high_length / 32), 4 * math.ceil(fields_bits / 32)]
    refuse(len(data) != sum(sizes), "length")
    refuse(any(not math.isfinite(bits_float(note)) for note in notes), "notes")
    vector = int.from_bytes(data[sum(sizes[:2]) : sum(sizes[:3])], "little")
    ones = [j for j in range(vector.bit_length()) if vector >> j & 1]
    used = len(ones) if kind == 1 else field_count(parts)
    refuse(used > field_count(parts), "more positions than slots")
    fields = unpack_fields(data[sum(sizes[:3]) :], low + bits, used)
    high = [j - i << low for i, j in enumerate(ones)] if kind == 1 else range(used)
    positions = [h + f % (1 << low) for h, f in zip(high, fields, strict=True)]
    refuse(kind == 1 and any(p >= q for p, q in pairwise([*positions, n])), "positions do not ascend below n")
    scales = uint32s(data, sizes[0], count)
    parts = parts._replace(scales=scales, positions=tuple(positions), codes=tuple(f >> low for f in fields))
    wrong = slow_dense.fault(value_kind, scales, n, k, used) if value_kind > 3 else fault(scales, used)
    refuse(wrong is not None, f"{wrong}")
    refuse(not all(math.isfinite(v) for v in values(parts)), "a value is not finite")
    refuse(build(parts) != data, "unused bits")
    return parts


def uint32s(data: bytes, at: int, count: int) -> tuple[int, ...]:
    """Words, zeros where the bytes have ended."""
    return struct.unpack(f"<{count}I", data[at : at + 4 * count].ljust(4 * count, b"\0"))


def fault(scales: tuple[int, ...], used: int) -> str | None:
    """What is wrong with the scales of value kinds 0 to 3, if anything is."""
    bounds = [bits_float(s) for s in scales]
    if not used:
        return "scales of nothing" if any(scales) else None
    return None if all(0 < s < math.inf for s in bounds) and bounds == sorted(bounds) else "scales"


def refuse(condition: bool, what: str) -> None:
    if condition:
        raise ValueError(what)


def values(parts: Parts) -> list[float]:
    """What the codes stand for."""
    if parts.value_kind == 0:
        return [bits_float(c) for c in parts.codes]
    if parts.value_kind == 1:
        return [bits_float(c << 16) for c in parts.codes]
    if parts.value_kind > 3:
        return slow_dense.values(parts.value_kind, parts.bits, parts.codes, parts.scales)
    scales = [bits_float(s) for s in parts.scales]
    levels = scales if parts.value_kind == 2 else grid(*scales, parts.bits)[1::2] if parts.codes else []
    return [-levels[c >> 1] if c & 1 else levels[c >> 1] for c in parts.codes]


def decode(data: bytes) -> list[float]:
    """The dense tensor of a payload."""
    parts = parse(data)
    if index_kind(parts) == 2:
        return slow_dense.outer(values(parts), parts.n, parts.k, parts.scales[0])
    dense = [0.0] * parts.n
    for position, value in zip(parts.positions, values(parts), strict=True):
        dense[position] = value
    return dense


def grid(lo: float, hi: float, bits: int) -> list[float]:
    """The nodes of the geometric grid, halving strides from the whole range down."""
    nodes = {0: lo, 1 << bits: hi}
    for level in range(bits, 0, -1):
        stride = 1 << level
        for i in range(0, 1 << bits, stride):
            nodes[i + stride // 2] = math.sqrt(nodes[i] * nodes[i + stride])
    return [float32(nodes[i]) for i in range((1 << bits) + 1)]


def bfloat16(value: float) -> int:
    """The nearest of the two neighbouring codes, the even one where both are as near, never infinity."""
    sign, down = float_bits(value) >> 31, (float_bits(value) & 0x7FFFFFFF) >> 16
    up = down + 1
    top = Fraction(2) ** 128 if up == BFLOAT16_INF else Fraction(bits_float(up << 16))
    below, above = abs(Fraction(value)) - Fraction(bits_float(down << 16)), top - abs(Fraction(value))
    nearest = up if above < below or (above == below and up % 2 == 0) else down
    return sign << 15 | min(nearest, BFLOAT16_INF - 1)


def quantize(kept: list[float], bits: int) -> tuple[list[int], list[float]]:
    """Codes and scales of nonzero float32 values."""
    if bits == 32:
        return [float_bits(v) for v in kept], []
    if bits == 16:
        return [bfloat16(v) for v in kept], []
    signs = [int(math.copysign(1, v) < 0) for v in kept]
    sizes = [abs(v) for v in kept]
    if bits == 1:
        return signs, [float32(abs_sum(sizes) / len(sizes)) if sizes else 0.0]
    if not kept:
        return [], [0.0, 0.0]
    lo = min(sizes)
    hi = min(max(sizes), lo * 4.0 ** (1 << bits - 1))
    edges = grid(lo, hi, bits)[2:-1:2]
    return [2 * sum(e <= v for e in edges) + s for v, s in zip(sizes, signs, strict=True)], [lo, hi]


def top_k(tensor: list[float], k: int) -> list[int]:
    """The k largest magnitudes, of equal ones the lower positions, no zeros; ascending."""
    order = sorted(range(len(tensor)), key=lambda i: (-abs(tensor[i]), i))
    return sorted(i for i in order[:k] if tensor[i] != 0)


def encode(tensor: list[float], k: int, bits: int, method: int = 1) -> bytes:
    """The payload of the hybrid method for float32 values, without feedback."""
    everything = k == len(tensor) and bits in (16, 32)
    positions = list(range(k)) if everything else top_k(tensor, k)
    codes, scales = quantize([tensor[i] for i in positions], bits)
    value_kind = {32: 0, 16: 1, 1: 2}.get(bits, 3)
    return build(
        Parts(
            method,
            value_kind,
            bits,
            len(tensor),
            k,
            tuple(float_bits(s) for s in scales),
            tuple(positions),
            tuple(codes),
        )
    )
