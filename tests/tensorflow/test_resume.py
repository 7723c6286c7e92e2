"""A job that ends and goes on in new processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.launch import run_ranks

from .environment import ENVIRONMENT

PROGRAM = Path(__file__).parent / "resume_program.py"


@pytest.mark.parametrize("controller", ["gloo", "mpi"])
def test_resumed_is_as_uninterrupted(controller: str, tmp_path: Path) -> None:
    for part in ("whole", "first", "second"):
        run_ranks(PROGRAM, 2, controller, timeout=200, args=[part, str(tmp_path)], env=ENVIRONMENT)
    whole, *others = (
        list(np.load(tmp_path / f"{part}-{rank}.npz").values())
        for part in ("whole", "second")
        for rank in range(2)
    )
    for other in others:
        assert all(map(np.array_equal, other, whole))
    halfway = list(np.load(tmp_path / "first-0.npz").values())
    assert not any(map(np.array_equal, halfway, whole))
