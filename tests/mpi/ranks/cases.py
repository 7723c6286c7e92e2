"""The list of all cases: those of this package's modules."""

from __future__ import annotations

from tests.cases import collect

from . import (
    checkpoints,
    crossing,
    failing,
    flight,
    literature,
    memory,
    misuse,
    ordering,
    reporting,
    results,
    training,
)

CASES = collect(
    [
        *(results, literature, flight, crossing, ordering, failing, checkpoints, memory, misuse, reporting),
        training,
    ]
)
