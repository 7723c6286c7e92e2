"""Cases that are run on every rank of a launch, and what pytest makes of their outcomes.

A rank program is a package of modules with `case_…` functions. It executes all of them in one order, and
writes

    {"case": NAME, "error": null or a traceback, "seconds": TIME}

a line per case to DIRECTORY/RANK.jsonl. A case may fail; where that leaves a collective without a partner,
Horovod's stall check or `HANG` ends the job, and the cases behind it do not report.
"""

from __future__ import annotations

import faulthandler
import json
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.launch import LaunchError, run_mpi, run_ranks

Cases = dict[str, Callable[[], None]]
LAUNCHES = [(controller, ranks) for ranks in (2, 3) for controller in ("gloo", "mpi")]
HANG = 150  # seconds after which a case that hangs shows where


def variants(**arguments: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a case once with each of these keyword arguments."""

    def mark(case: Callable[..., None]) -> Callable[..., None]:
        case.variants = arguments
        return case

    return mark


def collect(modules: Iterable[ModuleType]) -> Cases:
    """The `case_…` functions of these modules, once per variant, by MODULE.CASE.VARIANT."""
    found: Cases = {}
    for module in modules:
        for name, function in vars(module).items():
            if name.startswith("case_"):
                title = f"{module.__name__.rpartition('.')[2]}.{name.removeprefix('case_')}"
                for label, arguments in getattr(function, "variants", {"": {}}).items():
                    found[f"{title}.{label}".rstrip(".")] = partial(function, **arguments)
    return found


def values(name: str, shape: Sequence[int], step: int, rank: int) -> np.ndarray:
    """Standard normal float32 that every rank can compute for every rank."""
    key = f"{name} {step} {rank}"
    return np.asarray(np.random.default_rng(zlib.crc32(key.encode())).standard_normal(shape), np.float32)


def raises(
    kind: type[BaseException], words: Sequence[str], call: Callable[..., Any], *args: Any, **named: Any
) -> BaseException:
    """`call` raises this kind of error, and its message holds each of the words."""
    try:
        call(*args, **named)
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"the message lacks {missing}: {error}"
        return error
    raise AssertionError(f"nothing was raised; wanted {kind.__name__} with {words}")


def execute(cases: Cases, directory: str, rank: int, barrier: Callable[[str], object]) -> None:
    """Execute the cases on this rank; `barrier(name)` lets all ranks meet."""
    with (Path(directory) / f"{rank}.jsonl").open("w") as lines:
        for name, case in cases.items():
            faulthandler.dump_traceback_later(HANG, exit=True)
            error, start = None, time.monotonic()
            try:
                case()
            except Exception:
                error = traceback.format_exc()
            line = {"case": name, "error": error, "seconds": time.monotonic() - start}
            print(json.dumps(line), file=lines, flush=True)
            barrier(f"end of {name}")
    faulthandler.cancel_dump_traceback_later()


class Outcome:
    """What one launch of a rank program reported, and whether it ended well. A launch is one of Horovod's
    controllers, or "mpirun" for MPI without Horovod, and a number of ranks."""

    def __init__(
        self,
        program: Path,
        launch: tuple[str, int],
        factory: pytest.TempPathFactory,
        env: Mapping[str, str] | None = None,
        timeout: float = 600,
    ) -> None:
        controller, ranks = launch
        start = run_mpi if controller == "mpirun" else partial(run_ranks, controller=controller)
        directory = factory.mktemp(f"{controller}-{ranks}")
        self._trouble: LaunchError | None = None
        try:
            start(program, ranks, timeout=timeout, args=[str(directory)], env=env)
        except LaunchError as error:
            self._trouble = error
        self._errors: list[dict[str, str | None]] = []
        for rank in range(ranks):
            path = directory / f"{rank}.jsonl"
            lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
            self._errors.append({line["case"]: line["error"] for line in lines})

    def check_launch(self) -> None:
        """The program ended well on every rank, in time, and left no process behind."""
        if self._trouble:
            raise self._trouble

    def check_all(self) -> None:
        """Every case that was begun went well on every rank."""
        cases = [case for errors in self._errors for case in errors]
        assert cases, "no rank reported"
        for case in dict.fromkeys(cases):
            self.check(case)

    def check(self, case: str) -> None:
        """The case went well on every rank."""
        failures = []
        for rank, errors in enumerate(self._errors):
            if case not in errors:
                last = next(reversed(errors), "none")
                failures.append(f"rank {rank} never reported; its last case was {last}")
            elif errors[case] is not None:
                failures.append(f"rank {rank}:\n{errors[case]}")
        if failures:
            pytest.fail("\n".join(failures), pytrace=False)
