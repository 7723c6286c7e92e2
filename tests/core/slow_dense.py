"""The value kinds of docs/quantizers.md once more, written from that page alone; see `slow`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from .slow_numbers import LARGEST, abs_sum, bits_float, float32, float_bits, square_sum

UNIFORM, SIGN, TWO_MEANS, TREE, POWER, FACTORS = range(4, 10)
BITS = {UNIFORM: range(2, 9), SIGN: [1], TWO_MEANS: [1], TREE: [8], POWER: [9], FACTORS: [32]}
BUCKETED = (UNIFORM, SIGN, TREE)


def scale_count(kind: int, k: int, word: int) -> int:
    """S, where the first scale word is this one."""
    if kind in BUCKETED:
        return 1 + buckets(k, k, word)
    return {TWO_MEANS: 2, POWER: 0, FACTORS: 1}[kind]


def buckets(used: int, k: int, size: int) -> int:
    """How many buckets of a size (0: of k) hold the first `used` of k slots."""
    return math.ceil(Fraction(used, size or k)) if k else 0


def fault(kind: int, scales: Sequence[int], n: int, k: int, used: int) -> str | None:
    """What is wrong with these bit patterns of scales, if anything is."""
    if kind == FACTORS:
        return None if 0 < scales[0] <= max(n, 1) and n % scales[0] == 0 else "rows"
    own = list(scales)
    if kind in BUCKETED:
        size = own.pop(0)
        if size >= 2**31:
            return "bucket"
        attained = buckets(used, k, size)
    else:
        attained = len(own) if used else 0
    if any(s >= 0x7F800000 for s in own):  # infinite, no number, or with a sign
        return "scales"
    return "scales of nothing" if any(own[attained:]) else None


def tree() -> list[float]:
    """The 128 levels of seven bits."""
    levels = []
    for bits in range(128):
        if not bits:
            levels.append(0.0)
            continue
        text = f"{bits:07b}"
        zeros, tail = text.index("1"), text[text.index("1") + 1 :]
        part = Fraction(2 * int(tail or "0", 2) + 1, 2 ** (len(tail) + 1))
        levels.append(nearest((Fraction(1, 10) + Fraction(9, 10) * part) / 10**zeros))
    return levels


def nearest(exact: Fraction) -> float:
    """The float32 nearest to a number between two of which it is not the middle."""
    around = float_bits(float(exact))
    return min((bits_float(p) for p in range(around - 1, around + 2)), key=lambda f: abs(Fraction(f) - exact))


def levels(kind: int, bits: int) -> list[float]:
    """What codes stand for, before they are scaled."""
    if kind == SIGN:
        magnitudes = [1.0]
    elif kind == TREE:
        magnitudes = tree()
    else:
        top = 2 ** (bits - 1) - 1
        magnitudes = [float32(j / top) for j in range(top + 1)]
    return [sign * level for level in magnitudes for sign in (1.0, -1.0)]


def values(
    kind: int, bits: int, codes: Sequence[int], scales: Sequence[int], factor: float = 1.0
) -> list[float]:
    """What codes are worth, times a factor that is a float32."""
    if kind == FACTORS:
        return [bits_float(c) for c in codes]
    if kind == POWER:
        return [float32(factor * bits_float(c % 2 << 31 | c // 2 << 23)) for c in codes]
    if kind == TWO_MEANS:
        plus, minus = (float32(factor * bits_float(s)) for s in scales)
        return [-minus if c else plus for c in codes]
    own, table = [float32(factor * bits_float(s)) for s in scales[1:]], levels(kind, bits)
    size = scales[0] or len(codes)
    return [float32(own[i // size] * table[c]) for i, c in enumerate(codes)]


def outer(numbers: Sequence[float], n: int, k: int, rows: int, factor: float = 1.0) -> list[float]:
    """The tensor of k columns and k rows: one outer product added after the other."""
    dense, columns = [0.0] * n, n // rows
    for a in range(k):
        left = [float32(factor * v) for v in numbers[a * rows :][:rows]]
        right = numbers[k * rows + a * columns :][:columns]
        dense = [float32(d + float32(left[i // columns] * right[i % columns])) for i, d in enumerate(dense)]
    return dense


def quantize(
    kind: int,
    bits: int,
    given: list[float],
    words: Sequence[int] = (),
    bucket: int = 0,
    norm: str = "max",
    sigmas: float | None = None,
) -> tuple[list[int], list[int]]:
    """Codes of float32 values and bit patterns of scales. `norm`: "max", "l2", "mean" or "one"."""
    if kind == POWER:
        return [power_code(float_bits(v), w) for v, w in zip(given, words, strict=True)], []
    signs, sizes = [int(v < 0) for v in given], [abs(v) for v in given]
    if kind == TWO_MEANS:
        sides = [[v for v, s in zip(sizes, signs, strict=True) if s == side] for side in (0, 1)]
        return signs, [float_bits(mean(side)) for side in sides]
    size = bucket or max(len(given), 1)
    scales = [NORMS[norm](sizes[at : at + size]) for at in range(0, len(sizes), size)]
    if sigmas is not None and sizes:
        limit = sigmas * l2(sizes) / math.sqrt(len(sizes))
        scales = [min(s, float32(limit)) if limit < LARGEST else s for s in scales]
    patterns = [bucket, *(float_bits(s) for s in scales)]
    if kind == SIGN:
        return signs, patterns
    ratios = [float32(min(v / s, LARGEST)) if (s := scales[i // size]) else 0.0 for i, v in enumerate(sizes)]
    if kind == TREE:
        edges = [float32(float32(a + b) * 0.5) for a, b in pairwise(tree())]
        whole = [sum(e <= x for e in edges) for x in ratios]
    else:
        whole = [round_level(x, 2 ** (bits - 1) - 1, w) for x, w in zip(ratios, words, strict=True)]
    return [2 * j + (s if j else 0) for j, s in zip(whole, signs, strict=True)], patterns


def round_level(ratio: float, top: int, word: int) -> int:
    place = float32(min(ratio * top, top))
    down = math.floor(place)
    return down + (word // 2 < math.floor(Fraction(place - down) * 2**31))


def power_code(pattern: int, word: int) -> int:
    sign, exponent, mantissa = pattern >> 31, pattern >> 23 & 255, pattern % 2**23
    exponent = min(exponent + (word // 2**9 < mantissa), 254)
    return 2 * exponent + (sign if exponent else 0)


def l2(sizes: list[float]) -> float:
    return float32(min(math.sqrt(square_sum(sizes)), LARGEST))


def mean(sizes: list[float]) -> float:
    return float32(abs_sum(sizes) / len(sizes)) if sizes else 0.0


NORMS = {"max": max, "l2": l2, "mean": mean, "one": lambda sizes: 1.0}
