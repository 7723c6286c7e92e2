"""What all ranks have to agree on outside of a step: one exchange of plain data."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from ..agreement import difference
from ..core.method import Method
from ..core.types import Json


def compare(comm: MPI.Intracomm, make: Callable[[], Json]) -> None:
    """Make plain data on every rank and compare it.

    ValueError on every rank where two differ, or where a rank cannot make it; that rank raises its own error.
    """
    error: Exception | None = None
    mine: Json = {}
    try:
        mine = make()
    except Exception as caught:
        error = caught
    everyones = comm.allgather((mine, None if error is None else str(error)))
    if error is not None:
        raise error
    for rank, (_, text) in enumerate(everyones):
        if text is not None:
            raise ValueError(f"rank {rank}: {text}")
    if found := difference([data for data, _ in everyones]):
        raise ValueError(found)


def plain(method: Method) -> Any:
    """A method as plain data, whose parts are compared one by one."""
    return json.loads(method.to_json())
