"""Which tensors are better sent as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from . import check


@dataclass(frozen=True)
class DenseRule:
    """Tensors with fewer than `min_elements` entries or fewer than `min_ndim` dimensions are sent dense.

    So is a tensor whose payload would not be smaller than itself, unless `inflate` allows that. `fp16` casts
    what is sent dense to half precision on the wire.
    """

    kind: ClassVar[str] = "dense_rule"
    min_elements: int = 1024
    min_ndim: int = 2
    inflate: bool = False
    fp16: bool = False

    def __post_init__(self) -> None:
        for name in ("min_elements", "min_ndim"):
            object.__setattr__(self, name, check.whole(name, getattr(self, name), 0))
        object.__setattr__(self, "inflate", check.flag("inflate", self.inflate))
        object.__setattr__(self, "fp16", check.flag("dense_fp16", self.fp16))

    def covers(self, shape: Sequence[int]) -> bool:
        """Whether the shape alone makes a tensor dense. An empty tensor always is."""
        n = math.prod(shape)
        return n == 0 or n < self.min_elements or len(shape) < self.min_ndim
