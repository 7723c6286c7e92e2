"""The compressor that Horovod's DistributedOptimizer is given.

Horovod calls `compress(gradient)` when a gradient is ready, allreduces the tensor that comes back, and calls
`decompress(reduced, context)`. Bytes cannot be summed, so the payload travels by an allgather of our own,
whose handle is in the context, and Horovod's allreduce gets three numbers that the ranks share (`control`).
`compress` starts asynchronous operations only, because ranks may reach it in different orders.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import horovod.torch as hvd
import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .. import kernels
from ..codec import Codec, NonFiniteError
from ..core import check, floats
from ..core.block import Block
from ..core.method import Method
from ..report import Report, Traffic
from . import control, tensors
from .momentum import Terms, advance, terms_for
from .parameters import Parameters, Slot
from .tensors import Buffer

log = logging.getLogger("hgc_horovod")
_created = itertools.count()


class _Dense(NamedTuple):
    """A gradient on its way through Horovod's own allreduce."""

    slot: Slot | None
    gradient: torch.Tensor


class _Compressed(NamedTuple):
    """A gradient whose payload is being gathered. `entries` still hold what was encoded; whether they are the
    gradient's `own` memory or a copy."""

    slot: Slot
    codec: Codec
    gradient: torch.Tensor
    entries: Block
    own: bool
    handle: int
    finite: bool
    weight_decay: float


