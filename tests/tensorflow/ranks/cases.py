"""The list of all cases: those of this package's modules."""

from __future__ import annotations

from tests.cases import collect

from . import fitting, gradients, kept, literature, misuse, saving, scaling, sets, steady

CASES = collect([gradients, literature, kept, fitting, scaling, saving, sets, steady, misuse])
