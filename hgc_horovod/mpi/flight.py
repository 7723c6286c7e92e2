"""What a reducer has under way: the order of its requests, and what it sent without waiting for it to leave.

Why nothing waits for ever
--------------------------
All ranks start their requests in the same order, and wait for them in any. Where vectors are averaged in
several rounds, a later one can only be started when the one before is done, so by a rank that waits. The
rule: *before a rank waits for anything of a request, it has started all rounds of all requests before that
one.* Then no ranks wait for each other in a circle. Suppose that they did. Of all rounds that a rank waits
for, take the earliest, by the order of requests and then of rounds, and a rank that has not started it. That
rank waits, too. What it waits for is not earlier, by choice; it is no later round of that request, of which
it would have started this one first; and it is nothing of a later request, by the rule, or by the common
order where this is a first round. So there is no such rank.

The rule also orders the rounds: first rounds are started in the order of requests, as all collectives are,
and later ones in that order on a communicator of their own. Every collective of either communicator is
therefore called in the same order on all ranks.

Payloads of varying size need no collective. Each goes to every other rank as a message, whose number in the
order of requests is its tag: what a rank waits for is there as soon as all have started it, in whatever order
they wait. A rank does not wait until its own messages have left, since that may take a rank that waits for
something else first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from mpi4py import MPI

from ..core.types import Bytes


class InRounds(Protocol):
    """A request that may have rounds to start."""

    number: int

    def begin_rounds(self) -> None:
        """Start all rounds, and finish all but the last. An error is kept for its `wait` to raise."""


class Order:
    """The requests in the order in which all ranks start them.

    Attributes:
        started: how many there were so far.
    """

    def __init__(self) -> None:
        self.started = 0
        self._open: deque[InRounds] = deque()

    def enlist(self, request: InRounds) -> None:
        """A request that has rounds to start."""
        self._open.append(request)

    def begin_rounds(self, last: int) -> None:
        """Start all rounds of the requests up to the number `last`."""
        while self._open and self._open[0].number <= last:
            self._open[0].begin_rounds()
            self._open.popleft()


class Outbox:
    """Messages that may not have left yet. What MPI reads stays, even where the reducer is not closed."""

    def __init__(self) -> None:
        self._leaving: dict[str, list[tuple[MPI.Request, Bytes]]] = {}

    def put(self, name: str, requests: Sequence[MPI.Request], message: Bytes) -> None:
        """A tensor's message; those of its steps before that have left meanwhile are dropped."""
        left = [(request, sent) for request, sent in self._leaving.get(name, ()) if not request.Test()]
        self._leaving[name] = [*left, *((request, message) for request in requests)]
        _IN_USE.add(self)

    def empty(self) -> None:
        """Wait until all have left."""
        MPI.Request.Waitall([request for pairs in self._leaving.values() for request, _ in pairs])
        self._leaving.clear()
        _IN_USE.discard(self)


_IN_USE: set[Outbox] = set()
