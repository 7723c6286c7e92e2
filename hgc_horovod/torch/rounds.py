"""A compressed gradient as vectors that are averaged over the ranks, one after the other.

The first vector leaves with the gradient. The ones after it need its mean, so they can leave when all first
ones are on their way on all ranks, which is known when the ranks have agreed on the step. From there on every
rank makes every round, whatever happens to it: a rank that fails sends NaN, and all see that.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from ..codec import Codec, NonFiniteError
from ..core.types import Floats
from . import tensors
from .flight import Compressed, Taken, weight_of


class InRounds(Compressed):
    """See `Compressed`. What the codec keeps is as before until the last mean was given to its generator, so
    dropping that undoes the step."""

    generator: Generator[Floats, Floats, Floats] | None = None
    number = 0  # of the round that is on its way
    error: Exception | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the vectors."""
        return self.slot.method.round_sizes(self.slot.parameter.shape, self.slot.step)

    def encode(self, taken: Taken, factor: float) -> torch.Tensor:
        decay = taken.weight_decay
        generator = taken.codec.rounds(taken.entries, weight_of(self.slot, decay), decay, factor)
        with np.errstate(over="ignore", invalid="ignore"):
            first = next(generator)
        if not np.isfinite(first).all():  # finite entries, but not their products
            raise NonFiniteError(f"the gradient of {self.slot.name!r} overflows")
        self.taken, self.generator = taken, generator
        return torch.from_numpy(first)

    def nothing(self, codec: Codec | None) -> torch.Tensor:
        return torch.zeros(self.sizes[0])

    def send(self, tensor: torch.Tensor, prefix: str, process_set: Any) -> None:
        self.number += 1
        name = f"{prefix}.{self.slot.name}.round{self.number}"
        self.handle = hvd.allreduce_async(tensor, op=hvd.Average, name=name, process_set=process_set)

    def send_next(self, prefix: str, process_set: Any) -> None:
        """Wait for a round and start the next one."""
        start = time.perf_counter()
        mean = hvd.synchronize(self.handle).numpy()
        ready = time.perf_counter()
        vector = self._next(mean)
        self.send(torch.from_numpy(vector), prefix, process_set)
        traffic = self.slot.traffic
        traffic.sent_bytes += vector.nbytes
        traffic.payload_bytes += vector.nbytes
        traffic.wait_seconds += ready - start
        traffic.encode_seconds += time.perf_counter() - ready

    def _next(self, mean: Floats) -> Floats:
        if self.generator is not None and np.isfinite(mean).all():
            try:
                return self.generator.send(mean)
            except Exception as error:  # `finish` raises it; the other ranks are waiting for this vector
                self.error = error
        self.take_back()
        return np.full(self.sizes[self.number], np.nan, np.float32)

    def take_back(self) -> None:
        if self.generator is not None:
            self.generator.close()
            self.generator = None

    def finish(self, arrived: torch.Tensor, factor: float) -> torch.Tensor | None:
        if self.error is not None:
            raise self.error
        mean = arrived.numpy()
        if self.generator is None or not np.isfinite(mean).all():
            self.take_back()
            return None
        try:
            self.generator.send(mean)
        except StopIteration as end:
            values: Floats = end.value
            return tensors.fill(self.gradient, values if factor == 1 else values * np.float32(factor))
        raise AssertionError("there are more rounds than sizes of them")


def go_on(flying: Iterable[Compressed], prefix: str, process_set: Any) -> None:
    """Make all rounds but the last one's wait, in an order that is the same on all ranks. The step counts."""
    flights = sorted((f for f in flying if isinstance(f, InRounds)), key=lambda f: f.slot.name)
    for number in range(1, max((len(f.sizes) for f in flights), default=0)):
        for flight in flights:
            if number < len(flight.sizes):
                flight.send_next(prefix, process_set)
