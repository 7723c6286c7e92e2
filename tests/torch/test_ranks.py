"""Every case of the rank programs, under both of Horovod's controllers, on two and on three ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launch import LaunchError, run_ranks

from .ranks.cases import CASES

PROGRAM = Path(__file__).parent / "ranks"
LAUNCHES = [(controller, ranks) for ranks in (2, 3) for controller in ("gloo", "mpi")]


class Outcome:
    """What one launch reported: per rank and case an error, or None where the case went well."""

    def __init__(self, controller: str, ranks: int, directory: Path) -> None:
        self.trouble: LaunchError | None = None
        try:
            run_ranks(
                PROGRAM,
                ranks,
                controller,
                timeout=600,
                args=[str(directory)],
                env={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"},
            )
        except LaunchError as error:
            self.trouble = error
        self.errors: list[dict[str, str | None]] = []
        for rank in range(ranks):
            path = directory / f"{rank}.jsonl"
            lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
            self.errors.append({line["case"]: line["error"] for line in lines})


@pytest.fixture(scope="module", params=LAUNCHES, ids=lambda launch: f"{launch[0]}-{launch[1]}")
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    controller, ranks = request.param
    return Outcome(controller, ranks, tmp_path_factory.mktemp(f"{controller}-{ranks}"))


def test_launch(outcome: Outcome) -> None:
    """The program ended well on every rank, in time, and left no process behind."""
    if outcome.trouble:
        raise outcome.trouble


@pytest.mark.parametrize("case", CASES)
def test_case(outcome: Outcome, case: str) -> None:
    failures = []
    for rank, errors in enumerate(outcome.errors):
        if case not in errors:
            failures.append(f"rank {rank} never reported; its last case was {next(reversed(errors), 'none')}")
        elif errors[case] is not None:
            failures.append(f"rank {rank}:\n{errors[case]}")
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)
