"""Every case of the rank programs, under both of Horovod's controllers, on two and on three ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import Outcome

from .environment import ENVIRONMENT

# TensorFlow takes its time to trace: one launch for each controller and each number of ranks.
LAUNCHES = [("mpi", 2), ("gloo", 3)]


@pytest.fixture(scope="module", params=LAUNCHES, ids=lambda launch: f"{launch[0]}-{launch[1]}")
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return Outcome(Path(__file__).parent / "ranks", request.param, tmp_path_factory, ENVIRONMENT)


def test_launch(outcome: Outcome) -> None:
    outcome.check_launch()


def test_cases(outcome: Outcome) -> None:
    """All at once: to know their names would take TensorFlow, which does not go with PyTorch in a process."""
    outcome.check_all()
