"""Controllers: how many bits a value gets, from step to step.

A controller is plain data. What it has learnt stands in the codec's memory, which a checkpoint holds. The
numbers that it needs of all ranks stand in their payloads, as *notes*, and their means are learnt when the
step's payloads are decoded, so that all ranks decide alike, one step later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from . import check
from .context import Context, Memory
from .types import Floats

if TYPE_CHECKING:
    from .method import Method


class Controller(Protocol):
    """A frozen dataclass, registered in `method.PARTS` under its `kind`."""

    kind: ClassVar[str]
    notes: ClassVar[int]

    def due(self, step: int) -> bool:
        """Whether a step's payloads hold notes."""

    def plan(self, method: Method, n: int, context: Context) -> Method:
        """The method as this step sends it."""

    def measure(self, values: Floats, context: Context) -> list[float]:
        """This rank's notes on what is being encoded, finite float32 (n,)."""

    def learn(self, notes: list[float], memory: Memory, step: int) -> None:
        """Take the means of all ranks' notes up, into `memory`. `step` is the one that they are of."""


class OfBits:
    """A controller that tells a quantizer its bits, in every step."""

    notes: ClassVar[int] = 1

    def due(self, step: int) -> bool:
        return True

    def plan(self, method: Method, n: int, context: Context) -> Method:
        bits = self.bits_now(context)
        if method.quantizer.bits == bits:
            return method
        changed: Any = replace(method.quantizer, bits=bits)  # type: ignore[type-var]
        return replace(method, quantizer=changed)

    def bits_now(self, context: Context) -> int:
        raise NotImplementedError


@dataclass(frozen=True)
class MeanToDeviation(OfBits):
    """AdaQS's: one bit more, that is twice the levels, each time R = ‖m‖ / ‖√(s - m²)‖ has halved.

    m and s are exponential means of v and v². It starts with `start_bits`, and takes R as the first reference
    when the means are full, after 2 / (1 - decay) steps.
    """

    kind: ClassVar[str] = "mean_to_deviation"
    notes: ClassVar[int] = 2
    start_bits: int = 4
    most_bits: int = 8
    decay: float = 0.9

    def __post_init__(self) -> None:
        object.__setattr__(self, "most_bits", check.whole("most_bits", self.most_bits, 2, 8))
        object.__setattr__(self, "start_bits", check.whole("start_bits", self.start_bits, 2, self.most_bits))
        object.__setattr__(self, "decay", check.real("decay", self.decay))
        if not 0 < self.decay < 1:
            raise ValueError(f"decay must be above 0 and below 1; got {self.decay!r}")

    def bits_now(self, context: Context) -> int:
        return int(context.memory.get("bits", np.array([self.start_bits]))[0])

    def measure(self, values: Floats, context: Context) -> list[float]:
        nothing = np.zeros(values.size, np.float32)
        mean, square = context.memory.get("mean", nothing), context.memory.get("square", nothing)
        mean, square, length, spread = context.passes.moments(values, mean, square, self.decay)
        context.memory["mean"], context.memory["square"] = mean, square
        return [length, spread]

    def learn(self, notes: list[float], memory: Memory, step: int) -> None:
        length, spread = notes
        if step + 1 < 2 / (1 - self.decay) or spread <= 0:
            return
        ratio, bits = math.sqrt(length / spread), int(memory.get("bits", np.array([self.start_bits]))[0])
        reference = memory.get("reference")
        if reference is None:
            memory["reference"] = np.array([ratio])
        elif ratio <= reference[0] / 2 and bits < self.most_bits:
            memory["reference"], memory["bits"] = np.array([ratio]), np.array([bits + 1])


@dataclass(frozen=True)
class RelativeSize(OfBits):
    """Øland & Raj's: b = most_bits + log2(rms / rms_max) / 2, rounded, from `least_bits` to `most_bits`.

    rms_max is the largest root mean square of the model's tensors in the last step, or ever where `history`
    is set."""

    kind: ClassVar[str] = "relative_size"
    least_bits: int = 2
    most_bits: int = 8
    history: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "most_bits", check.whole("most_bits", self.most_bits, 2, 8))
        object.__setattr__(self, "least_bits", check.whole("least_bits", self.least_bits, 2, self.most_bits))
        object.__setattr__(self, "history", check.flag("history", self.history))

    def bits_now(self, context: Context) -> int:
        mine, told = context.memory.get("square mean"), context.peers.heard("square mean", context.step)
        largest = max((float(each[1 if self.history else 0]) for each in told), default=0.0)
        if mine is None or not (mine[0] > 0 and largest > 0):
            return self.most_bits
        half = math.log2(float(mine[0]) / largest) / 4  # of the squares, so halved once more
        bits = self.most_bits + round(half)
        return min(max(bits, self.least_bits), self.most_bits)

    def measure(self, values: Floats, context: Context) -> list[float]:
        norm = float(context.passes.bucket_norm(values, max(values.size, 1)).sum())
        return [norm * norm / max(values.size, 1)]

    def learn(self, notes: list[float], memory: Memory, step: int) -> None:
        largest = max(notes[0], *memory.get("square mean", np.zeros(2))[1:])
        memory["square mean"] = np.array([notes[0], largest])