class Compressor:
    """Made by `Compression.hgc` and `Compression.from_method`; one for each DistributedOptimizer."""

    def __init__(
        self,
        method: Method,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
        *,
        momentum_from: torch.optim.Optimizer | None,
        optimizer: torch.optim.Optimizer | None,
        process_set: Any,
        name: str | None,
        seed: int,
    ) -> None:
        if not hvd.is_initialized():
            raise ValueError("call hvd.init() before a compressor is created")
        if not isinstance(method, Method):
            raise ValueError(f"method must be a hgc_horovod.Method; got {type(method).__name__}")
        self.method = method
        self.seed = check.whole("seed", seed, 0)
        self.process_set = hvd.global_process_set if process_set is None else process_set
        if not isinstance(self.process_set, hvd.ProcessSet):
            raise ValueError(f"process_set must be a hvd.ProcessSet; got {process_set!r}")
        if name is not None and not isinstance(name, str):
            raise ValueError(f"name must be a string; got {name!r}")
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(f"optimizer must be a torch.optim.Optimizer; got {optimizer!r}")
        self._look_around()
        self._prefix = name if name is not None else f"hgc.{next(_created)}"
        self._parameters = Parameters(named_parameters)
        self._passed = Traffic("(not registered)")
        self._kernels = kernels.get(threads=torch.get_num_threads())
        self._scale = 1.0
        self._warned = False
        self._terms = terms_for(
            method,
            momentum_from,
            optimizer,
            registered=[slot.parameter for slot in self._parameters.slots],
            reduces=_reduces(self.process_set),
        )
        if momentum_from is not None and _reduces(self.process_set) and self.process_set.rank() == 0:
            log.warning("hgc_horovod: moved from the optimizer, per parameter group: %s", self._terms)

    def compress(self, gradient: torch.Tensor) -> tuple[torch.Tensor, _Dense | _Compressed]:
        """Start sending a gradient; Horovod allreduces the tensor that is returned."""
        if gradient is None:
            raise ValueError(
                "a parameter of a Horovod group has no gradient in this step: groups= needs "
                "every parameter of a group to take part in every step"
            )
        if self._new_step:
            self._look_around()
        if self._rank < 0:
            raise ValueError(
                "process_set must be the one that DistributedOptimizer was given: the compressor's "
                "does not include this rank, and the optimizer reduces here"
            )
        slot = self._parameters.find(gradient)
        if slot is None:
            self._check_stranger(gradient)
        else:
            slot.start()
        if slot is None or not slot.floating or slot.is_dense(self.method, gradient):
            return tensors.to_wire(gradient, self.method.dense.fp16), _Dense(slot, gradient)
        return self._compress(slot, gradient)

    def decompress(self, reduced: torch.Tensor, context: _Dense | _Compressed | None) -> torch.Tensor:
        """The reduced gradient, in the memory, shape, strides and dtype of the one that was compressed."""
        if context is None:  # a sparse gradient, which Horovod gathers itself
            self._check_sparse(reduced)
            return reduced
        if context.slot is not None:
            context.slot.in_flight = False
        if isinstance(context, _Dense):
            return self._finish_dense(reduced, context)
        return self._finish_compressed(reduced, context)

    def report(self) -> Report:
        """Bytes, ratios and times per tensor and in total, as this rank has seen them so far."""
        rows = [slot.traffic for slot in self._parameters.slots if slot.traffic.steps]
        if self._passed.steps:  # several gradients a step, counted one by one
            rows.append(replace(self._passed, steps=max((row.steps for row in rows), default=1)))
        return Report.of(repr(self), rows, self._kernels.description)

    def __repr__(self) -> str:
        slots = self._parameters.slots
        sent = [slot for slot in slots if not self.method.is_dense(slot.parameter.shape)]
        entries = sum(slot.parameter.numel() for slot in sent)
        total = sum(slot.parameter.numel() for slot in slots)
        return (
            f"Compression.{self.method.name}(density={self.method.selector.density:g}, "
            f"bits={self.method.quantizer.bits}): {len(sent)} of {len(slots)} tensors, "
            f"{entries:,} of {total:,} entries"
        )

    def _compress(self, slot: Slot, gradient: torch.Tensor) -> tuple[torch.Tensor, _Compressed]:
        start = time.perf_counter()
        terms = self._terms.of(slot.parameter)
        codec = self._codec(slot, terms)
        decay = terms.weight_decay / self._scale
        entries, own = tensors.entries(gradient)
        finite, kept = True, slot.payload
        try:
            payload = codec.encode(entries, _weight(slot, decay), decay, None if kept is None else kept.array)
        except NonFiniteError:
            finite, payload = False, codec.encode_nothing()
        if kept is None or payload is not kept.array:
            kept = slot.payload = Buffer.of(payload)
        slot.numbers = control.vector(gradient, finite=finite, first=self._rank == 0, kept=slot.numbers)
        sent = payload.nbytes + slot.numbers.array.nbytes
        slot.traffic.count(codec.size, sent, sent)
        slot.traffic.encode_seconds += time.perf_counter() - start
        handle = hvd.allgather_async(
            kept.tensor, name=f"{self._prefix}.{slot.name}", process_set=self.process_set
        )
        slot.step += 1
        numbers = slot.numbers.tensor if gradient.is_cpu else slot.numbers.tensor.to(gradient.device)
        return numbers, _Compressed(slot, codec, gradient, entries, own, handle, finite, decay)

    def _finish_compressed(self, reduced: torch.Tensor, context: _Compressed) -> torch.Tensor:
        slot, codec, gradient = context.slot, context.codec, context.gradient
        self._new_step = True
        # Before the wait, which would hang in another process set.
        shared = control.read(reduced, self._world)
        start = time.perf_counter()
        gathered = hvd.synchronize(context.handle)
        ready = time.perf_counter()
        slot.traffic.wait_seconds += ready - start
        if not shared.finite:
            slot.step -= 1
            if context.finite:
                codec.undo(context.entries, _weight(slot, context.weight_decay), context.weight_decay)
            return tensors.writable(gradient).fill_(float("nan"))

        self._scale = shared.scale
        missing = self._terms.of(slot.parameter).weight_decay / shared.scale - context.weight_decay
        if missing:  # the op was not known yet when this gradient was encoded
            codec.amend(missing * floats.widen(np.asarray(tensors.entries(slot.parameter)[0])))
        out = context.entries if context.own else None
        mean = codec.decode_gathered(tensors.payload(gathered), self._world, out, shared.scale / self._world)
        result = gradient if context.own else tensors.fill(gradient, np.asarray(mean))
        slot.traffic.decode_seconds += time.perf_counter() - ready
        return result

    def _finish_dense(self, reduced: torch.Tensor, context: _Dense) -> torch.Tensor:
        slot, gradient = context.slot, context.gradient
        traffic = self._passed if slot is None else slot.traffic
        traffic.count(gradient.numel(), reduced.nbytes)
        result = reduced if reduced is gradient else tensors.writable(gradient).copy_(reduced)
        if slot is None:
            return result
        slot.step += 1
        terms = self._terms.of(slot.parameter)
        # A step that will be skipped for its NaN must not reach the momentum.
        if (terms.momentum or terms.weight_decay) and torch.isfinite(result).all():
            result.add_(slot.parameter.detach(), alpha=terms.weight_decay)
            if terms.momentum:
                slot.momentum, update = advance(slot.momentum, result, terms)
                result.copy_(update)
        return result

    def _look_around(self) -> None:
        """Ask Horovod, once a step, for what an elastic job may change."""
        self._rank = self.process_set.rank() if self.process_set.included() else -1
        self._world = self.process_set.size()
        self._new_step = False

    def _codec(self, slot: Slot, terms: Terms) -> Codec:
        if slot.codec is None:
            slot.codec = Codec(
                self.method,
                slot.parameter.numel(),
                slot.name,
                self.seed,
                self._rank,
                self._world,
                self._kernels,
            )
            if slot.momentum is not None:
                slot.codec.momentum, slot.momentum = np.asarray(tensors.entries(slot.momentum)[0]), None
        slot.codec.step, slot.codec.world_size = slot.step, self._world
        feedback = slot.codec.method.feedback
        if (feedback.momentum, feedback.nesterov) != (terms.momentum, terms.nesterov):
            slot.codec.method = self.method.with_feedback(momentum=terms.momentum, nesterov=terms.nesterov)
        return slot.codec

    def _check_sparse(self, reduced: torch.Tensor) -> None:
        for slot in self._parameters.with_sparse_gradient(reduced.shape):
            if self._terms.of(slot.parameter) != Terms():
                raise ValueError(
                    f"{slot.name} has sparse gradients, whose momentum and weight decay momentum_from "
                    "cannot move; give DistributedOptimizer sparse_as_dense=True, or put the "
                    "parameter into a group with momentum=0 and weight_decay=0"
                )

    def _check_stranger(self, gradient: torch.Tensor) -> None:
        if isinstance(gradient, torch.nn.Parameter):
            raise ValueError(
                "op=hvd.Adasum hands parameters, not gradients, to the compressor and cannot be "
                "combined with it; use op=hvd.Average or op=hvd.Sum"
            )
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"a gradient of shape {tuple(gradient.shape)} belongs to no parameter of named_parameters "
                "and is sent uncompressed",
                stacklevel=3,
            )


def _weight(slot: Slot, weight_decay: float) -> Block | None:
    """The parameter's entries, where they are needed."""
    return tensors.entries(slot.parameter)[0] if weight_decay else None


def _reduces(process_set: Any) -> bool:
    """Whether Horovod's DistributedOptimizer reduces on this rank (the condition in its own source)."""
    return bool(process_set.included()) and (hvd.size() > 1 or os.environ.get("HOROVOD_ELASTIC") == "1")


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Horovod's wrapper is made after its compressor, which meets it here, before it steps."""
    compression = getattr(optimizer, "_compression", None)
    if isinstance(compression, Compressor):
        compression._terms.before_step(optimizer)


register_optimizer_step_pre_hook(_before_step)  # for all optimizers and once; others than ours are let pass
