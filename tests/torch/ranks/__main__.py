"""Run on every rank: `python tests/torch/ranks DIRECTORY [PART OF A NAME]`. Executes all cases but long ones,
or those of such a name; see tests/cases.py."""

from __future__ import annotations

import sys

import horovod.torch as hvd
import torch

from tests.cases import execute
from tests.torch.ranks.cases import CASES, LONG


def main(directory: str, part: str = "") -> None:
    torch.set_num_threads(1)
    hvd.init()
    cases = {name: case for name, case in {**CASES, **LONG}.items() if part in name} if part else CASES
    execute(cases, directory, hvd.rank(), lambda name: hvd.allreduce(torch.zeros(1), name=name))
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
