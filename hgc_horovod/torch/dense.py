"""Gradients that Horovod reduces as they are. What is kept of those that were compressed before is averaged,
and applied at once."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from ..report import Traffic
from . import tensors
from .flight import Dense, apply_terms, drain
from .momentum import FixedTerms, MovedTerms
from .parameters import Slot
from .step import Step


class DenseExchange:
    """One compressor's.

    Args:
        passed: where gradients that belong to no slot are counted.

    Attributes:
        handing: the handles of what is being averaged, by the tensors' names.
    """

    def __init__(
        self, passed: Traffic, step: Step, terms: FixedTerms | MovedTerms, prefix: str, process_set: Any
    ) -> None:
        self._step, self._terms, self._passed = step, terms, passed
        self._prefix, self._process_set = prefix, process_set
        self.handing: dict[str, int] = {}

    def start(self, slot: Slot, gradient: torch.Tensor) -> tuple[torch.Tensor, Dense]:
        """What Horovod is to reduce, and the rest for `finish`."""
        wire = tensors.to_wire(gradient, slot.method.dense.fp16)
        self._step.agreement.watch(wire)
        if slot.codec is not None:
            codec = slot.codec
            momentum = np.zeros(codec.size, np.float32) if codec.momentum is None else codec.momentum
            kept = torch.from_numpy(np.stack([codec.residual, momentum]))
            self.handing[slot.name] = hvd.allreduce_async(
                kept, op=hvd.Average, name=f"{self._prefix}.{slot.name}.kept", process_set=self._process_set
            )
        return wire, Dense(slot, gradient)

    def finish(self, reduced: torch.Tensor, context: Dense) -> torch.Tensor:
        """The reduced gradient, with weight decay, momentum, and what was kept."""
        slot, gradient = context.slot, context.gradient
        traffic = self._passed if slot is None else slot.traffic
        traffic.count(gradient.numel(), reduced.nbytes)
        result = reduced if reduced is gradient else tensors.writable(gradient).copy_(reduced)
        if slot is None:
            return result
        left = self._take_over(slot, result)
        if not self._step.counts:
            return result
        slot.step += 1
        apply_terms(slot, result, self._terms.of(slot.parameter), self._step.loss_scale)
        return result if left is None else result.add_(left)

    def abandon(self) -> None:
        """Give up what is being averaged, where its step was never finished."""
        while self.handing:
            drain(*self.handing.popitem())

    def _take_over(self, slot: Slot, result: torch.Tensor) -> torch.Tensor | None:
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
