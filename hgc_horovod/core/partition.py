"""Selection by predicted regions: a partition into a key and a sparse region, with a threshold each.

A reconstruction of Guo, Liu & Zhang, Sensors 2021, from its summary: a small network predicts the
distribution of a tensor's gradient, by which the tensor is cut into a key and a sparse region, and in each
region what exceeds a threshold that is set by entropy is sent. Sizes, features and shares are this package's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from . import check
from .context import Context, Memory
from .passes import HISTOGRAM_BINS, half_octave
from .select import Taking
from .types import Floats, Indices

_HIDDEN, _OUTPUTS, _FEATURES = 8, 16, 3
_POOL = HISTOGRAM_BINS // _OUTPUTS
_RATE, _BATCH, _DECAY = 0.5, 256, 0.9
_STREAM = 5
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class EntropyPartition(Taking):
    """Blocks of `block` entries are ordered by the magnitude that a perceptron predicts for them; the first
    `key_share` of them are the key region, the rest the sparse one. In each region the threshold is where the
    entropy of the histogram of log-magnitudes, cumulated from the smallest magnitudes upwards, reaches
    `key_entropy` or `sparse_entropy` of the whole (within a bin, at that part of it), and what reaches that
    is sent: about 2 % of the entries at the defaults, of gradients from normal to heavy-tailed.

    The perceptron (three features of a block's running statistics, eight hidden units, 16 bins) learns
    online, one step of gradient descent on the cross-entropy of up to 256 blocks' histograms in each training
    step. `density` is what the user expects of it.
    """

    kind: ClassVar[str] = "entropy_partition"
    varies: ClassVar[bool] = True
    block: int = 256
    key_share: float = 0.25
    key_entropy: float = 0.94
    sparse_entropy: float = 0.97
    density: float = 0.02

    def __post_init__(self) -> None:
        object.__setattr__(self, "block", check.whole("block", self.block, 1, 2**31 - 1))
        for name in ("key_share", "key_entropy", "sparse_entropy", "density"):
            object.__setattr__(self, name, check.fraction(name, getattr(self, name)))

    def select(self, values: Floats, k: int, context: Context) -> Indices:
        passes, memory = context.passes, context.memory
        largest = passes.bucket_max(values, max(values.size, 1))
        if not largest.any():
            return np.zeros(0, np.int64)
        top = int(half_octave(largest)[0])
        histograms = passes.log_histograms(values, self.block, top)
        network = _Network(memory, context)
        statistics = _statistics(histograms, top)
        before = memory.get("statistics")
        if before is None or before.shape != statistics.shape:
            before = statistics
        predicted = network.predict(before)
        network.learn(before, histograms, context.step)
        network.keep(memory)
        memory["statistics"] = (_DECAY * before + (1 - _DECAY) * statistics).astype(np.float32)

        magnitude = predicted @ np.exp2(np.arange(_OUTPUTS) * _POOL / 2)
        keys = max(1, round(self.key_share * magnitude.size))
        is_key = np.zeros(magnitude.size, bool)
        is_key[np.argsort(-magnitude, kind="stable")[:keys]] = True
        limits = np.empty(magnitude.size, np.float32)
        for region, share in ((is_key, self.key_entropy), (~is_key, self.sparse_entropy)):
            limits[region] = _limit(histograms[region].sum(axis=0), share, top)
        return passes.at_least(values, limits, self.block)


class _Network:
    """A two-layer perceptron, whose weights are kept from step to step, float32."""

    def __init__(self, memory: Memory, context: Context) -> None:
        shapes = {"w1": (_FEATURES, _HIDDEN), "b1": (_HIDDEN,), "w2": (_HIDDEN, _OUTPUTS), "b2": (_OUTPUTS,)}
        if "w1" in memory:
            self.weights = {name: memory[name].astype(np.float64) for name in shapes}
            return
        words = iter(context.draw.of(_STREAM).uniform(_FEATURES * _HIDDEN + _HIDDEN * _OUTPUTS + 99) - 0.5)
        self.weights = {
            name: np.array(
                [next(words) if name[0] == "w" else 0.0 for _ in range(int(np.prod(shape)))]
            ).reshape(shape)
            for name, shape in shapes.items()
        }

    def keep(self, memory: Memory) -> None:
        memory.update({name: values.astype(np.float32) for name, values in self.weights.items()})

    def predict(self, features: Floats) -> Matrix:
        """Each block's distribution over 16 bins (blocks, 16)."""
        return self._forward(features)[1]

    def learn(self, features: Floats, histograms: NDArray[np.int64], step: int) -> None:
        """One step towards the histograms of some blocks."""
        stride = -(-features.shape[0] // _BATCH)
        features, histograms = features[step % stride :: stride], histograms[step % stride :: stride]
        hidden, output = self._forward(features)
        pooled = histograms.reshape(-1, _OUTPUTS, _POOL).sum(axis=2)
        wrong = (output - pooled / pooled.sum(axis=1, keepdims=True)) * (_RATE / features.shape[0])
        back = (wrong @ self.weights["w2"].T) * (1 - hidden * hidden)
        for name, change in (
            ("w2", hidden.T @ wrong),
            ("b2", wrong.sum(axis=0)),
            ("w1", features.T @ back),
            ("b1", back.sum(axis=0)),
        ):
            self.weights[name] -= change

    def _forward(self, features: Floats) -> tuple[Matrix, Matrix]:
        weights = self.weights
        hidden = np.tanh(features @ weights["w1"] + weights["b1"])
        scores = hidden @ weights["w2"] + weights["b2"]
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, odds / odds.sum(axis=1, keepdims=True)


def _statistics(histograms: NDArray[np.int64], top: int) -> Floats:
    """Of each block: mean, deviation and largest of its bins, below the tensor's largest, in 32 octaves."""
    places = (np.arange(HISTOGRAM_BINS) - (HISTOGRAM_BINS - 1)) / HISTOGRAM_BINS
    counts = histograms.sum(axis=1)
    mean = histograms @ places / counts
    spread = np.sqrt(np.maximum(histograms @ (places * places) / counts - mean * mean, 0))
    largest = places[HISTOGRAM_BINS - 1 - np.argmax(histograms[:, ::-1] > 0, axis=1)]
    return np.stack([mean, spread, largest], axis=1).astype(np.float32)


def _limit(histogram: NDArray[np.int64], share: float, top: int) -> np.float32:
    """The magnitude at which the entropy reaches its share, within its bin by the bin's part of the entropy;
    the bin's least where all are in one, and infinite where there are none."""
    if not histogram.any():
        return np.float32(np.inf)
    chances = histogram / histogram.sum()
    entropy = np.cumsum(np.where(chances > 0, -chances * np.log2(np.maximum(chances, 1e-300)), 0))
    place, part = int(np.argmax(histogram)), 0.0
    if entropy[-1] > 0:
        wanted = share * entropy[-1]
        place = int(np.searchsorted(entropy, wanted))
        before = entropy[place - 1] if place else 0.0
        part = float((wanted - before) / (entropy[place] - before))
    word = max(int((top - (HISTOGRAM_BINS - 1) + place + part) * 2**22), 0)
    return np.float32(np.array([word], np.uint32).view(np.float32)[0])
