"""Reductions on their way: started by `Reducer.iallreduce`, finished by `Request.wait`.

Nothing of a tensor's step is applied before what the ranks exchange has told that the step counts: that all
reduced the same tensor, that none failed, and that all gradients were finite. Else every rank takes its part
back, so that what was kept is not lost with the step.

Here are the two kinds that take one collective; `exchanging` and `averaging` have the others.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from ..agreement import CompressionError
from ..codec import NonFiniteError
from ..core import floats
from ..core.types import Bytes
from . import arrays, message
from .arrays import Array
from .message import TRAILER, Status
from .tensors import Tensor, World


class Request(ABC):
    """One reduction. `wait()` gives its result; the gradient must stay as it is until then.

    Attributes:
        number: how many were started before it, the same on all ranks.
    """

    _request: MPI.Request

    def __init__(
        self, world: World, names: Sequence[str], tensor: Tensor, gradient: Array, result: Array, summed: bool
    ) -> None:
        self._world, self._names, self._tensor = world, names, tensor
        self._gradient, self._result = gradient, result
        self._summed, self._tag = summed, message.tag_of(tensor.number, summed, gradient.dtype)
        self._failure: Exception | None = None  # this rank's
        self._error: Exception | None = None  # what `wait` raises
        self._done = False
        self.number = world.order.started
        start = time.perf_counter()
        self._prepare()
        self._tensor.traffic.encode_seconds += time.perf_counter() - start
        try:
            self._start()
        except Exception:
            self._take_back()
            raise
        world.order.started += 1
        tensor.flying = self

    def wait(self) -> Array:
        """The reduced gradient, once all ranks have started to reduce it; the same array in every call.

        It has the gradient's shape and dtype, and is NaN where a rank's gradient held a NaN or an infinity.

        Raises:
            CompressionError: on every rank, where a rank failed to compress its gradient.
            ValueError: on every rank, where the ranks reduce different tensors or by different ops.
        """
        if not self._done:
            try:
                self._world.order.begin_rounds(self.number)
                self._finish()
            except Exception as error:
                self._error = error
            self._done, self._tensor.flying = True, None
        if self._error is not None:
            raise self._error
        return self._result

    def _finish(self) -> None:
        tensor, start = self._tensor, time.perf_counter()
        try:
            self._receive()
            ready = time.perf_counter()
            tensor.traffic.wait_seconds += ready - start
            counts = self._counts()
        except Exception:
            self._take_back()
            raise
        if not counts:
            self._take_back()
            arrays.write(np.full(tensor.size, np.nan, np.float32), self._result)
            return
        self._apply()
        tensor.step += 1
        tensor.summed = self._summed
        tensor.traffic.decode_seconds += time.perf_counter() - ready

    def _check(self, tags: Sequence[int], statuses: Sequence[Status], reason: Callable[[int], str]) -> None:
        """Raise what all ranks raise, where the step cannot be made; `reason` tells why a rank failed."""
        message.check_tags(self._names, self._tag, tags)
        failed = [rank for rank, status in enumerate(statuses) if status is Status.FAILED]
        if failed:
            told = [f"rank {r} could not compress {self._tensor.name!r}: {reason(r)}" for r in failed]
            raise CompressionError("; ".join(told)) from self._failure

    @abstractmethod
    def _prepare(self) -> None:
        """Make what is sent."""

    @abstractmethod
    def _start(self) -> None:
        """Start to send it."""

    def _receive(self) -> None:
        """Wait for what the other ranks send."""
        self._request.Wait()

    @abstractmethod
    def _counts(self) -> bool:
        """Whether the step counts, by what was received; raises where it cannot be made."""

    @abstractmethod
    def _take_back(self) -> None:
        """Leave what is kept as it was before the step."""

    @abstractmethod
    def _apply(self) -> None:
        """Write the result, of a step that counts."""


class Gathering(Request):
    """A compressed tensor: the ranks' payloads are gathered, each with its trailer."""

    _encoded = False
    _message: Bytes
    _gathered: Sequence[Bytes]  # all ranks' messages

    def _prepare(self) -> None:
        tensor = self._tensor
        size = tensor.method.payload_bytes(tensor.size, tensor.step)
        self._message = np.zeros(size + TRAILER.itemsize, np.uint8)
        self._everyones = np.zeros((self._world.size, self._message.size), np.uint8)
        self._gathered = list(self._everyones)
        status, payload = self._encode(self._message[:size])
        if status is not Status.FINITE:
            self._message[:size] = 0
            self._message[: min(size, payload.size)] = payload[:size]
        message.write_trailer(self._message, self._tag, status)
        tensor.traffic.count(tensor.size, self._message.nbytes, self._message.nbytes)

    def _encode(self, out: Bytes | None = None) -> tuple[Status, Bytes]:
        """The payload, which stands in `out` where that is of its size, or what is sent in its place."""
        self._tensor.compressed = True
        try:
            codec = self._tensor.codec_in(self._world)
            self._flat = np.ascontiguousarray(self._gradient).reshape(-1)
            payload = codec.encode(self._flat, out=out)
        except NonFiniteError:
            return Status.NOT_FINITE, np.zeros(0, np.uint8)
        except Exception as error:  # the other ranks have to hear of it: they get a text
            self._failure = error
            return Status.FAILED, np.frombuffer(repr(error).encode(), np.uint8)
        self._encoded = True
        return Status.FINITE, payload

    def _start(self) -> None:
        self._request = self._world.comm.Iallgather(self._message, self._everyones)

    def _counts(self) -> bool:
        tags, statuses = message.read_trailers(self._gathered)
        self._check(tags, statuses, self._text)
        return Status.NOT_FINITE not in statuses

    def _text(self, rank: int) -> str:
        """What a rank sent in place of its payload."""
        return str(self._gathered[rank][: -TRAILER.itemsize].tobytes().rstrip(b"\0"), errors="replace")

    def _take_back(self) -> None:
        if self._encoded and self._tensor.codec is not None:
            self._tensor.codec.undo(self._flat)
            self._encoded = False

    def _apply(self) -> None:
        tensor, codec, result = self._tensor, self._tensor.codec, self._result
        assert codec is not None
        if tensor.method.controller is not None:
            tensor.traffic.note_bits(tensor.step, codec.bits)
        payloads = [one[: -TRAILER.itemsize] for one in self._gathered]
        factor = 1.0 if self._summed else 1 / self._world.size
        if result.flags.c_contiguous and floats.is_taken(result.dtype):
            codec.decode_sum(payloads, result.reshape(-1), factor)
        else:
            arrays.write(codec.decode_sum(payloads, factor=factor), result)


