"""The controller that spends a budget of bytes: which density at how many bits loses least."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from . import check, wire
from .context import Context, Memory
from .quantize import for_bits
from .select import TopK
from .types import Floats

if TYPE_CHECKING:
    from .method import Method

BITS = (1, 2, 3, 4, 6, 8, 16)
_SAMPLE = 1 << 14
_LEAST = 64  # sampled entries that are kept, whatever the density


@dataclass(frozen=True)
class Budget:
    """Of payloads that are `ratio` times smaller than float32, the one that leaves least of ‖v‖² unsent.

    For each of 1, 2, 3, 4, 6, 8 and 16 bits, k is the most entries that fit with their positions. What that
    loses, by what is not kept and by quantization, is measured on a sample of the tensor every `interval`
    steps; the least mean over the ranks decides. Until the first measurement: 2 bits.
    """

    kind: ClassVar[str] = "budget"
    notes: ClassVar[int] = len(BITS)
    ratio: float = 300.0
    interval: int = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "ratio", check.real("ratio", self.ratio))
        if self.ratio <= 1:
            raise ValueError(f"ratio must be above 1; got {self.ratio!r}")
        object.__setattr__(self, "interval", check.whole("interval", self.interval, 1))

    def due(self, step: int) -> bool:
        return step % self.interval == 0

    def plan(self, method: Method, n: int, context: Context) -> Method:
        bits = int(context.memory.get("bits", np.array([2]))[0])
        return replace(method, selector=TopK(self._density(n, bits)), quantizer=for_bits(bits))

    def slots(self, n: int, bits: int) -> int:
        """The most entries of n that fit the budget, at least 1."""
        most, quantizer = int(4 * n / self.ratio), for_bits(bits)
        low, high = 1, max(n, 1)
        while low < high:
            middle = (low + high + 1) // 2
            if wire.payload_bytes(n, middle, quantizer) <= most:
                low = middle
            else:
                high = middle - 1
        return min(low, n)

    def _density(self, n: int, bits: int) -> float:
        return self.slots(n, bits) / n if n else 1.0

    def measure(self, values: Floats, context: Context) -> list[float]:
        n = values.size
        densities = [self._density(n, bits) for bits in BITS]
        count = min(n, max(_SAMPLE, math.ceil(_LEAST / min(densities))))
        sample = np.sort(np.abs(values[:: max(1, n // max(count, 1))]))[::-1]
        whole = float(np.square(sample, dtype=np.float64).sum())
        return [
            self._lost(sample, d, bits) / whole if whole else 0.0
            for d, bits in zip(densities, BITS, strict=True)
        ]

    def learn(self, notes: list[float], memory: Memory, step: int) -> None:
        if any(notes):
            memory["bits"] = np.array([BITS[int(np.argmin(notes))]])
            memory["lost"] = np.array(notes)

    @staticmethod
    def _lost(sample: Floats, density: float, bits: int) -> float:
        """Of descending magnitudes, the squares that are not sent, and those of quantization."""
        kept = max(1, round(density * sample.size))
        top, quantizer = sample[:kept][sample[:kept] > 0], for_bits(bits)
        decoded = quantizer.dequantize(*quantizer.quantize(top))
        return float(
            np.square(sample[kept:], dtype=np.float64).sum()
            + np.square(top - decoded, dtype=np.float64).sum()
        )
