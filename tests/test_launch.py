"""The launcher of the rank programs: what it reports, and that nothing it started outlives it."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.launch import LaunchError, processes_with, run_mpi, run_ranks

# Each rank starts a process in a session of its own, as a launcher's helpers do.
DETACHED = """
import subprocess, sys
subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True,
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""


def launch(folder: Path, text: str, timeout: float, args: tuple[str, ...] = ()) -> str:
    """The error of a program on two ranks that is bound to fail, once none of its processes is left."""
    program, probe = folder / "program.py", uuid.uuid4().hex
    program.write_text(text)
    with pytest.raises(LaunchError) as caught:
        run_ranks(program, 2, "gloo", timeout, args=args, env={"PROBE": probe})
    assert not processes_with(f"PROBE={probe}")
    return str(caught.value)


def test_failure(tmp_path: Path) -> None:
    error = launch(tmp_path, "import sys; sys.exit(f'because of {sys.argv[1:]}')", 120, args=("one", "two"))
    assert error.startswith("program.py on 2 ranks with gloo ended with exit code ")
    assert "because of ['one', 'two']" in error


def test_time_limit(tmp_path: Path) -> None:
    error = launch(tmp_path, DETACHED + "import time; time.sleep(600)", 20)
    assert "did not end within 20 s" in error


def test_processes_left_behind(tmp_path: Path) -> None:
    error = launch(tmp_path, DETACHED, 120)
    assert "left processes behind" in error and "sleep(600)" in error


def test_mpi(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys; from mpi4py import MPI; print(*sys.argv[1:], MPI.COMM_WORLD.size)")
    output = run_mpi(program, 3, 120, args=("of",))  # the ranks' words may mix
    assert output.count("of") == output.count("3") == 3


def test_mpi_time_limit(tmp_path: Path) -> None:
    program, probe = tmp_path / "program.py", uuid.uuid4().hex
    program.write_text("from mpi4py import MPI\nif MPI.COMM_WORLD.rank: MPI.COMM_WORLD.recv()")
    with pytest.raises(LaunchError, match=r"program.py on 2 ranks of MPI did not end within 10 s"):
        run_mpi(program, 2, 10, env={"PROBE": probe})
    assert not processes_with(f"PROBE={probe}")
