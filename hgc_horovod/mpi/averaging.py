"""Compressed tensors of which vectors are averaged over the ranks, round by round."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator

import numpy as np
from mpi4py import MPI

from ..codec import NonFiniteError
from ..core.types import Floats
from . import arrays, message
from .message import Status
from .requests import Request


class Averaging(Request):
    """Each round is an allreduce of a float32 vector, with a number of each rank behind it.

    In the first round that is NaN where the gradient is not finite. Whatever happens on a rank, all make the
    same rounds: a round's sums, the same everywhere, tell whether there is a next one. See `flight` for when
    rounds are started.
    """

    _rounds: Generator[Floats, Floats, Floats] | None = None

    def _prepare(self) -> None:
        tensor = self._tensor
        tensor.compressed = True
        self._sizes, self._round = tensor.round_sizes, 0
        self._going = True  # whether the step counts, as far as the finished rounds tell
        self._trouble: Exception | None = None
        self._fill(self._first)
        tensor.traffic.count(tensor.size, self._buffer.nbytes, self._buffer.nbytes)

    def _first(self) -> Floats:
        self._flat = np.ascontiguousarray(self._gradient).reshape(-1)
        self._rounds = self._tensor.codec_in(self._world).rounds(self._flat)
        return next(self._rounds)

    def _fill(self, make: Callable[[], Floats]) -> None:
        """Put a round's vector and this rank's number into the buffer."""
        size, status = self._sizes[self._round], Status.FINITE
        self._buffer = np.zeros(size + self._world.size, np.float32)
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found in the sums
                self._buffer[:size] = make()
        except NonFiniteError:
            self._buffer[:size] = np.nan
        except Exception as error:
            self._failure, status = error, Status.FAILED
        message.write_number(self._buffer[size:], self._world.rank, self._tag, status)

    def _start(self) -> None:
        comm = self._world.later if self._round else self._world.comm
        self._request = comm.Iallreduce(MPI.IN_PLACE, self._buffer, MPI.SUM)
        if not self._round:
            self._world.order.enlist(self)

    def begin_rounds(self) -> None:
        """Start all rounds, and finish all but the last. An error is kept for `wait`."""
        try:
            while self._going and self._round + 1 < len(self._sizes):
                self._next_round()
        except Exception as error:
            self._trouble, self._going = error, False

    def _next_round(self) -> None:
        traffic, start = self._tensor.traffic, time.perf_counter()
        self._request.Wait()
        ready = time.perf_counter()
        traffic.wait_seconds += ready - start
        self._going = self._sums_count()
        if self._going:
            rounds, mean = self._rounds, self._mean()
            assert rounds is not None
            self._round += 1
            self._fill(lambda: rounds.send(mean))
            traffic.encode_seconds += time.perf_counter() - ready
            traffic.sent_bytes += self._buffer.nbytes
            traffic.payload_bytes += self._buffer.nbytes
            self._start()

    def _sums_count(self) -> bool:
        """Whether the step counts by this round's sums; raises where it cannot be made."""
        size = self._sizes[self._round]
        tags, statuses = message.read_numbers(self._buffer[size:])
        self._check(tags, statuses, lambda rank: "the error of that rank says why")
        return bool(np.isfinite(self._buffer[:size]).all())

    def _mean(self) -> Floats:
        vector = self._buffer[: self._sizes[self._round]]
        vector /= self._world.size
        return vector

    def _counts(self) -> bool:
        if self._trouble is not None:
            raise self._trouble
        return self._going and self._sums_count()

    def _take_back(self) -> None:
        if self._rounds is not None:
            self._rounds.close()  # nothing is kept before the last mean has been sent in

    def _apply(self) -> None:
        assert self._rounds is not None
        update = _last(self._rounds, self._mean())
        arrays.write(update * np.float32(self._world.size) if self._summed else update, self._result)


def _last(rounds: Generator[Floats, Floats, Floats], mean: Floats) -> Floats:
    try:
        rounds.send(mean)
    except StopIteration as end:
        result: Floats = end.value
        return result
    raise RuntimeError("there are more rounds than sizes of them")
