"""Feedback: what happens to a gradient before entries are chosen, and what is kept of it afterwards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from . import check, sums
from .types import Floats


@dataclass(frozen=True)
class Feedback:
    """Error feedback with momentum correction, Nesterov, masking and local clipping.

    With gradient g, momentum buffer u, residual e and W ranks::

        g ← g · factor · min(1, clip · W^(-1/2) / ‖factor · g‖₂) where `factor` and `clip` are given
        g ← g + weight_decay · weight                            where the caller passes them
        u ← m·u + g,        v = e + u                            momentum m > 0
        u ← m·u + g,        v = e + (g + m·u)                    the same with Nesterov
                            v = e + g                            m = 0
        e ← v - decode(encode(v))                                `keep`; without it e stays zero
        u ← 0 at the entries that were sent                      `masking`, m > 0

    Unmasked momentum correction is error feedback on the local momentum (dist-EF-SGDM: Zheng, Huang & Kwok,
    2019); masked, it is Deep Gradient Compression's (Lin et al., 1712.01887, sections 3.1 and 3.2).
    Every operation is float32, rounded after each step; what g is multiplied by is one float32.
    """

    kind: ClassVar[str] = "feedback"
    keep: bool = True
    momentum: float = 0.0
    nesterov: bool = False
    masking: bool = False
    clip: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep", check.flag("feedback", self.keep))
        for name in ("nesterov", "masking"):
            object.__setattr__(self, name, check.flag(name, getattr(self, name)))
        object.__setattr__(self, "momentum", check.real("momentum", self.momentum))
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1; got {self.momentum!r}")
        if self.clip is not None:
            object.__setattr__(self, "clip", check.real("clip", self.clip))
            if self.clip <= 0:
                raise ValueError(f"clip must be above 0; got {self.clip!r}")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0; got momentum=0")

    def multiplier(self, gradient: Floats, world_size: int, factor: float = 1.0) -> np.float32:
        """factor · min(1, clip · W^(-1/2) / ‖factor · g‖₂) in float32; the factor without clipping."""
        if self.clip is None:
            return np.float32(factor)
        norm = math.sqrt(sums.square_sum(gradient)) * math.sqrt(world_size) * factor
        return np.float32(factor if norm <= self.clip else factor * (self.clip / norm))

    def advance(self, momentum: Floats, gradient: Floats) -> tuple[Floats, Floats]:
        """One momentum step: (new momentum buffer, what is to be applied or accumulated)."""
        buffer = np.float32(self.momentum) * momentum + gradient
        return buffer, self.direction(buffer, gradient)

    def direction(self, momentum: Floats, gradient: Floats) -> Floats:
        """What is accumulated of a gradient, given the momentum buffer that it has entered."""
        return gradient + np.float32(self.momentum) * momentum if self.nesterov else momentum

    def retreat(self, momentum: Floats, gradient: Floats) -> Floats:
        """The momentum buffer before `advance`, to float32 rounding."""
        return (momentum - gradient) / np.float32(self.momentum)
