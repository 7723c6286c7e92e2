"""The lists of all cases: the `case_…` functions of this package's modules, once per variant.

`LONG` has those that two launches are enough for, and which only a part of their name starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType

from . import (
    agreeing,
    checkpoints,
    copies,
    equivalence,
    gradients,
    hooks,
    longrun,
    misuse,
    nonfinite,
    options,
    policies,
    reporting,
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
    copies,
    agreeing,
    reporting,
    misuse,
    surroundings,
    hooks,
    sets,
    training,
)


def _collect(modules: Iterable[ModuleType]) -> dict[str, Callable[[], None]]:
    found: dict[str, Callable[[], None]] = {}
    for module in modules:
        for name, function in vars(module).items():
            if name.startswith("case_"):
                title = f"{module.__name__.rpartition('.')[2]}.{name.removeprefix('case_')}"
                for label, arguments in getattr(function, "variants", {"": {}}).items():
                    found[f"{title}.{label}".rstrip(".")] = partial(function, **arguments)
    return found


CASES = _collect(_MODULES)
LONG = _collect([longrun])
