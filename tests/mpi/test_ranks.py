"""Every case of the rank programs under mpirun, on two, three and four ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import Outcome


@pytest.fixture(scope="module", params=(2, 3, 4))
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return Outcome(Path(__file__).parent / "ranks", ("mpirun", request.param), tmp_path_factory)


def test_launch(outcome: Outcome) -> None:
    outcome.check_launch()


def test_cases(outcome: Outcome) -> None:
    """All at once: to know their names would take mpi4py, which starts MPI where it is imported."""
    outcome.check_all()