class Summing(Request):
    """A dense tensor: the values are summed, with a number of each rank behind them.

    Where the tensor was compressed before, what is kept of that is summed as well: the residual's mean is
    applied at once, and the momentum's is the dense steps' from now on.
    """

    def _prepare(self) -> None:
        tensor, n = self._tensor, self._tensor.size
        dtype = arrays.wire_dtype(self._gradient.dtype, tensor.method.dense.fp16)
        parts = 3 if tensor.compressed else 1
        self._buffer = np.zeros(parts * n + self._world.size, dtype)
        self._parts = self._buffer[: parts * n].reshape(parts, n)
        self._numbers = self._buffer[parts * n :]
        status = Status.FINITE
        try:
            self._parts[0] = arrays.widen(self._gradient, dtype)
            if tensor.compressed:
                self._parts[1:] = tensor.kept()
        except Exception as error:
            self._failure, status = error, Status.FAILED
        message.write_number(self._numbers, self._world.rank, self._tag, status)
        tensor.traffic.count(n, self._buffer.nbytes)

    def _start(self) -> None:
        self._request = self._world.comm.Iallreduce(MPI.IN_PLACE, self._buffer, MPI.SUM)

    def _counts(self) -> bool:
        tags, statuses = message.read_numbers(self._numbers)
        self._check(tags, statuses, lambda rank: "the error of that rank says why")
        return bool(np.isfinite(self._parts).all())

    def _take_back(self) -> None:
        """Nothing was changed."""

    def _apply(self) -> None:
        tensor, world = self._tensor, self._world.size
        feedback = tensor.method.feedback
        if not (feedback.momentum or tensor.compressed):
            if not self._summed:
                self._parts[0] /= world
            arrays.write(self._parts[0], self._result)
            return
        self._parts /= world
        update = self._parts[0]
        if feedback.momentum:
            before = self._parts[2] if tensor.compressed else tensor.momentum
            factor = update.dtype.type(feedback.momentum)
            tensor.momentum = update.copy() if before is None else factor * before + update
            update = update + factor * tensor.momentum if feedback.nesterov else tensor.momentum
        if tensor.compressed:
            update = update + self._parts[1]
            tensor.codec, tensor.compressed = None, False
        arrays.write(update * world if self._summed else update, self._result)
