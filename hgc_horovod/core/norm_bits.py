"""The controller that gives a value as many bits as the gradient's norm asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from . import check
from .context import Context, Memory
from .controllers import OfBits
from .types import Floats

_GAIN = 8


@dataclass(frozen=True)
class NormBits(OfBits):
    """DQ-SGD's: b = log2(t·‖v‖_p + 1) + 1, rounded, from 2 to `most_bits`.

    With `steps` (N) and `alpha` it is the strongly convex form, b = log2(t·α^((N-n)/2)·‖v‖_p + 1) + 1.
    Where t is None it is found: the mean of b is to be `bits`. After each step t is set so that the norm
    of the first steps (the mean of up to `calibration` of them) would have got `bits`, and eight times
    what is missing to that mean so far (in the first steps a quarter of their number times that, which would
    swing else). So a norm that falls gets fewer bits than before, but more than by the formula alone.
    """

    kind: ClassVar[str] = "norm_bits"
    bits: float = 4.0
    t: float | None = None
    p: float = 2.0
    most_bits: int = 8
    steps: int = 0
    alpha: float = 1.0
    calibration: int = 50

    def __post_init__(self) -> None:
        object.__setattr__(self, "most_bits", check.whole("most_bits", self.most_bits, 2, 8))
        object.__setattr__(self, "bits", check.real("bits", self.bits))
        if not 2 <= self.bits <= self.most_bits:
            raise ValueError(f"bits must be from 2 to most_bits; got {self.bits!r}")
        if self.t is not None:
            object.__setattr__(self, "t", check.factor("t", self.t))
        if self.p not in (1, 2, math.inf):
            raise ValueError(f"p must be 1, 2 or infinity; got {self.p!r}")
        object.__setattr__(self, "p", float(self.p))
        object.__setattr__(self, "alpha", check.fraction("alpha", self.alpha))
        for name, least in (("steps", 0), ("calibration", 1)):
            object.__setattr__(self, name, check.whole(name, getattr(self, name), least))

    def bits_now(self, context: Context) -> int:
        norm = context.memory.get("norm")
        if norm is None:  # nothing is known before the first step
            return min(max(round(self.bits), 2), self.most_bits)
        return self._bits(float(norm[0]), context.memory, context.step)

    def measure(self, values: Floats, context: Context) -> list[float]:
        passes, n = context.passes, max(values.size, 1)
        if self.p == 1:
            return [float(passes.bucket_mean(values, n).sum()) * n]
        return [float((passes.bucket_norm if self.p == 2 else passes.bucket_max)(values, n).sum())]

    def learn(self, notes: list[float], memory: Memory, step: int) -> None:
        norm = notes[0]
        if self.t is None:
            self._calibrate(norm, memory, step)
        memory["norm"] = np.array([norm])

    def _calibrate(self, norm: float, memory: Memory, step: int) -> None:
        used = self.bits_used(memory, step)
        total, count, typical = memory.get("bits so far", np.array([0.0, 0.0, norm]))
        total, count = total + used, count + 1
        if count <= self.calibration:
            typical += (norm - typical) / count
        memory["bits so far"] = np.array([total, count, typical])
        missing = min(_GAIN, count / 4) * (self.bits - total / count)
        if typical > 0:
            wanted = math.log2(2 ** (self.bits - 1) - 1)
            memory["log2 t"] = np.array([wanted - math.log2(typical) - self._growth(0) + missing])

    def bits_used(self, memory: Memory, step: int) -> int:
        """The bits of the step that is being learnt of."""
        norm = memory.get("norm")
        return round(self.bits) if norm is None else self._bits(float(norm[0]), memory, step)

    def _bits(self, norm: float, memory: Memory, step: int) -> int:
        if self.t is None and "log2 t" not in memory:
            return min(max(round(self.bits), 2), self.most_bits)
        if not norm:
            return 2
        factor = float(memory["log2 t"][0]) if self.t is None else math.log2(self.t)
        power = factor + self._growth(step) + math.log2(norm)  # the exponent, since the product may overflow
        bits = max(power, 0.0) + math.log2(1 + 2 ** -abs(power)) + 1
        return min(max(round(bits), 2), self.most_bits)

    def _growth(self, step: int) -> float:
        """log2 of α^((N-n)/2)."""
        return (self.steps - min(step, self.steps)) / 2 * math.log2(self.alpha)
