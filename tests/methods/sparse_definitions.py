"""What the formulas of the methods say that send some entries; see `definitions`."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from .definitions import NAME, NEAR, Definition, Floats, buckets, single, words

SAMPLE_STREAM, LUCK_STREAM = 1, 7


def top_k(v: Floats, k: int) -> list[int]:
    """The k largest magnitudes, of equal ones the lower positions; no zeros."""
    order = sorted(range(v.size), key=lambda i: (-abs(float(v[i])), i))
    return [i for i in order[:k] if v[i] != 0]


def count(n: int, density: float) -> int:
    """n·density, rounded half up, and at least 1."""
    return min(n, max(1, math.floor(Fraction(n) * Fraction(density) + Fraction(1, 2))))


def levels(kept: Floats, bits: int) -> tuple[Floats, Floats]:
    """The survivors as their `bits` say: sign × mean magnitude, geometric levels, bfloat16 or raw."""
    kept = kept.astype(np.float64)
    loose = np.zeros(kept.size, bool)
    if bits == 32 or not kept.size:
        return kept, loose
    if bits == 16:
        step = 2.0 ** (np.floor(np.log2(np.abs(kept))) - 7)
        return np.rint(kept / step) * step, loose
    sizes = np.abs(kept)
    if bits == 1:
        return np.sign(kept) * (math.fsum(sizes) / kept.size), loose
    count = 2 ** (bits - 1)
    low = sizes.min()
    high = min(sizes.max(), low * 4.0**count)
    out = np.empty(kept.size)
    for i, size in enumerate(sizes):
        place = count * math.log(size / low) / math.log(high / low) if high > low else 0.0
        level = min(max(math.floor(place), 0), count - 1)
        loose[i] = abs(place - round(place)) < NEAR * count and 0 < round(place) < count
        out[i] = math.copysign(low * (high / low) ** ((level + 0.5) / count), kept[i])
    return out, loose


class Sparse(Definition):
    """A method that sends the entries which `chooses` names, as `values` of them."""

    def __init__(self, bits: int = 32, **more: object) -> None:
        super().__init__(**{"keep": True, **more})
        self.bits = bits

    def chooses(self, v: Floats) -> tuple[list[int], list[int]]:
        """The positions, and those whose choice is loose."""
        raise NotImplementedError

    def values(self, chosen: Floats) -> tuple[Floats, Floats]:
        return levels(chosen, self.bits)

    def sends(self, v: Floats) -> tuple[Floats, Floats]:
        places, near = self.chooses(v)
        places = sorted(places)
        out, loose, self.sent = np.zeros(v.size), np.zeros(v.size, bool), np.zeros(v.size, bool)
        out[places], loose[places] = self.values(v[places])
        loose[near], self.sent[places] = True, True
        return out, loose


class Largest(Sparse):
    """The hybrid method's selection and Mem-SGD's: exactly the k largest, k following the warm-up."""

    def __init__(
        self, density: float, bits: int, warmup: tuple[float, ...] = (), stage: int = 1, **more: object
    ):
        super().__init__(bits, **more)
        self.density, self.warmup, self.stage = density, warmup, stage

    def chooses(self, v: Floats) -> tuple[list[int], list[int]]:
        at = self.step // self.stage
        density = self.warmup[at] if at < len(self.warmup) else self.density
        return top_k(v, count(v.size, density)), []


class Fixed(Sparse):
    """Strom's: |v| ≥ τ is sent as ±τ."""

    def __init__(self, tau: float) -> None:
        super().__init__()
        self.tau = single(tau)

    def chooses(self, v: Floats) -> tuple[list[int], list[int]]:
        sizes = [abs(float(x)) for x in v]
        near = [i for i, size in enumerate(sizes) if abs(size - self.tau) < 1e-6 * self.tau and self.step]
        return [i for i, size in enumerate(sizes) if size >= self.tau], near

    def values(self, chosen: Floats) -> tuple[Floats, Floats]:
        return np.array([math.copysign(self.tau, x) for x in chosen]), np.zeros(chosen.size, bool)


def quantile(sizes: list[float], weights: list[float], density: float) -> float:
    """The magnitude that a share `density` of what the sample stands for reaches."""
    passed, total = 0.0, math.fsum(weights)
    for size, weight in sorted(zip(sizes, weights, strict=True), reverse=True):
        passed += weight
        if passed >= density * total * (1 - 1e-9):
            return size
    return 0.0


