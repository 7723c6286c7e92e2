"""The lists of all cases: those of this package's modules.

`LONG` has those that two launches are enough for, and which only a part of their name starts.
"""

from __future__ import annotations

from types import ModuleType

from tests.cases import collect

from . import (
    adapting,
    agreeing,
    checkpoints,
    copies,
    equivalence,
    gradients,
    hooks,
    literature,
    loading,
    longrun,
    misuse,
    nonfinite,
    options,
    policies,
    reporting,
    rounds,
    scaling,
    sets,
    steps,
    surroundings,
    tensors,
    training,
)

_MODULES: tuple[ModuleType, ...] = (
    gradients,
    tensors,
    equivalence,
    options,
    nonfinite,
    scaling,
    steps,
    policies,
    checkpoints,
    loading,
    copies,
    agreeing,
    reporting,
    misuse,
    surroundings,
    hooks,
    literature,
    rounds,
    adapting,
    sets,
    training,
)


CASES = collect(_MODULES)
LONG = collect([longrun])
