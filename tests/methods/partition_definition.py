"""What the partition-based method's definition says; see `definitions`."""

from __future__ import annotations

import math

import numpy as np

from .definitions import Floats, words
from .sparse_definitions import Sparse

WEIGHT_STREAM, BINS, OUTPUTS, HIDDEN, FEATURES = 5, 64, 16, 8, 3


class Partition(Sparse):
    """Blocks are ordered by what a perceptron predicts; the key region and the sparse one have a threshold
    each, where the cumulated entropy of the histogram of log-magnitudes reaches a share."""

    def __init__(
        self, block: int, key_share: float, key_entropy: float, sparse_entropy: float, bits: int
    ) -> None:
        super().__init__(bits)
        self.block, self.key_share = block, key_share
        self.shares = key_entropy, sparse_entropy
        self.weights: dict[str, Floats] | None = None
        self.statistics: Floats | None = None

    def chooses(self, v: Floats) -> tuple[list[int], list[int]]:
        if not v.any():
            return [], []
        halves = [half_octaves(float(x)) for x in v]
        top = max(halves)
        blocks = [range(b, min(b + self.block, v.size)) for b in range(0, v.size, self.block)]
        histograms = np.zeros((len(blocks), BINS))
        for row, block in zip(histograms, blocks, strict=True):
            for i in block:
                row[max(BINS - 1 - (top - halves[i]), 0)] += 1

        now = np.array([statistics(row) for row in histograms], np.float32)
        before = now if self.statistics is None else self.statistics
        if self.weights is None:
            self.weights = self.first_weights()
        magnitudes = self.magnitudes(before)
        self.learn(before, histograms)
        self.statistics = (0.9 * before + (1 - 0.9) * now).astype(np.float32)

        order = sorted(range(len(blocks)), key=lambda block: (-magnitudes[block], block))
        keys = order[: max(1, round(self.key_share * len(blocks)))]
        chosen, near = [], []
        for share, region in zip(self.shares, (keys, order[len(keys) :]), strict=True):
            if not region:
                continue
            limit = threshold(sum(histograms[block] for block in region), share, top)
            for i in (i for block in region for i in blocks[block]):
                if v[i] and abs(float(v[i])) >= limit:
                    chosen.append(i)
                if v[i] and abs(abs(float(v[i])) - limit) < 1e-6 * limit and part_of_a_bin(limit):
                    near.append(i)
        return chosen, near

    def first_weights(self) -> dict[str, Floats]:
        count = FEATURES * HIDDEN
        drawn = np.array(words(count + HIDDEN * OUTPUTS, 0, self.rank, WEIGHT_STREAM)) / 2**32 - 0.5
        first, second = drawn[:count].reshape(FEATURES, HIDDEN), drawn[count:].reshape(HIDDEN, OUTPUTS)
        return {"w1": first, "b1": np.zeros(HIDDEN), "w2": second, "b2": np.zeros(OUTPUTS)}

    def forward(self, features: Floats) -> tuple[Floats, Floats]:
        """Of one block: hidden units and the predicted distribution."""
        assert self.weights is not None
        w = self.weights
        hidden = np.tanh(features.astype(np.float64) @ w["w1"] + w["b1"])
        odds = np.exp(hidden @ w["w2"] + w["b2"])
        return hidden, odds / odds.sum()

    def magnitudes(self, features: Floats) -> list[float]:
        """The mean of the predicted bins' magnitudes, in units of the smallest bin's."""
        per_output = BINS // OUTPUTS
        sizes = 2.0 ** (np.arange(OUTPUTS) * per_output / 2)  # two bins an octave
        return [float(self.forward(row)[1] @ sizes) for row in features]

    def learn(self, features: Floats, histograms: Floats) -> None:
        """One step of gradient descent, at a rate of 0.5, on some blocks' mean cross-entropy."""
        assert self.weights is not None
        stride = math.ceil(len(features) / 256)
        chosen = range(self.step % stride, len(features), stride)
        slope = {name: np.zeros_like(values) for name, values in self.weights.items()}
        for block in chosen:
            hidden, output = self.forward(features[block])
            wanted = histograms[block].reshape(OUTPUTS, -1).sum(axis=1) / histograms[block].sum()
            wrong = output - wanted
            back = (self.weights["w2"] @ wrong) * (1 - hidden**2)
            slope["w2"] += np.outer(hidden, wrong)
            slope["b2"] += wrong
            slope["w1"] += np.outer(features[block].astype(np.float64), back)
            slope["b1"] += back
        for name, values in self.weights.items():
            self.weights[name] = (
                (values - 0.5 * slope[name] / len(chosen)).astype(np.float32).astype(np.float64)
            )


def half_octaves(value: float) -> int:
    """Twice the exponent of a power of two, plus 1 from 1.5 times it on, counted from float32's smallest."""
    if value == 0:
        return 0
    mantissa, exponent = math.frexp(abs(value))
    if exponent - 1 < -126:  # denormal: below half of the least normal number, or not
        return int(abs(value) >= 2.0**-127)
    return 2 * (exponent - 1 + 127) + (mantissa >= 0.75)


def statistics(histogram: Floats) -> list[float]:
    """Mean, deviation and largest of a block's bins, below the tensor's largest, in 32 octaves."""
    places = [(bin_ - (BINS - 1)) / BINS for bin_ in range(BINS)]
    total = histogram.sum()
    mean = math.fsum(places * histogram) / total
    square = math.fsum(np.square(places) * histogram) / total
    return [
        mean,
        math.sqrt(max(square - mean**2, 0)),
        max(p for p, c in zip(places, histogram, strict=True) if c),
    ]


def threshold(histogram: Floats, share: float, top: int) -> float:
    """Where the entropy, cumulated from the smallest bin, reaches its share: within a bin by part."""
    total = histogram.sum()
    pieces = [-c / total * math.log2(c / total) if c else 0.0 for c in histogram]
    wanted, passed = share * sum(pieces), 0.0
    if sum(pieces) == 0:
        place, part = int(np.argmax(histogram)), 0.0
    else:
        for place, piece in enumerate(pieces):  # noqa: B007 - both are used behind the loop
            if passed + piece >= wanted:
                break
            passed += piece
        part = (wanted - passed) / piece
    half = max(top - (BINS - 1) + place + part, 0.0)
    octave, rest = divmod(half, 2)
    return 2.0 ** (octave - 127) * (1 + rest / 2) if octave else 2.0**-126 * rest / 2


def part_of_a_bin(limit: float) -> bool:
    """Whether a threshold is rounded at all: the bins' own edges are exact."""
    return math.frexp(limit)[0] not in (0.5, 0.75)
