"""The list of all cases: the `case_…` functions of this package's modules, once per variant."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType

from . import equivalence, gradients, misuse, nonfinite, options, reporting, tensors, training

_MODULES: tuple[ModuleType, ...] = (
    gradients,
    tensors,
    equivalence,
    options,
    nonfinite,
    reporting,
    misuse,
    training,
)


def _collect() -> dict[str, Callable[[], None]]:
    found: dict[str, Callable[[], None]] = {}
    for module in _MODULES:
        for name, function in vars(module).items():
            if name.startswith("case_"):
                title = f"{module.__name__.rpartition('.')[2]}.{name.removeprefix('case_')}"
                for label, arguments in getattr(function, "variants", {"": {}}).items():
                    found[f"{title}.{label}".rstrip(".")] = partial(function, **arguments)
    return found


CASES = _collect()
