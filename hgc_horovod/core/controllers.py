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

_EXPLORE_STREAM = 6
_GAIN = 8


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


class _OfBits:
    """A controller that tells a quantizer its bits, in every step."""

    notes: ClassVar[int] = 1

    def due(self, step: int) -> bool:
        return True

    def plan(self, method: Method, n: int, context: Context) -> Method:
        bits = self.bits_now(context)
        changed: Any = replace(method.quantizer, bits=bits)  # type: ignore[type-var]
        return method if method.quantizer.bits == bits else replace(method, quantizer=changed)

    def bits_now(self, context: Context) -> int:
        raise NotImplementedError


@dataclass(frozen=True)
class MeanToDeviation(_OfBits):
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
class NormBits(_OfBits):
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


@dataclass(frozen=True)
class RelativeSize(_OfBits):
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


@dataclass(frozen=True)
class LossLearning(_OfBits):
    """MQGrad's: Q-learning over the loss. The user reports losses (`report_loss`); without any, bits stay.

    Every `interval` steps the mean loss is compared with that of the interval before. State: it fell by more
    than `fall`, by less, or rose. Action: one bit fewer, the same, one more. Reward: the relative fall per
    bit. One table of nine values, ε-greedy; random choices are the same for all tensors and ranks.
    """

    kind: ClassVar[str] = "loss_learning"
    notes: ClassVar[int] = 2
    start_bits: int = 4
    least_bits: int = 2
    most_bits: int = 8
    interval: int = 50
    fall: float = 0.01
    epsilon: float = 0.1
    rate: float = 0.5
    discount: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "most_bits", check.whole("most_bits", self.most_bits, 2, 8))
        object.__setattr__(self, "least_bits", check.whole("least_bits", self.least_bits, 2, self.most_bits))
        start = check.whole("start_bits", self.start_bits, self.least_bits, self.most_bits)
        object.__setattr__(self, "start_bits", start)
        for name, least in (("interval", 1), ("seed", 0)):
            object.__setattr__(self, name, check.whole(name, getattr(self, name), least))
        for name in ("fall", "epsilon", "rate", "discount"):
            object.__setattr__(self, name, check.real(name, getattr(self, name)))
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1; got {getattr(self, name)!r}")

    def bits_now(self, context: Context) -> int:
        return int(context.memory.get("bits", np.array([self.start_bits]))[0])

    def measure(self, values: Floats, context: Context) -> list[float]:
        loss = context.peers.loss
        return [0.0, 0.0] if loss is None or not math.isfinite(loss) else [1.0, loss]

    def learn(self, notes: list[float], memory: Memory, step: int) -> None:
        reported, loss = notes
        if reported > 0:
            total, count = memory.get("losses", np.zeros(2))
            memory["losses"] = np.array([total + loss / reported, count + 1])
        if (step + 1) % self.interval or "losses" not in memory:
            return
        total, count = memory.pop("losses")
        mean, before = total / count, memory.get("mean loss")
        memory["mean loss"] = np.array([mean])
        if before is not None:
            self._decide(float((before[0] - mean) / max(abs(before[0]), 1e-30)), memory, step)

    def _decide(self, fall: float, memory: Memory, step: int) -> None:
        bits = int(memory.get("bits", np.array([self.start_bits]))[0])
        state = 0 if fall > self.fall else 1 if fall >= 0 else 2
        table = memory.get("table", np.zeros((3, 3))).copy()
        last = memory.get("last")  # the state and the action that led here
        if last is not None:
            value = fall / bits + self.discount * table[state].max()
            table[last[0], last[1]] += self.rate * (value - table[last[0], last[1]])
        explore, action = random_pair(self.seed, step)
        if explore >= self.epsilon:
            action_index = int(np.argmax(table[state]))
            if np.ptp(table[state]) == 0:
                action_index = 1
        else:
            action_index = int(action * 3)
        memory["table"], memory["last"] = table, np.array([state, action_index])
        memory["bits"] = np.array([min(max(bits + action_index - 1, self.least_bits), self.most_bits)])


def random_pair(seed: int, step: int) -> tuple[float, float]:
    """Two numbers in [0, 1) of a step, the same for all tensors and ranks."""
    from .random import EVERYONE, Draw, key_of

    first, second = Draw(key_of(seed, ""), step, EVERYONE, _EXPLORE_STREAM).uniform(2)
    return float(first), float(second)
