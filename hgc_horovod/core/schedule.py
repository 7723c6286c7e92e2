"""Schedules: how the density falls to its final value at the start of a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from . import check


@dataclass(frozen=True)
class Warmup:
    """`dense_steps` steps without compression, then stages of `stage_steps` steps, then the method's density.

    Stage e of `stages` has the density max(ρ, ρ^((e+1)/(stages+1))), for example 0.4, 0.16, 0.063, 0.025 on
    the way to 0.01 in four stages (Lin et al., 1712.01887, section 3.3, with its 75 to 99.9 % as a case).
    `densities` lists the stages' densities instead.
    """

    kind: ClassVar[str] = "warmup"
    dense_steps: int = 0
    stage_steps: int = 0
    stages: int = 0
    densities: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("dense_steps", "stage_steps", "stages"):
            object.__setattr__(self, name, check.whole(name, getattr(self, name), 0))
        if self.densities is not None:
            checked = tuple(check.fraction("warmup", d) for d in self.densities)
            object.__setattr__(self, "densities", checked)

    @cached_property
    def steps(self) -> int:
        """How many steps pass before the density is final."""
        stages = self.stages if self.densities is None else len(self.densities)
        return self.dense_steps + stages * self.stage_steps

    def density(self, step: int, final: float) -> float:
        """The density of step `step` (0 is the first step) on the way to `final`."""
        stages = self.stages if self.densities is None else len(self.densities)
        stage = (step - self.dense_steps) // self.stage_steps if self.stage_steps else stages
        if stage >= stages or not stages:
            return final
        stage = max(stage, 0)
        if self.densities is not None:
            return self.densities[stage]
        return max(final, float(final ** ((stage + 1) / (stages + 1))))