class Dropping(Sparse):
    """Gradient dropping: the (1 - density) quantile of a random sample, of this tensor's, or of the samples
    that all tensors of `model` drew in the step before."""

    def __init__(
        self, density: float, sample: float, model: list[Dropping] | None = None, name: str = NAME
    ) -> None:
        super().__init__()
        self.density, self.sample, self.model, self.name = density, sample, model, name
        self.drawn: dict[int, tuple[list[float], list[float]]] = {}

    def chooses(self, v: Floats) -> tuple[list[int], list[int]]:
        n = v.size
        density = count(n, self.density) / n
        size = min(n, max(math.ceil(self.sample * n), math.ceil(64 / density)))
        lots = words(size, self.step, self.rank, SAMPLE_STREAM, self.name)
        sizes, weights = [abs(float(v[lot % n])) for lot in lots], [n / size] * size
        self.drawn[self.step] = sizes, weights
        if self.model is not None and self.step:
            told = [each.drawn[self.step - 1] for each in self.model]
            sizes = [size for sizes, _ in told for size in sizes]
            weights = [weight for _, weights in told for weight in weights]
        limit = quantile(sizes, weights, density)
        return [i for i in range(n) if abs(float(v[i])) >= limit and v[i] != 0], []


class Adapted(Largest):
    """Deep gradient compression's: a threshold of a strided sample, lowered up to ten times while fewer than
    0.8·k reach it; of more than k the largest."""

    def __init__(self, density: float, sample: float, bits: int = 32, **more: object) -> None:
        super().__init__(density, bits, **more)
        self.sample = sample

    def chooses(self, v: Floats) -> tuple[list[int], list[int]]:
        n, at = v.size, self.step // self.stage
        k = count(n, self.warmup[at] if at < len(self.warmup) else self.density)
        stride = max(n // min(n, max(math.ceil(self.sample * n), math.ceil(n / k))), 1)
        first = words(1, self.step, self.rank, SAMPLE_STREAM)[0] % stride
        sample = [abs(float(x)) for x in v[first::stride]]
        limit = quantile(sample, [1.0] * len(sample), k / n)
        for _ in range(10):
            passed = [i for i in range(n) if abs(float(v[i])) >= limit and v[i] != 0]
            if len(passed) >= 0.8 * k or limit == 0:
                break
            limit = single(limit * single(0.8))
        if len(passed) > k:
            kept = set(passed)
            passed = top_k(np.where([i in kept for i in range(n)], v, 0), k)
        return passed, []


class Bins(Sparse):
    """AdaComp: |v + g| ≥ max|v| of the bin; sent as the sign of v times the mean of the bins' largest."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def chooses(self, v: Floats) -> tuple[list[int], list[int]]:
        assert self.g is not None
        ahead = v + self.g
        places, largest = [], []
        for places_of_bin in buckets(v.size, self.size):
            limit = max(abs(float(v[i])) for i in places_of_bin)
            largest.append(limit)
            places += [i for i in places_of_bin if abs(float(ahead[i])) >= limit and v[i] != 0]
        self.scale = single(math.fsum(largest) / len(largest))
        return places, []

    def values(self, chosen: Floats) -> tuple[Floats, Floats]:
        return np.array([math.copysign(self.scale, x) for x in chosen]), np.zeros(chosen.size, bool)


class Greedy(Sparse):
    """Wangni et al.: p by the paper's iteration p ← min(c·p, 1), and g_i / p_i with probability p_i."""

    def __init__(self, density: float) -> None:
        super().__init__(keep=False)
        self.density = density

    def chances(self, v: Floats) -> list[float]:
        sizes, k = [abs(float(x)) for x in v], count(v.size, self.density)
        total = math.fsum(sizes)
        if not total:
            return [0.0] * v.size
        chances = [min(k * size / total, 1.0) for size in sizes]
        for _ in range(10):
            free = [p for p in chances if p < 1]
            left = k - (v.size - len(free))
            if left <= 0 or not math.fsum(free) or left / math.fsum(free) <= 1 + 1e-6:
                break
            growth = left / math.fsum(free)
            chances = [min(growth * p, 1.0) for p in chances]
        return chances

    def chooses(self, v: Floats) -> tuple[list[int], list[int]]:
        self.p = np.array(self.chances(v))
        lots = np.array(words(v.size, self.step, self.rank, LUCK_STREAM)) / 2**32
        near = np.flatnonzero((np.abs(lots - self.p) < NEAR) & (self.p > 0))
        self.places = np.flatnonzero(lots < self.p)
        return self.places.tolist(), near.tolist()

    def values(self, chosen: Floats) -> tuple[Floats, Floats]:
        return chosen / self.p[self.places], np.zeros(chosen.size, bool)
