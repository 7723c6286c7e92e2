"""Elastic jobs: what a compressor keeps when Horovod's world loses a rank and when it gets one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.launch import run_elastic

PROGRAM = Path(__file__).parent / "elastic_program.py"
START, NEVER = -1, -1
# Three names of this machine, since Horovod never uses a host again on which a rank has died.
ONE, TWO, THREE = "localhost", "127.0.0.1", "127.1"

Hosts = Mapping[str, int]
Events = list[dict[str, Any]]  # what one process wrote


class Job:
    """An elastic job that goes through `worlds`, numbers of ranks.

    It starts with the hosts of START, and is offered others once it has committed in the world of their key.
    """

    def __init__(self, folder: Path, worlds: Sequence[int], hosts: Mapping[int, Hosts], death: int) -> None:
        self.file, self.logs, self.waiting = folder / "hosts", folder / "logs", dict(hosts)
        self.logs.mkdir()
        self.offer(START)
        args = [str(self.logs), str(death), *(str(world) for world in worlds)]
        try:
            ranks = (worlds[0], min(worlds), max(worlds))
            run_elastic(PROGRAM, self.file, ranks, timeout=240, args=args, meanwhile=self.change)
        finally:
            errors = [line["traceback"] for line in chain(*self.processes()) if line["event"] == "error"]
            if errors:
                pytest.fail("\n".join(errors), pytrace=False)

    def processes(self) -> list[Events]:
        """In the order in which they joined the job."""
        texts = [path.read_text() for path in self.logs.iterdir()]
        written = [[json.loads(line) for line in text.splitlines(True) if line[-1] == "\n"] for text in texts]
        return sorted(filter(None, written), key=lambda events: (events[0]["world"], events[0]["rank"]))

    def offer(self, world: int) -> None:
        new = self.file.with_suffix(".new")
        new.write_text("".join(f"{host}:{slots}\n" for host, slots in self.waiting.pop(world).items()))
        new.replace(self.file)

    def change(self) -> None:
        committed = {line["world"] for line in chain(*self.processes()) if line["event"] == "commit"}
        for world in committed & self.waiting.keys():
            self.offer(world)


def run(folder: Path, worlds: Sequence[int], hosts: Mapping[int, Hosts], death: int = NEVER) -> list[Events]:
    return Job(folder, worlds, hosts, death).processes()


def begins(events: Events, *facts: str) -> list[tuple[Any, ...]]:
    """These facts of each world that a process was in."""
    return [tuple(line[fact] for fact in facts) for line in events if line["event"] == "begin"]


def test_lost_and_replaced(tmp_path: Path) -> None:
    """Rank 0 dies in the middle of a step: the other goes back to the last commit, residual and all, goes on
    alone as rank 0, and then with a new rank."""
    hosts = {START: {ONE: 1, TWO: 1}, 1: {ONE: 1, TWO: 1, THREE: 1}}
    dead, survivor, new = run(tmp_path, (2, 1, 2), hosts, death=12)
    assert [line["event"] for line in dead] == ["begin", "commit", "commit"]
    failures = [line["step"] for line in survivor if line["event"] == "HorovodInternalError"]
    assert failures == [12]
    assert begins(survivor, "rank") == [(1,), (0,), (0,)]
    start, alone, together = begins(survivor, "step", "survivor", "undone")
    assert (start, alone, together[1:]) == ((0, False, False), (10, True, True), (True, False))
    assert begins(new, "step", "survivor") == [(together[0], False)]
    assert survivor[-1]["event"] == new[-1]["event"] == "end"


def test_grown_and_shrunk(tmp_path: Path) -> None:
    """A rank alone gets two more; then one of these is taken away, of which Horovod does not tell a state,
    and the other gets its number."""
    hosts = {START: {ONE: 1}, 0: {ONE: 2, TWO: 1}, 1: {ONE: 1, TWO: 1}}
    first, middle, last = run(tmp_path, (1, 3, 2), hosts)
    assert begins(first, "rank", "survivor") == [(0, False), (0, True), (0, True)]
    assert begins(middle, "rank", "survivor") == [(1, False)]
    assert begins(last, "rank", "survivor") == [(2, False), (1, True)]
    assert begins(first, "step")[1] == begins(middle, "step")[0] == begins(last, "step")[0] > (0,)
    assert [len(names) for (names,) in begins(last, "residuals")] == [0, 2]
    assert first[-1]["event"] == last[-1]["event"] == "end"
