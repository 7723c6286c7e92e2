"""Numbers as docs/wire-format.md and quantizers.md define them: float32, sums, random words. See `slow`."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from hashlib import blake2b

LARGEST = (2 - 2.0**-23) * 2.0**127
WORD = 1 << 32


def float_bits(value: float) -> int:
    """The bit pattern of the float32 nearest to a value."""
    return struct.unpack("<I", struct.pack("<f", value))[0]


def bits_float(pattern: int) -> float:
    return struct.unpack("<f", struct.pack("<I", pattern))[0]


def float32(value: float) -> float:
    """Rounded to float32. Of one operation on two float32 this is the correctly rounded result, though it was
    made in float64, which has more than twice the digits."""
    return bits_float(float_bits(value))


def fixed_point(magnitudes: list[float], bits: int) -> tuple[list[int], int]:
    """Magnitudes as whole multiples of 2^shift, and that shift."""
    shift = math.frexp(max(magnitudes, default=0.0))[1] - bits
    return [round(Fraction(v) / Fraction(2) ** shift) for v in magnitudes], shift


def abs_sum(magnitudes: list[float]) -> float:
    """The order-independent sum."""
    fixed, shift = fixed_point(magnitudes, 62 - len(magnitudes).bit_length())
    return math.ldexp(float(sum(fixed)), shift)


def square_sum(magnitudes: list[float]) -> float:
    """The order-independent sum of squares."""
    fixed, shift = fixed_point(magnitudes, (62 - len(magnitudes).bit_length()) // 2)
    return math.ldexp(float(sum(v * v for v in fixed)), 2 * shift)


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox4x32-10."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p, q = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = q // WORD ^ c1 ^ k0, q % WORD, p // WORD ^ c3 ^ k1, p % WORD
        k0, k1 = (k0 + 0x9E3779B9) % WORD, (k1 + 0xBB67AE85) % WORD
    return c0, c1, c2, c3


def key_of(seed: int, name: str) -> tuple[int, ...]:
    return struct.unpack("<II", blake2b(f"{seed}/{name}".encode(), digest_size=8).digest())


def random_words(
    count: int, seed: int = 0, name: str = "", step: int = 0, rank: int = 0, stream: int = 0
) -> list[int]:
    """The first words of a stream."""
    key, tail = key_of(seed, name), (step % WORD, stream, rank % WORD)
    return [philox((i // 4, *tail), key)[i % 4] for i in range(count)]
