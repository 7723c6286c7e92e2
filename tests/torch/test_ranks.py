"""Every case of the rank programs, under both of Horovod's controllers, on two and on three ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import LAUNCHES, Outcome

from .ranks.cases import CASES


@pytest.fixture(scope="module", params=LAUNCHES, ids=lambda launch: f"{launch[0]}-{launch[1]}")
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    program = Path(__file__).parent / "ranks"
    return Outcome(program, request.param, tmp_path_factory, {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"})


def test_launch(outcome: Outcome) -> None:
    outcome.check_launch()


@pytest.mark.parametrize("case", CASES)
def test_case(outcome: Outcome, case: str) -> None:
    outcome.check(case)
