"""Starts a program on several ranks of this machine, and lets no process of it outlive the call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(sys.executable).parent
HOROVODRUN = TOOLS / "horovodrun"
MARK = "HGC_TEST_LAUNCH"  # in the environment of every process of a launch, whatever its session
GRACE = 10.0  # seconds that processes get to end by themselves

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    # A collective that some rank never joins ends the job with an error on every rank.
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "20",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "60",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "120",
    # More ranks than cores: an MPI rank that waits gives its core away.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


class LaunchError(AssertionError):
    """The program failed, took too long or left processes behind. The message ends with its last output."""


def run_ranks(
    script: str | Path,
    ranks: int,
    controller: str,
    timeout: float,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> str:
    """Run `python script *args` on `ranks` ranks under horovodrun and return what they wrote.

    Args:
        controller: "gloo" or "mpi".
        timeout: seconds after which all of it is killed.
        env: variables on top of this process's own.

    Raises:
        LaunchError: after everything that was started has ended or been killed.
    """
    what = f"{Path(script).name} on {ranks} ranks with {controller}"
    launcher = [HOROVODRUN, *f"--{controller} -np {ranks} --start-timeout 120".split()]
    return _run(what, launcher, [script, *args], timeout, env)


def run_mpi(
    script: str | Path,
    ranks: int,
    timeout: float,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> str:
    """`run_ranks` under mpirun alone, without Horovod."""
    launcher = f"mpirun --bind-to none -np {ranks}".split()
    return _run(f"{Path(script).name} on {ranks} ranks of MPI", launcher, [script, *args], timeout, env)


def run_elastic(
    script: str | Path,
    hosts: Path,
    ranks: Sequence[int],
    timeout: float,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> str:
    """Run `python script *args` as an elastic job under Gloo and return what its ranks wrote.

    Args:
        hosts: a file of lines `HOST:SLOTS`, which may be replaced while the job runs. All names must mean
            this machine; Horovod never uses a host again on which a rank has died.
        ranks: with how many ranks the job starts, and how many it has at least and at most.
        meanwhile: called every now and then while the job runs.

    Raises:
        LaunchError: after everything that was started has ended or been killed.
    """
    discovery = hosts.with_suffix(".sh")
    discovery.write_text(f"#!/bin/sh\ncat '{hosts}'\n")
    discovery.chmod(0o755)
    start, least, most = ranks
    options = f"--gloo -np {start} --min-np {least} --max-np {most} --network-interfaces lo".split()
    options += ["--host-discovery-script", str(discovery), "--elastic-timeout", str(int(timeout))]
    what = f"{Path(script).name} as an elastic job"
    return _run(what, [HOROVODRUN, *options], [script, *args], timeout, env, meanwhile)


def _run(
    what: str,
    launcher: Sequence[str | Path],
    program: Sequence[str | Path],
    timeout: float,
    env: Mapping[str, str] | None,
    meanwhile: Callable[[], object] | None = None,
) -> str:
    mark = f"{MARK}={uuid.uuid4().hex}"
    search = {
        "PATH": f"{TOOLS}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    environment = {**os.environ, **_ENVIRONMENT, **search, MARK: mark.partition("=")[2], **(env or {})}
    command = [*launcher, sys.executable, *program]
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            [str(part) for part in command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        trouble = None
        try:
            if code := _wait(process, timeout, meanwhile):
                trouble = f"ended with exit code {code}"
            elif left := _outlast(mark):
                trouble = f"left processes behind: {', '.join(left)}"
        except subprocess.TimeoutExpired:
            trouble = f"did not end within {timeout:g} s"
        finally:
            _kill(process, mark)
        log.seek(0)
        output = log.read()
    if trouble:
        raise LaunchError(f"{what} {trouble}; its output ends with\n{output[-6000:]}")
    return output


def _wait(process: subprocess.Popen[bytes], timeout: float, meanwhile: Callable[[], object] | None) -> int:
    end = time.monotonic() + timeout
    while meanwhile is not None and process.poll() is None and time.monotonic() < end:
        meanwhile()
        time.sleep(0.1)
    return process.wait(max(end - time.monotonic(), 0))


def processes_with(mark: str) -> dict[int, str]:
    """The processes that have `mark`, a NAME=VALUE, in their environment: their ids and commands."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(folder.name)] = command.decode(errors="replace").strip()
        except OSError:  # another user's, or gone by now
            continue
    return found


def _outlast(mark: str) -> list[str]:
    """The commands of marked processes that are still there after the grace time."""
    end = time.monotonic() + GRACE
    while (left := processes_with(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    return list(left.values())


def _kill(process: subprocess.Popen[bytes], mark: str) -> None:
    """End the launcher and every marked process: politely first, so that mpirun removes its files."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    while left := processes_with(mark):
        for identity in left:
            try:
                os.kill(identity, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)
