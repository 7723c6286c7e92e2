"""Compressed gradients on their way: taken up and given to Horovod, waited for and written back."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from ..codec import NonFiniteError
from ..core import floats
from . import control, rounds, tensors
from .codecs import Codecs
from .flight import Compressed, Taken, drain
from .momentum import FixedTerms, MovedTerms
from .parameters import Slot
from .payloads import Payload
from .step import Step


class Exchange:
    """One compressor's.

    Attributes:
        codecs: where the tensors' codecs come from.
        flying: the gradients that were started and are not finished, by the tensors' names.
    """

    def __init__(
        self, codecs: Codecs, step: Step, terms: FixedTerms | MovedTerms, prefix: str, process_set: Any
    ) -> None:
        self._step, self._terms, self.codecs = step, terms, codecs
        self._prefix, self._process_set = prefix, process_set
        self.flying: dict[str, Compressed] = {}

    def start(self, slot: Slot, gradient: torch.Tensor) -> tuple[torch.Tensor, Compressed]:
        """Take a gradient up and start to send it: what Horovod is to reduce, and the rest for `finish`."""
        start = time.perf_counter()
        flight = rounds.InRounds(slot, gradient) if slot.method.by_allreduce else Payload(slot, gradient)
        try:
            sent = self._encode(flight)
        except Exception as error:  # the other ranks have to hear of it
            self._step.agreement.failed(slot.name, error)
            sent = flight.nothing(None)
        slot.numbers = control.vector(gradient, first=self._step.rank == 0, kept=slot.numbers)
        size = sent.nbytes + slot.numbers.array.nbytes
        slot.traffic.count(gradient.numel(), size, size)
        slot.traffic.encode_seconds += time.perf_counter() - start
        try:
            flight.send(sent, self._prefix, self._process_set)
        except Exception:
            flight.take_back()
            raise
        self.flying[slot.name] = flight
        numbers = slot.numbers.tensor if gradient.is_cpu else slot.numbers.tensor.to(gradient.device)
        return numbers, flight

    def _encode(self, flight: Compressed) -> torch.Tensor:
        """What is to be sent first."""
        slot, gradient = flight.slot, flight.gradient
        terms = self._terms.of(slot.parameter)
        codec = self.codecs.of(slot, terms)
        entries, own = tensors.entries(gradient)
        decay = terms.weight_decay / self._step.op_scale
        try:
            taken = Taken(codec, entries, own, gradient._version, decay)
            sent = flight.encode(taken, 1 / self._step.loss_scale)
        except NonFiniteError:
            self._step.agreement.broken()
            return flight.nothing(codec)
        if codec.method.controller is not None:
            slot.traffic.note_bits(slot.step, codec.bits)
        return sent

    def check_untouched(self) -> None:
        """Fail the step where a gradient was changed after it was taken up: it will be written over."""
        for flight in self.flying.values():
            if flight.written_to():
                text = (
                    "it was changed while it was being reduced; call optimizer.synchronize() before "
                    "clipping, unscaling or GradScaler.step, and step within optimizer.skip_synchronize()"
                )
                self._step.agreement.failed(flight.slot.name, ValueError(text))

    def go_on(self) -> None:
        """Send what could not be sent before the ranks had agreed on the step."""
        if self._step.counts:
            rounds.go_on(self.flying.values(), self._prefix, self._process_set)

    def finish(self, scale: float, flight: Compressed) -> torch.Tensor:
        """The reduced gradient, or one of NaN or of zeros where the step does not count."""
        slot, step, taken = flight.slot, self._step, flight.taken
        start = time.perf_counter()
        arrived = hvd.synchronize(flight.handle)
        ready = time.perf_counter()
        slot.traffic.wait_seconds += ready - start
        del self.flying[slot.name]
        if not step.counts or taken is None:
            flight.take_back()
            return tensors.writable(flight.gradient).fill_(0.0 if step.discarding else float("nan"))

        step.op_scale = scale
        result = flight.finish(arrived, scale * step.loss_scale)
        if result is None:
            return tensors.writable(flight.gradient).fill_(float("nan"))
        missing = self._terms.of(slot.parameter).weight_decay / scale - taken.weight_decay
        if missing:  # the op was not known yet when this gradient was taken up
            taken.codec.amend(missing * floats.widen(np.asarray(tensors.entries(slot.parameter)[0])))
        slot.step += 1
        slot.traffic.decode_seconds += time.perf_counter() - ready
        return result

    def check_arrived(self, handing: Iterable[int], seconds: float) -> None:
        """Wait so long for all that is in flight, and for what is handed over. RuntimeError where other ranks
        have not sent theirs."""
        handles = [*handing, *(flight.handle for flight in self.flying.values())]
        end = time.monotonic() + seconds
        while not all(map(hvd.poll, handles)):
            if time.monotonic() > end:
                raise RuntimeError(
                    "the ranks broke their step off at different places, and wait for each other's "
                    "gradients; call compression.discard(optimizer) on all ranks instead"
                )
            time.sleep(0.001)

    def abandon(self) -> None:
        """Take back all that is in flight, where its step was never finished."""
        while self.flying:
            name, flight = self.flying.popitem()
            drain(name, flight.handle)
            if flight.written_to():
                self._step.warn(
                    "abandoned",
                    f"the gradient of {name} was written to while it was being reduced; what was kept of it "
                    "may be wrong",
                )
            flight.take_back()
            flight.slot.payload = flight.slot.numbers = None  # Horovod may be sending them still
