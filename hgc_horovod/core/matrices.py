"""Parts that send a tensor as a sum of few outer products, or few entries that all ranks know the places of.

What has `rounds` sends no payloads: its float32 vectors are averaged over the ranks, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from . import check
from .context import Context
from .passes import LARGEST
from .select import Taking
from .types import Codes, Floats, Indices

Rounds = Generator[Floats, Floats, tuple[Floats, Floats]]
_START_STREAM, _PLACES_STREAM, _ATOM_STREAM = 2, 3, 4


@dataclass(frozen=True)
class RandomK(Taking):
    """k entries at random, the same on all ranks, which draw them alike; no positions are sent."""

    kind: ClassVar[str] = "random_k"
    density: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "density", check.fraction("density", self.density))

    def select(self, values: Floats, k: int, context: Context) -> Indices:
        """k different positions, each set of k being as likely as any other."""
        n = values.size
        if k >= n:
            return np.arange(n)
        draw, few = context.draw.of(_PLACES_STREAM, shared=True), min(k, n - k)
        count = few + 16
        while True:  # where the places drawn so far hold too few different ones, draw more
            drawn = (draw.words(count).astype(np.uint64) * np.uint64(n) >> np.uint64(32)).astype(np.int64)
            places, firsts = np.unique(drawn, return_index=True)
            if places.size >= few:
                break
            count *= 2
        chosen = np.sort(places[np.argsort(firsts)[:few]])
        return chosen if few == k else np.delete(np.arange(n), chosen)

    def sizes(self, shape: tuple[int, int], k: int) -> tuple[int, ...]:
        """Of the vectors that `rounds` yields."""
        return (k,)

    def rounds(self, values: Floats, k: int, context: Context) -> Rounds:
        """Yields float32 vectors, is sent their means, and returns the mean tensor and this rank's share."""
        places = self.select(values, k, context)
        mean = yield values[places]
        result, own = np.zeros_like(values), np.zeros_like(values)
        result[places], own[places] = mean, values[places]
        return result, own


@dataclass(frozen=True)
class LowRank(Taking):
    """PowerSGD's: M ≈ P·Qᵀ of a rank, by one step of subspace iteration that starts from the last step's Q.

    P = M·Q is averaged over the ranks and orthogonalized, Q = Mᵀ·P is averaged. A column of Q that has become
    0, as after a gradient of zeros, starts anew at random: it would stay 0 for ever.
    """

    kind: ClassVar[str] = "low_rank"
    rank: int = 4

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", check.whole("rank", self.rank, 1, 1024))

    @property
    def density(self) -> float:
        return 1.0

    def select(self, values: Floats, k: int, context: Context) -> Indices:
        raise TypeError("a low-rank method has no entries to choose")

    def sizes(self, shape: tuple[int, int], k: int) -> tuple[int, ...]:
        rank = min(self.rank, *shape)
        return shape[0] * rank, shape[1] * rank

    def rounds(self, values: Floats, k: int, context: Context) -> Rounds:
        rows, columns = context.shape
        rank = min(self.rank, rows, columns)
        matrix = values.reshape(rows, columns)
        words = context.draw.of(_START_STREAM, shared=True)._replace(step=0).words(rank * columns)
        start = (words * 2.0**-31 - 1).astype(np.float32).reshape(rank, columns)
        last = context.memory.get("q")
        if last is not None and last.shape == start.shape:
            start = np.where(last.any(axis=1, keepdims=True), last, start)
        mean = yield _product(start, matrix.T).reshape(-1)
        left = _orthogonal(_finite(mean.reshape(rank, rows)))
        own = _product(left, matrix)
        mean = yield own.reshape(-1)
        right = _finite(mean.reshape(rank, columns))
        context.memory["q"] = right.copy()
        result, mine = np.zeros_like(values), np.zeros_like(values)
        context.passes.add_outer(left, right, 1.0, result)
        context.passes.add_outer(left, own, 1.0, mine)
        return result, mine


