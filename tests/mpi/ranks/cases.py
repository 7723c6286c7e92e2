"""The list of all cases: those of this package's modules."""

from __future__ import annotations

from tests.cases import collect

from . import checkpoints, failing, flight, misuse, ordering, reporting, results, training

CASES = collect([results, flight, ordering, failing, checkpoints, misuse, reporting, training])
