"""The controller that learns from the loss how many bits pay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from . import check
from .context import Context, Memory
from .controllers import OfBits
from .random import EVERYONE, Draw, key_of
from .types import Floats

_EXPLORE_STREAM = 6


@dataclass(frozen=True)
class LossLearning(OfBits):
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
    first, second = Draw(key_of(seed, ""), step, EVERYONE, _EXPLORE_STREAM).uniform(2)
    return float(first), float(second)
