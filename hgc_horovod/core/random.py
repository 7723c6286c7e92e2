"""Random numbers that every implementation draws alike, and no global generator.

The generator is Philox4x32-10 (Salmon, Moraes, Dror & Shaw, Parallel random numbers: as easy as 1, 2, 3,
SC 2011): number i of a stream is a function of the key and of i alone, so any thread or device can make its
part. The key is made of seed and tensor name; step, stream and rank stand in the counter.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

EVERYONE = 0xFFFFFFFF  # in place of a rank: the numbers that all ranks share
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)


class Draw(NamedTuple):
    """One stream of uniform 32-bit words: of one key, step, rank and purpose."""

    key: tuple[int, int]
    step: int
    rank: int
    stream: int = 0

    def words(self, count: int) -> Words:
        """The first `count` words, uint32 (count,)."""
        blocks = -(-count // 4)
        tail = (self.step & 0xFFFFFFFF, self.stream, self.rank & 0xFFFFFFFF)
        c0, *rest = (np.arange(blocks, dtype=np.uint64), *(np.full(blocks, t, np.uint64) for t in tail))
        return np.ascontiguousarray(philox((c0, *rest), self.key).T).reshape(-1)[:count]

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Numbers in [0, 1), multiples of 2^-32, float64 (count,)."""
        return np.multiply(self.words(count), 2.0**-32, dtype=np.float64)

    def of(self, stream: int, shared: bool = False) -> Draw:
        """Another stream of the same step; `shared` is one that all ranks draw alike."""
        return self._replace(stream=stream, rank=EVERYONE if shared else self.rank)


def key_of(seed: int, name: str) -> tuple[int, int]:
    """The key of a tensor of this name."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def philox(counter: tuple[NDArray[np.uint64], ...], key: tuple[int, int]) -> Words:
    """Philox4x32-10 of four arrays of counter words (m,), as uint32 (4, m)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = c0 * np.uint64(_MULTIPLIERS[0]), c2 * np.uint64(_MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            (p1 >> _SHIFT) ^ c1 ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> _SHIFT) ^ c3 ^ np.uint64(k1),
            p0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3]).astype(np.uint32)
