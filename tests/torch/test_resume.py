"""A job that ends and goes on in new processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.launch import run_ranks

PROGRAM = Path(__file__).parent / "resume_program.py"


@pytest.mark.parametrize("controller", ["gloo", "mpi"])
def test_resumed_is_as_uninterrupted(controller: str, tmp_path: Path) -> None:
    for part in ("whole", "first", "second"):
        run_ranks(PROGRAM, 2, controller, timeout=120, args=[part, str(tmp_path)])
    whole, *others = (
        torch.load(tmp_path / f"{part}-{rank}.pt", weights_only=True)
        for part in ("whole", "second")
        for rank in range(2)
    )
    for other in others:
        assert all(torch.equal(other[name], p) for name, p in whole.items())
    halfway = torch.load(tmp_path / "first-0.pt", weights_only=True)
    assert not any(torch.equal(halfway[name], p) for name, p in whole.items())