@dataclass(frozen=True)
class SpectralAtoms(Taking):
    """ATOMO's: singular vectors, atom i with probability p_i and divided by it: unbiased.

    p_i = s·λ_i / Σλ over those that are not certain, where what exceeds 1 is certain, and its share is
    redistributed; s = `atoms` is the expected number of atoms.
    """

    kind: ClassVar[str] = "spectral_atoms"
    varies: ClassVar[bool] = True
    atoms: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "atoms", check.whole("atoms", self.atoms, 1, 1024))

    @property
    def density(self) -> float:
        return 1.0

    def select(self, values: Floats, k: int, context: Context) -> Indices:
        raise TypeError("a spectral method has no entries to choose")

    def factorize(self, values: Floats, context: Context) -> tuple[Floats, Floats]:
        """Columns, multiplied by what belongs to their atoms, (m, rows), and rows, (m, columns)."""
        exponent = math.frexp(float(np.abs(values).max(initial=0)))[1]  # so that nothing overflows
        matrix = np.ldexp(values, -exponent).reshape(context.shape)
        left, weights, right = np.linalg.svd(matrix, full_matrices=False)
        chances = atom_chances(weights, self.atoms)
        drawn = context.draw.of(_ATOM_STREAM).uniform(weights.size) < chances
        lengths = np.ldexp(weights[drawn] / chances[drawn], exponent)
        scaled = left.T[drawn] * np.minimum(lengths, LARGEST).astype(np.float32)[:, None]
        return np.ascontiguousarray(scaled, np.float32), np.ascontiguousarray(right[drawn], np.float32)


@dataclass(frozen=True)
class Factors:
    """Columns and rows of outer products, as float32. Scale word: the number of the matrix's rows."""

    kind: ClassVar[str] = "factors"
    wire_id: ClassVar[int] = 9
    holds_zero: ClassVar[bool] = True
    bits: int = 32
    rows: int = 1  # of the matrix that a payload holds

    def __post_init__(self) -> None:
        check.whole("bits", self.bits, 32, 32)
        check.whole("rows", self.rows, 1)

    def scale_words(self, k: int) -> int:
        return 1

    def quantize(self, values: Floats, context: Context | None = None) -> tuple[Codes, Floats]:
        return values.view(np.uint32).astype(np.uint64), self.word

    @property
    def word(self) -> Floats:
        """The number of rows as it stands in the payload, (1,)."""
        return np.array([self.rows], np.uint32).view(np.float32)

    def dequantize(self, codes: Codes, scales: Floats) -> Floats:
        values = codes.astype(np.uint32).view(np.float32)
        if not np.isfinite(values).all():
            raise ValueError("a value is not finite")
        return values


def atom_chances(weights: Floats, expected: int) -> np.ndarray:
    """p_i of each singular value (m,), descending, with Σp = min(expected, those above 0)."""
    values = weights.astype(np.float64)
    chances = np.zeros(values.size)
    for certain in range(values.size + 1):
        rest = values[certain:].sum()
        if rest <= 0 or expected - certain <= 0:
            chances[:certain] = 1
            break
        share = (expected - certain) * values[certain:] / rest
        if share[0] <= 1:
            chances[:certain], chances[certain:] = 1, share
            break
    return chances


def _product(left: Floats, right: Floats) -> Floats:
    """The matrices' product, where what overflows is cut."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _finite(left @ right)


def _finite(values: Floats) -> Floats:
    """float32 with the largest numbers in place of infinities, and 0 of what is none."""
    return np.nan_to_num(values.astype(np.float32, copy=False))


def _orthogonal(vectors: Floats) -> Floats:
    """Rows (r, m) made orthonormal, one after the other; one that depends on those before becomes 0.

    Dot products are summed exactly, so that every machine gets the same."""
    result = vectors.astype(np.float64)
    for i, row in enumerate(result):
        length = math.sqrt(math.fsum((row * row).tolist()))
        for earlier in result[:i]:
            row -= math.fsum((row * earlier).tolist()) * earlier
        rest = math.sqrt(math.fsum((row * row).tolist()))
        row *= 1 / rest if rest > 1e-6 * length else 0
    return result.astype(np.float32)
