"""Run on every rank: `python tests/mpi/ranks DIRECTORY [PART OF A NAME]`. Executes all cases, or those of
such a name; see tests/cases.py."""

from __future__ import annotations

import sys

from mpi4py import MPI

from tests.cases import execute
from tests.mpi.ranks.cases import CASES


def main(directory: str, part: str = "") -> None:
    cases = {name: case for name, case in CASES.items() if part in name}
    execute(cases, directory, MPI.COMM_WORLD.rank, lambda _: MPI.COMM_WORLD.Barrier())


if __name__ == "__main__":
    main(*sys.argv[1:])
