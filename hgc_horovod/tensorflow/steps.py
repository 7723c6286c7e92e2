"""A tensor's steps in Python: what `csrc/tensorflow/` does, for every method that a codec knows.

Arguments and results are NumPy arrays, as `tf.numpy_function` has them. Each function is given the slot's
`counts`, int64 (3,), and returns what they are from now on. None raises: the other ranks hear of an error by
what Horovod reduces (`control`), and all ranks raise it when all that they send has been sent.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codec import NonFiniteError
from ..core import floats
from ..core.types import Bytes, Floats
from . import control, ranks
from .kept import Kept

Array = NDArray[Any]
Counts = NDArray[np.int64]
log = logging.getLogger("hgc_horovod")

STEP, RANK, WORLD = range(3)  # of the counts


class Steps(Kept):
    """See the module. A step is `encode` and `decode`; for methods that average vectors, `begin`, `proceed`
    for each further vector, and `finish`; or `finish_dense`. `undo` takes it back."""

    _rounds: Generator[Floats, Floats, Floats] | None = None  # of the step that is being made
    _undo: Callable[[Array], object] | None = None  # takes the last step back, given its gradient
    _broken = _failed = False  # this step, on this rank

    def encode(
        self, counts: Counts, gradient: Array, rank: int, world: int, loss_scale: float, loss: float
    ) -> tuple[Bytes, Floats, Counts]:
        """The payload of a gradient that was multiplied by `loss_scale`, and what Horovod is to reduce."""
        with self._timed("encode_seconds"):
            counts = self._start(counts, rank, world, loss)
            payload = np.zeros(0, np.uint8)
            with self._heard():
                try:
                    self._check_owner(counts, rank, world)
                    payload = self.codec.encode(gradient.reshape(-1), factor=1 / float(loss_scale))
                    self._undo = lambda gradient: self.codec.undo(gradient.reshape(-1))
                except NonFiniteError:
                    payload = self.codec.encode_nothing()
                    raise
            self._count(payload.nbytes)
            return payload, self._control(), counts

    def decode(
        self,
        counts: Counts,
        gathered: Bytes,
        gradient: Array,
        reduced: Floats,
        world: int,
        loss_scale: float,
    ) -> tuple[Array, Counts]:
        """The reduced gradient, of the shape and dtype of `gradient`, which is what was encoded."""

        def make() -> Array:
            factor = control.op_scale(reduced, int(world)) / np.float32(world) * np.float32(loss_scale)
            out = np.empty(self.codec.size, gradient.dtype)
            self.codec.decode_gathered(gathered, int(world), out, float(factor))
            return out

        return self._reduced(counts, gradient, reduced, world, make)

    def begin(
        self, counts: Counts, gradient: Array, rank: int, world: int, loss_scale: float, loss: float
    ) -> tuple[Floats, Floats, Counts]:
        """The first vector that is to be averaged over the ranks, and what Horovod is to reduce."""

        def first() -> Floats:
            self._check_owner(counts, rank, world)
            self._rounds = self.codec.rounds(gradient.reshape(-1), factor=1 / float(loss_scale))
            return next(self._rounds)

        with self._timed("encode_seconds"):
            counts = self._start(counts, rank, world, loss)
            self._count(4 * sum(self.codec.round_sizes))
            return self._vector(0, first), self._control(), counts

    def proceed(self, counts: Counts, mean: Floats, number: int) -> tuple[Floats, Floats, Counts]:
        """The vector of this number, after the mean of the one before."""
        with self._timed("encode_seconds"):
            return self._vector(int(number), lambda: self._send(mean)), self._control(), counts

    def finish(
        self,
        counts: Counts,
        mean: Floats,
        gradient: Array,
        reduced: Floats,
        world: int,
        loss_scale: float,
    ) -> tuple[Array, Counts]:
        """The reduced gradient, after the mean of the last vector."""

        def make() -> Array:
            before = self.codec.state_dict() if self.shared.drops_steps else None
            try:
                self._send(mean)
            except StopIteration as stop:
                result: Floats = stop.value
            if before is not None:
                self._undo = lambda _: self.codec.load_state_dict(before)
            factor = control.op_scale(reduced, int(world)) * np.float32(loss_scale)
            out = np.empty(self.codec.size, gradient.dtype)
            with np.errstate(over="ignore"):
                floats.narrow(result * factor, out)
            return out

        return self._reduced(counts, gradient, reduced, world, make)

    def finish_dense(
        self, counts: Counts, reduced: Array, scale: float, loss_scale: float
    ) -> tuple[Array, Counts]:
        """The update, where the gradient was reduced as it is: with the momentum that the optimizer does not
        have. `scale`: what the mean of the ranks' gradients was multiplied by."""
        with self._timed("decode_seconds"):
            codec, feedback = self.codec, self.codec.method.feedback
            self._undo = None
            self.traffic.count(codec.size, 0)
            wide = reduced.astype(np.float64 if reduced.dtype == np.float64 else np.float32).reshape(-1)
            if not np.isfinite(wide).all():
                return reduced, counts
            if self.shared.drops_steps:
                before = codec.state_dict()
                self._undo = lambda _: codec.load_state_dict(before)
            if feedback.momentum:
                real: Any = wide.dtype.type
                unit, momentum = real(scale) * real(loss_scale), real(feedback.momentum)
                wide = wide / unit
                velocity = momentum * (0 if codec.momentum is None else codec.momentum) + wide
                codec.momentum = velocity.astype(np.float32)
                update = unit * (wide + momentum * velocity if feedback.nesterov else velocity)
                reduced = update.astype(reduced.dtype).reshape(reduced.shape)
            return reduced, _moved(counts, 1)

    def undo(self, counts: Counts, gradient: Array) -> tuple[bool, Counts]:
        """Take the last step back, which sent this gradient, if that was not done yet. Whether it was now."""
        with self.shared.lock:
            undone = self._take_back(gradient)
            return undone, _moved(counts, -1) if undone else counts

    def forget_step(self) -> None:
        super().forget_step()
        self._undo = self._rounds = None

    def _start(self, counts: Counts, rank: int, world: int, loss: float) -> Counts:
        """A new step, by this rank of so many."""
        self._undo, self._rounds, self._broken, self._failed = None, None, False, False
        codec = self.codec
        codec.step, codec.rank, codec.world_size = int(counts[STEP]), int(rank), int(world)
        self.shared.peers.loss = float(loss) if math.isfinite(loss) else None
        if counts[WORLD] == 0 and not ranks.may_change():
            return np.array([counts[STEP], rank, world], np.int64)
        return counts

    def _check_owner(self, counts: Counts, rank: int, world: int) -> None:
        owner = counts[WORLD] == 0 or (counts[RANK] == rank and counts[WORLD] == world)
        if not owner and not ranks.may_change():
            raise ValueError(
                f"what is kept of {self.codec.name} is another rank's, or of another number of ranks: every "
                "rank restores the checkpoint that it has written, or calls reset()"
            )

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        """The other ranks hear of what goes wrong in here."""
        try:
            yield
        except NonFiniteError:
            self._broken = True
        except Exception:
            log.exception("hgc_horovod: the gradient of %s could not be encoded", self.codec.name)
            self._failed = True

    def _vector(self, number: int, make: Callable[[], Floats]) -> Floats:
        """What `make` returns, or zeros where this rank has nothing to say any more."""
        with self._heard():
            if not (self._broken or self._failed):
                return make()
        self._rounds = None
        return np.zeros(self.codec.round_sizes[number], np.float32)

    def _send(self, mean: Floats) -> Floats:
        if not np.isfinite(mean).all():
            raise NonFiniteError("a mean overflows")
        assert self._rounds is not None
        return self._rounds.send(mean)

    def _control(self) -> Floats:
        return control.vector(self.codec.rank == 0, self._broken, self._failed)

    def _count(self, sent: int) -> None:
        codec = self.codec
        self.traffic.count(codec.size, sent, sent)
        if codec.method.controller is not None and not (self._broken or self._failed):
            self.traffic.note_bits(codec.step - 1, codec.bits)

    def _is_dropped(self, reduced: Floats, world: int) -> bool:
        """Whether the step does not count, on any rank."""
        failure = control.failure(reduced, int(world), self.codec.name)
        if failure is not None:
            self.shared.failures.append(failure)
        return failure is not None or bool(reduced[control.BROKEN] > 0)

    def _reduced(
        self, counts: Counts, gradient: Array, reduced: Floats, world: int, make: Callable[[], Array]
    ) -> tuple[Array, Counts]:
        """What `make` returns in the gradient's shape, or NaN where the step does not count."""
        with self._timed("decode_seconds"):
            try:
                if not self._is_dropped(reduced, world):
                    return make().reshape(gradient.shape), _moved(counts, 1)
            except NonFiniteError:  # of a mean, which is the same on all ranks
                pass
            except Exception as error:
                self.shared.failures.append(error)
            finally:
                self._rounds = None
            self._take_back(gradient)
            return np.full_like(gradient, np.nan), counts

    def _take_back(self, gradient: Array) -> bool:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo(gradient)
        return undo is not None

    @contextlib.contextmanager
    def _timed(self, field: str) -> Iterator[None]:
        with self.shared.lock:
            start = time.perf_counter()
            yield
            seconds = time.perf_counter() - start
            setattr(self.traffic, field, getattr(self.traffic, field) + seconds)


def _moved(counts: Counts, steps: int) -> Counts:
    return np.array([counts[STEP] + steps, *counts[RANK:]], np.int64)
