"""For equal gradients, seeds and methods PyTorch, TensorFlow and NumPy over MPI send equal payloads."""

from __future__ import annotations

import json
from pathlib import Path

from tests.launch import run_mpi, run_ranks

PROGRAM = Path(__file__).parent / "bytes_program.py"


def test_same_bytes(tmp_path: Path) -> None:
    for framework in ("torch", "tensorflow"):
        run_ranks(PROGRAM, 2, "gloo", timeout=200, args=[framework, str(tmp_path)])
    run_mpi(PROGRAM, 2, timeout=100, args=["mpi", str(tmp_path)])
    everyones = []
    for rank in range(2):
        torch, tensorflow, mpi = (
            json.loads((tmp_path / f"{framework}-{rank}.json").read_text())
            for framework in ("torch", "tensorflow", "mpi")
        )
        assert len(torch) == 5 * 3 * 50 + 5 * 3 * 12
        assert torch == mpi
        assert torch == tensorflow
        everyones.append(torch)
    assert all(one != other for one, other in zip(*(each.values() for each in everyones), strict=True))
