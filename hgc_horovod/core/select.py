"""Selectors: which entries of a tensor are sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from . import check
from .types import Floats, Indices


class Selector(Protocol):
    """Chooses entries. A frozen dataclass, registered in `method.PARTS` under its `kind`."""

    kind: ClassVar[str]

    @property
    def density(self) -> float:
        """The fraction of entries that is sent, before any warm-up."""

    def select(self, values: Floats, k: int) -> Indices:
        """Ascending positions of at most `k` entries of finite float32 (n,); none of them is zero."""


@dataclass(frozen=True)
class TopK:
    """Exactly the k = `slots(n, density)` entries of largest magnitude; of equal ones the lower position.

    Zeros are never chosen, so a tensor with fewer than k nonzero entries yields all of those.
    """

    kind: ClassVar[str] = "top_k"
    density: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "density", check.fraction("density", self.density))

    def select(self, values: Floats, k: int) -> Indices:
        magnitudes = np.abs(values)
        threshold = np.partition(magnitudes, -k)[-k] if 0 < k < values.size else np.float32(0)
        if threshold == 0:
            return np.flatnonzero(magnitudes)
        chosen = magnitudes > threshold
        ties = np.flatnonzero(magnitudes == threshold)
        chosen[ties[: k - np.count_nonzero(chosen)]] = True
        return np.flatnonzero(chosen)


def slots(n: int, density: float) -> int:
    """k, how many entries a density keeps of n: n·density rounded half up, at least 1, and 0 where n is 0."""
    return min(n, max(1, int(n * density + 0.5)))
