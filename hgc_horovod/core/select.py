"""Selectors: which entries of a tensor are sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from . import check
from .context import Context
from .types import Floats, Indices


class Selector(Protocol):
    """Chooses entries. A frozen dataclass, registered in `method.PARTS` under its `kind`.

    `varies` tells that it chooses another number of entries in every step. Payloads have `k` slots then only
    as an expectation.
    """

    kind: ClassVar[str]
    varies: ClassVar[bool]

    @property
    def density(self) -> float:
        """The fraction of entries that is sent, before any warm-up; where it varies, about that."""

    def select(self, values: Floats, k: int, context: Context) -> Indices:
        """Ascending positions of entries of finite float32 (n,); none of them is zero. At most `k`, unless
        the number varies."""

    def take(self, chosen: Floats, context: Context) -> Floats:
        """What is sent of the chosen entries' values, (m,) as they are."""


class Taking:
    """A selector whose chosen entries are sent as they are."""

    varies: ClassVar[bool] = False

    def take(self, chosen: Floats, context: Context) -> Floats:
        return chosen


@dataclass(frozen=True)
class All(Taking):
    """Every entry."""

    kind: ClassVar[str] = "all"

    @property
    def density(self) -> float:
        return 1.0

    def select(self, values: Floats, k: int, context: Context | None = None) -> Indices:
        return np.flatnonzero(values)  # where zeros cannot be sent; else nobody asks


@dataclass(frozen=True)
class TopK(Taking):
    """Exactly the k = `slots(n, density)` entries of largest magnitude; of equal ones the lower position.

    Zeros are never chosen, so a tensor with fewer than k nonzero entries yields all of those.
    """

    kind: ClassVar[str] = "top_k"
    density: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "density", check.fraction("density", self.density))

    def select(self, values: Floats, k: int, context: Context | None = None) -> Indices:
        return largest(values, k)


def largest(values: Floats, k: int) -> Indices:
    """The ascending positions of the k entries of largest magnitude; see `TopK`."""
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
