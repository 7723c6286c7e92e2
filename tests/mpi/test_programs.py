"""The snippets of docs/mpi.md as one program, and the example, on two real ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.launch import ROOT, run_mpi

PRINT = "if comm.rank == 0:\n    print(everyones, flush=True)"


def test_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs/mpi.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(snippets) == 3
    program = tmp_path / "page.py"
    program.write_text(
        "\n".join([*snippets, "everyones = comm.allgather(weights['weight'].tobytes().hex()[:400])", PRINT])
    )
    output = run_mpi(program, 2, timeout=120)
    assert "1 of 2 tensors, 7,840 of 7,850 entries, 20 steps" in output
    assert "[(0, 4)" in output
    (line,) = (line for line in output.splitlines() if line.startswith("['"))
    mine, its = json.loads(line.replace("'", '"'))
    assert mine == its and mine.strip("0")


@pytest.mark.parametrize(("compression", "least", "most"), [("none", 0.9, 1), ("hgc", 30, 200)])
def test_the_example(compression: str, least: float, most: float) -> None:
    """It learns in few steps, and sends what it says."""
    options = f"--compression {compression} --steps 100 --warmup-epochs 0.2".split()
    output = run_mpi(ROOT / "examples/numpy_mpi.py", 2, timeout=120, args=options)
    result = json.loads(output.splitlines()[-1])
    assert (result["ranks"], result["steps"]) == (2, 100)
    assert result["test_accuracy"] > 0.7
    assert least < result["ratio"] <= most
    assert result["bytes_sent"] == pytest.approx(100 * 4 * 7850 / result["ratio"], rel=0.01)
