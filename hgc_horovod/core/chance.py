"""Selectors that throw dice, or look at the neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from . import check
from .context import Context
from .passes import LARGEST
from .select import Taking
from .types import Floats, Indices

_ITERATIONS = 10
_LUCK_STREAM = 7  # not the one that quantizers round by


@dataclass(frozen=True)
class Proportional(Taking):
    """Entry i with probability p_i = min(λ·|v_i|, 1), sent as v_i / p_i: unbiased, of the least variance for
    its expected number of entries (Wangni et al., 2018).

    λ comes of the paper's greedy iteration: it starts at k / Σ|v|, and is raised for the entries that are not
    certain yet by what those that are have left of the k.
    """

    kind: ClassVar[str] = "proportional"
    varies: ClassVar[bool] = True
    density: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "density", check.fraction("density", self.density))

    def select(self, values: Floats, k: int, context: Context) -> Indices:
        factor = self._factor(values, k, context)
        context.memory["factor"] = np.array([factor], np.float32)
        return context.passes.lucky(values, factor, context.draw.of(_LUCK_STREAM))

    def take(self, chosen: Floats, context: Context) -> Floats:
        with np.errstate(divide="ignore", over="ignore"):
            least = np.minimum(np.float32(1) / context.memory["factor"][0], np.float32(LARGEST))
        return np.asarray(np.copysign(np.maximum(np.abs(chosen), least), chosen), np.float32)

    @staticmethod
    def _factor(values: Floats, k: int, context: Context) -> float:
        """λ, as a float32."""
        passes, n = context.passes, values.size
        uncertain, total = passes.sum_below(values, np.inf)
        factor = k / total if total else 0.0
        for _ in range(_ITERATIONS):
            if not factor:
                break
            uncertain, total = passes.sum_below(values, 1 / factor)
            left = k - (n - uncertain)
            if left <= 0 or not total or left <= total * factor * (1 + 1e-6):
                break
            factor = left / total
        return float(np.float32(min(factor, LARGEST)))


@dataclass(frozen=True)
class BinMax(Taking):
    """AdaComp's: in each bin of `bin_size` entries, those whose value would reach the bin's largest magnitude
    if this step's gradient came once more.

    H = v + g is compared with the bin's largest |v|; what is chosen is sent as the sign of v times the mean
    of all bins' largest magnitudes. The density is what the user expects of it.
    """

    kind: ClassVar[str] = "bin_max"
    varies: ClassVar[bool] = True
    bin_size: int = 500
    expected_density: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "bin_size", check.whole("bin_size", self.bin_size, 1, 2**31 - 1))
        expected = check.fraction("expected_density", self.expected_density)
        object.__setattr__(self, "expected_density", expected)

    @property
    def density(self) -> float:
        return self.expected_density

    def select(self, values: Floats, k: int, context: Context) -> Indices:
        assert context.update is not None
        limits = context.passes.bucket_max(values, self.bin_size)
        context.memory["scale"] = context.passes.bucket_mean(limits, max(limits.size, 1))
        with np.errstate(over="ignore"):
            ahead = np.nan_to_num(values + context.update())
        chosen = context.passes.at_least(ahead, limits, self.bin_size)
        return np.asarray(chosen[values[chosen] != 0], np.int64)

    def take(self, chosen: Floats, context: Context) -> Floats:
        return np.copysign(context.memory["scale"][0], chosen) if chosen.size else chosen
