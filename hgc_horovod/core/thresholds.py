"""Selectors that send what reaches a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from . import check
from .context import Context
from .select import Taking, largest
from .types import Floats, Indices

_SAMPLE_STREAM = 1


@dataclass(frozen=True)
class FixedThreshold(Taking):
    """Entries with |v| ≥ τ, each sent as ±τ (Strom, 2015). The density is what the user expects of it."""

    kind: ClassVar[str] = "fixed_threshold"
    varies: ClassVar[bool] = True
    tau: float
    expected_density: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "tau", check.factor("tau", self.tau))
        expected = check.fraction("expected_density", self.expected_density)
        object.__setattr__(self, "expected_density", expected)

    @property
    def density(self) -> float:
        return self.expected_density

    def select(self, values: Floats, k: int, context: Context) -> Indices:
        return context.passes.at_least(values, np.array([self.tau], np.float32), max(values.size, 1))

    def take(self, chosen: Floats, context: Context) -> Floats:
        return np.copysign(np.float32(self.tau), chosen)


@dataclass(frozen=True)
class SampledThreshold(Taking):
    """Entries that reach the (1 - density) quantile of a sample of magnitudes: about `density` of them.

    `sample` is the sample's share of the tensor, drawn anew in every step, and at least `_LEAST` entries.
    With `threshold` "tensor" each tensor has its own. With "model" one holds for all tensors of a rank, from
    the samples that they drew in the step before, each counted for the entries that it stands for; in the
    first step each still has its own.
    """

    kind: ClassVar[str] = "sampled_threshold"
    varies: ClassVar[bool] = True
    density: float
    sample: float = 0.001
    threshold: str = "tensor"

    def __post_init__(self) -> None:
        for name in ("density", "sample"):
            object.__setattr__(self, name, check.fraction(name, getattr(self, name)))
        if self.threshold not in ("tensor", "model"):
            raise ValueError(f'threshold must be "tensor" or "model"; got {self.threshold!r}')

    def select(self, values: Floats, k: int, context: Context) -> Indices:
        n = values.size
        density = k / max(n, 1)
        count = min(n, max(math.ceil(self.sample * n), math.ceil(_LEAST / density)))
        drawn = np.abs(values[context.draw.of(_SAMPLE_STREAM).words(count) % np.uint32(max(n, 1))])
        weights = np.full(count, n / max(count, 1))
        if self.threshold == "model":
            told = context.peers.heard("sample", context.step)
            context.memory["sample"] = np.stack([drawn, weights])
            if told:
                drawn, weights = np.concatenate(told, axis=1)
        limit = np.array([_quantile(drawn, weights, density)], np.float32)
        return context.passes.at_least(values, limit, max(n, 1))


@dataclass(frozen=True)
class AdaptedThreshold(Taking):
    """At most k entries that reach a sampled threshold, which is adapted where it lets too few or many pass
    (Deep Gradient Compression's selection).

    The threshold comes from every 1/`sample`-th magnitude. Where fewer than `lower`·k entries reach it, it is
    lowered to `lower` of itself, up to ten times; where more than k do, the k largest of them are sent, and
    between `lower`·k and k all that there are.
    """

    kind: ClassVar[str] = "adapted_threshold"
    density: float
    sample: float = 0.01
    lower: float = 0.8

    def __post_init__(self) -> None:
        for name in ("density", "sample", "lower"):
            object.__setattr__(self, name, check.fraction(name, getattr(self, name)))

    def select(self, values: Floats, k: int, context: Context) -> Indices:
        n = values.size
        count = min(n, max(math.ceil(self.sample * n), math.ceil(n / max(k, 1))))
        stride = max(n // max(count, 1), 1)
        first = int(context.draw.of(_SAMPLE_STREAM).words(1)[0]) % stride
        drawn = np.abs(values[first::stride])
        limit = _quantile(drawn, np.ones(drawn.size), k / max(n, 1))
        for _ in range(_ADAPTATIONS):
            chosen = context.passes.at_least(values, np.array([limit], np.float32), max(n, 1))
            if chosen.size >= self.lower * k or limit == 0:
                break
            limit *= np.float32(self.lower)
        return chosen if chosen.size <= k else chosen[largest(values[chosen], k)]


_LEAST = 64  # sampled entries above a threshold, so that chance alone moves the density by some 12 %
_ADAPTATIONS = 10


def _quantile(magnitudes: Floats, weights: np.ndarray, density: float) -> np.float32:
    """The magnitude that about `density` of all that the sample stands for reaches."""
    if not magnitudes.size:
        return np.float32(0)
    order = np.argsort(magnitudes, kind="stable")[::-1]
    passed = np.cumsum(weights[order])
    place = np.searchsorted(passed, density * passed[-1] * (1 - 1e-9))
    return np.float32(magnitudes[order[min(place, order.size - 1)]])
