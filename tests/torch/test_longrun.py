"""The rank programs' long cases, once under each of Horovod's controllers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launch import run_ranks

from .ranks.cases import LONG

PROGRAM = Path(__file__).parent / "ranks"


@pytest.mark.parametrize("case", LONG)
@pytest.mark.parametrize("controller", ["gloo", "mpi"])
def test_long_run(controller: str, case: str, tmp_path: Path) -> None:
    run_ranks(PROGRAM, 2, controller, timeout=200, args=[str(tmp_path), case])
    for rank in range(2):
        (line,) = (tmp_path / f"{rank}.jsonl").read_text().splitlines()
        outcome = json.loads(line)
        assert outcome["case"] == case
        if outcome["error"]:
            pytest.fail(f"rank {rank}:\n{outcome['error']}", pytrace=False)
