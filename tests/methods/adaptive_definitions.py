"""What the formulas of the methods say whose bits follow the training; see `definitions`.

A controller is asked for the `bits` of a step, and told what all ranks (or all tensors) were about to send.
"""

from __future__ import annotations

import math

import numpy as np

from hgc_horovod.core.random import EVERYONE, Draw, key_of

from .definitions import Floats
from .sparse_definitions import levels, top_k

EXPLORE_STREAM = 6
BUDGET_BITS = (1, 2, 3, 4, 6, 8, 16)


class MeanToDeviation:
    """AdaQS: twice the levels each time R = ‖m‖ / ‖√(s - m²)‖ has halved, the means over the ranks."""

    def __init__(self, n: int, ranks: int, start: int, most: int, decay: float) -> None:
        self.bits, self.most, self.decay, self.steps = start, most, decay, 0
        self.m, self.s = np.zeros((ranks, n)), np.zeros((ranks, n))
        self.reference: float | None = None

    def learn(self, each: list[Floats]) -> None:
        g = np.stack(each).astype(np.float64)
        self.m = self.decay * self.m + (1 - self.decay) * g
        self.s = self.decay * self.s + (1 - self.decay) * g * g
        self.steps += 1
        length = np.mean((self.m**2).sum(axis=1))
        spread = np.mean((self.s - self.m**2).sum(axis=1))
        if self.steps < 2 / (1 - self.decay) or spread <= 0:
            return
        ratio = math.sqrt(length / spread)
        if self.reference is None:
            self.reference = ratio
        elif ratio <= self.reference / 2 and self.bits < self.most:
            self.reference, self.bits = ratio, self.bits + 1


class NormBits:
    """DQ-SGD: b = log2(t·α^((N-n)/2)·‖g‖_p + 1) + 1 of the last step's mean norm over the ranks; where
    t is not given, it follows the wanted mean."""

    def __init__(
        self, wanted: float, t: float | None, p: float, most: int = 8, steps: int = 0, alpha: float = 1.0
    ) -> None:
        self.wanted, self.given, self.p, self.most = wanted, t, p, most
        self.total_steps, self.alpha = steps, alpha
        self.norms: list[float] = []
        self.used: list[int] = []

    @property
    def bits(self) -> int:
        exact = self.exact()
        assert self.given is None or abs(exact % 1 - 0.5) > 1e-6, f"{exact}: too near an edge"
        return min(max(round(exact), 2), self.most)

    def exact(self) -> float:
        if not self.norms:
            return round(self.wanted)
        return math.log2(self.t() * self.growth(len(self.norms)) * self.norms[-1] + 1) + 1

    def growth(self, step: int) -> float:
        return self.alpha ** (max(self.total_steps - step, 0) / 2)

    def t(self) -> float:
        """Given, or such that the first 50 norms' mean would get the wanted bits, and what the mean of the
        bits so far lacks, times 8 or a quarter of the steps."""
        if self.given is not None:
            return self.given
        typical = math.fsum(self.norms[:50]) / len(self.norms[:50])
        lacking = self.wanted - sum(self.used) / len(self.used)
        return (
            (2 ** (self.wanted - 1) - 1)
            / (typical * self.growth(0))
            * 2 ** (min(8, len(self.used) / 4) * lacking)
        )

    def learn(self, each: list[Floats]) -> None:
        self.used.append(self.bits)
        norms = [np.linalg.norm(g.astype(np.float64), self.p) for g in each]
        self.norms.append(float(np.mean(norms)))


class RelativeSize:
    """Øland and Raj, one tensor: b = most + round(log2(rms / largest rms) / 2), from the last step's. The
    largest is that of all tensors in that step, or ever with `history`."""

    def __init__(self, least: int, most: int, history: bool, model: list[RelativeSize]) -> None:
        self.least, self.most, self.history, self.model = least, most, history, model
        self.sizes: list[float] = []
        model.append(self)

    def bits_of(self, step: int) -> int:
        if not step:
            return self.most
        begin = 0 if self.history else step - 1
        largest = max(max(each.sizes[begin:step]) for each in self.model)
        mine = self.sizes[step - 1]
        if not mine or not largest:
            return self.most
        return min(max(self.most + round(math.log2(mine / largest) / 2), self.least), self.most)

    def learn(self, each: list[Floats]) -> None:
        squares = [np.mean(g.astype(np.float64) ** 2) for g in each]
        self.sizes.append(math.sqrt(float(np.mean(squares))))


class LossLearning:
    """MQGrad: a table of three states (the loss fell, stayed, rose) and three actions (one bit fewer, none,
    one more), ε-greedy, rewarded by the relative fall per bit."""

    def __init__(
        self, start: int, least: int, most: int, interval: int, epsilon: float, fall: float = 0.01
    ) -> None:
        self.bits, self.least, self.most = start, least, most
        self.interval, self.epsilon, self.fall = interval, epsilon, fall
        self.table = [[0.0] * 3 for _ in range(3)]
        self.losses: list[float] = []
        self.before: float | None = None
        self.last: tuple[int, int] | None = None
        self.steps = 0

    def learn(self, losses: list[float]) -> None:
        """The losses that ranks reported in a step, which may be none."""
        if losses:
            self.losses.append(math.fsum(losses) / len(losses))
        self.steps += 1
        if self.steps % self.interval or not self.losses:
            return
        mean = math.fsum(self.losses) / len(self.losses)
        if self.before is not None:
            self.decide((self.before - mean) / abs(self.before))
        self.before, self.losses = mean, []

    def decide(self, fall: float) -> None:
        state = 0 if fall > self.fall else 2 if fall < 0 else 1
        if self.last is not None:
            row, column = self.last
            value = fall / self.bits + 0.9 * max(self.table[state])
            self.table[row][column] += 0.5 * (value - self.table[row][column])
        explore, which = Draw(key_of(0, ""), self.steps - 1, EVERYONE, EXPLORE_STREAM).uniform(2).tolist()
        if explore < self.epsilon:
            action = int(3 * which)
        elif len(set(self.table[state])) == 1:
            action = 1
        else:
            action = self.table[state].index(max(self.table[state]))
        self.last = state, action
        self.bits = min(max(self.bits + action - 1, self.least), self.most)


def payload_bytes(n: int, k: int, bits: int) -> int:
    """The wire format's: header, scales, high bits and fields in whole words."""
    low = math.floor(math.log2(n / k))
    scales = 0 if bits == 16 else 4 * min(bits, 2)
    if bits == 16 and k == n:
        return 16 + 4 * math.ceil(n * bits / 32)
    high = k + math.ceil(n / 2**low)
    return 16 + scales + 4 * math.ceil(high / 32) + 4 * math.ceil(k * (low + bits) / 32)


def best_of_budget(v: Floats, ratio: float) -> tuple[int, int, dict[int, float]]:
    """k and bits that leave least of ‖v‖² unsent among payloads of at most 4·n/ratio bytes, by trying all of
    them on the tensor itself; and what each number of bits leaves."""
    left, slots = {}, {}
    for bits in BUDGET_BITS:
        fitting = [k for k in range(1, v.size + 1) if payload_bytes(v.size, k, bits) <= 4 * v.size / ratio]
        slots[bits] = max(fitting, default=1)
        places = sorted(top_k(v, slots[bits]))
        decoded = np.zeros(v.size)
        decoded[places] = levels(v[places], bits)[0]
        left[bits] = math.fsum((v.astype(np.float64) - decoded) ** 2)
    best = min(BUDGET_BITS, key=lambda bits: left[bits])
    return slots[best], best, left
