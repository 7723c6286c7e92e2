"""Compressed gradients on their way: encoded and given to Horovod to gather, waited for and decoded."""

from __future__ import annotations

import logging
import time
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from ..codec import Codec, NonFiniteError
from ..core import floats
from ..kernels import Kernels
from . import control, tensors
from .flight import Compressed, Encoded, take_back, weight_of
from .momentum import FixedTerms, MovedTerms, Terms
from .parameters import Slot
from .step import Step
from .tensors import Buffer

log = logging.getLogger("hgc_horovod")
_MOST_BYTES = 2**31 - 1  # that Horovod can count


class Payloads:
    """One compressor's.

    Attributes:
        flying: the payloads that were started and are not finished, by the tensors' names.
        handing: the same of what is handed over.
    """

    def __init__(
        self,
        step: Step,
        terms: FixedTerms | MovedTerms,
        prefix: str,
        process_set: Any,
        seed: int,
        kernels: Kernels,
    ) -> None:
        self._step, self._terms = step, terms
        self._prefix, self._process_set = prefix, process_set
        self._seed, self._kernels = seed, kernels
        self.flying: dict[str, Compressed] = {}
        self.handing: dict[str, int] = {}

    def start(self, slot: Slot, gradient: torch.Tensor) -> tuple[torch.Tensor, Compressed]:
        """Encode a gradient and start to gather it: what Horovod is to reduce, and the rest for `finish`."""
        start = time.perf_counter()
        try:
            payload, encoded = self._encode(slot, gradient)
        except Exception as error:  # the other ranks have to hear of it
            self._step.agreement.failed(slot.name, error)
            payload, encoded = Buffer.of(np.zeros(0, np.uint8)), None
        slot.numbers = control.vector(gradient, first=self._step.rank == 0, kept=slot.numbers)
        sent = payload.array.nbytes + slot.numbers.array.nbytes
        slot.traffic.count(gradient.numel(), sent, sent)
        slot.traffic.encode_seconds += time.perf_counter() - start
        try:
            handle = hvd.allgather_async(payload.tensor, f"{self._prefix}.{slot.name}", self._process_set)
        except Exception:
            take_back(slot, encoded)
            raise
        context = self.flying[slot.name] = Compressed(slot, gradient, encoded, handle)
        numbers = slot.numbers.tensor if gradient.is_cpu else slot.numbers.tensor.to(gradient.device)
        return numbers, context

    def _encode(self, slot: Slot, gradient: torch.Tensor) -> tuple[Buffer, Encoded | None]:
        """The payload, and what it was made of; None where that is not finite."""
        terms, kept = self._terms.of(slot.parameter), slot.payload
        codec = self.codec(slot, terms)
        decay, factor = terms.weight_decay / self._step.op_scale, 1 / self._step.loss_scale
        entries, own = tensors.entries(gradient)
        encoded = None
        try:
            out = None if kept is None else kept.array
            payload = codec.encode(entries, weight_of(slot, decay), decay, out, factor)
            encoded = Encoded(codec, entries, own, gradient._version, decay)
        except NonFiniteError:
            self._step.agreement.broken()
            payload = codec.encode_nothing()
        if kept is None or payload is not kept.array:
            _check_countable(payload.nbytes, self._step.world)
            kept = slot.payload = Buffer.of(payload)
        return kept, encoded

    def check_untouched(self) -> None:
        """Fail the step where a gradient was changed after it was encoded: it is going to be written over."""
        for context in self.flying.values():
            if context.written_to():
                text = (
                    "it was changed while it was being reduced; call optimizer.synchronize() before "
                    "clipping, unscaling or GradScaler.step, and step within optimizer.skip_synchronize()"
                )
                self._step.agreement.failed(context.slot.name, ValueError(text))

    def finish(self, scale: float, context: Compressed) -> torch.Tensor:
        """The reduced gradient, or one of NaN or of zeros where the step does not count."""
        slot, gradient, encoded = context.slot, context.gradient, context.encoded
        start = time.perf_counter()
        gathered = hvd.synchronize(context.handle)
        ready = time.perf_counter()
        slot.traffic.wait_seconds += ready - start
        del self.flying[slot.name]
        if not self._step.counts or encoded is None:
            take_back(slot, encoded)
            return tensors.writable(gradient).fill_(0.0 if self._step.discarding else float("nan"))

        self._step.op_scale = scale
        codec = encoded.codec
        missing = self._terms.of(slot.parameter).weight_decay / scale - encoded.weight_decay
        if missing:  # the op was not known yet when this gradient was encoded
            codec.amend(missing * floats.widen(np.asarray(tensors.entries(slot.parameter)[0])))
        factor = scale / self._step.world * self._step.loss_scale
        out = encoded.entries if encoded.own else None
        mean = codec.decode_gathered(tensors.payload(gathered), self._step.world, out, factor)
        result = gradient if encoded.own else tensors.fill(gradient, np.asarray(mean))
        slot.step += 1
        slot.traffic.decode_seconds += time.perf_counter() - ready
        return result

    def check_arrived(self, seconds: float) -> None:
        """Wait so long for all that is in flight. RuntimeError where other ranks have not sent theirs."""
        handles = [*self.handing.values(), *(context.handle for context in self.flying.values())]
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
        for name in list(self.handing):
            _drain(name, self.handing.pop(name))
        for name in list(self.flying):
            self._abandon(name, self.flying.pop(name))

    def _abandon(self, name: str, context: Compressed) -> None:
        _drain(name, context.handle)
        if context.written_to():
            self._step.warn(
                "abandoned",
                f"the gradient of {name} was written to while it was being reduced; what was kept of it may "
                "be wrong",
            )
        take_back(context.slot, context.encoded)
        context.slot.payload = context.slot.numbers = None  # Horovod may be sending them still

    def hand_over(self, slot: Slot) -> None:
        """Start to average what is kept of a tensor, if it was compressed and is sent dense from now on."""
        codec = slot.codec
        if codec is None:
            return
        momentum = np.zeros(codec.size, np.float32) if codec.momentum is None else codec.momentum
        kept = torch.from_numpy(np.stack([codec.residual, momentum]))
        self.handing[slot.name] = hvd.allreduce_async(
            kept, op=hvd.Average, name=f"{self._prefix}.{slot.name}.kept", process_set=self._process_set
        )

    def take_over(self, slot: Slot, result: torch.Tensor) -> torch.Tensor | None:
        """The residual, if it was handed over, to be added to the reduced gradient; the momentum is the
        slot's from now on."""
        handle = self.handing.pop(slot.name, None)
        if handle is None:
            return None
        scale = self._step.op_scale
        wide = torch.promote_types(result.dtype, torch.float32)
        residual, momentum = (
            (scale * kept).view(result.shape).to(result.device, wide) for kept in hvd.synchronize(handle)
        )
        if not self._step.counts:
            return None
        if slot.codec is not None and slot.codec.momentum is not None:
            slot.momentum = momentum
        slot.codec = None
        left: torch.Tensor = residual * self._step.loss_scale
        return left

    def codec(self, slot: Slot, terms: Terms) -> Codec:
        """The slot's codec, as of this step."""
        if slot.codec is None:
            slot.codec = Codec(
                slot.method,
                slot.parameter.numel(),
                slot.name,
                self._seed,
                self._step.rank,
                self._step.world,
                self._kernels,
            )
            if slot.momentum is not None:
                mean = slot.momentum / self._step.op_scale
                slot.codec.momentum, slot.momentum = np.asarray(tensors.entries(mean)[0]), None
        codec = slot.codec
        codec.step, codec.rank, codec.world_size = slot.step, self._step.rank, self._step.world
        method = slot.method_with(terms.momentum, terms.nesterov)
        if codec.method is not method:
            codec.method = method
        return codec


def _drain(name: str, handle: int) -> None:
    """Wait for what nobody needs any more."""
    try:
        hvd.synchronize(handle)
    except Exception as error:
        log.info("hgc_horovod: %s was not gathered: %s", name, error)


def _check_countable(payload: int, world_size: int) -> None:
    if payload * world_size > _MOST_BYTES:
        raise ValueError(
            f"density is too high: the payloads of {world_size} ranks take {payload * world_size:,} bytes, "
            f"and Horovod can count {_MOST_BYTES:,}"
        )
