"""What a compressor has to do when its optimizer steps. Horovod's wrapper is made after its compressor, which
meets it here."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import numpy as np
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..core import floats
from . import tensors
from .compressor import Compressor
from .momentum import MovedTerms
from .parameters import Slot


def _compressor_of(optimizer: Any) -> Compressor | None:
    compression = getattr(optimizer, "_compression", None)
    return compression if isinstance(compression, Compressor) else None


def _before_step(optimizer: Any, *_: Any) -> None:
    """Runs twice where Horovod's step() synchronizes: before that, and before the step of what it wraps."""
    compressor = _compressor_of(optimizer)
    if compressor is None:
        return
    going_to_reduce = optimizer._should_synchronize and optimizer._handles
    if going_to_reduce and compressor._loss_scale.divides:
        raise ValueError(
            "the GradScaler has divided gradients that are still being reduced; call optimizer.synchronize() "
            "before scaler.step(optimizer), and that within optimizer.skip_synchronize()"
        )
    compressor._terms.before_step(optimizer)
    step = compressor._step
    if step.world and optimizer.op == hvd.Sum:  # known from here on, also where all was sent dense so far
        step.op_scale = float(step.world)
    reduced = step.unapplied and not optimizer._handles
    if reduced and isinstance(compressor._terms, MovedTerms):
        _take_over(compressor, optimizer, compressor._terms)
    # A step() after synchronize() reduces once more, unless within skip_synchronize(). Horovod's flag alone
    # does not tell: it stays where a step was skipped.
    if reduced and optimizer._synchronized and optimizer._should_synchronize:
        step.repeated = _still_reduced(compressor, optimizer)
    step.unapplied = False


def _after_step(optimizer: Any, *_: Any) -> None:
    compressor = _compressor_of(optimizer)
    if compressor is not None:
        compressor._step.repeated, compressor._step.unapplied = {}, False


def _still_reduced(compressor: Compressor, optimizer: Any) -> dict[Slot, int]:
    """The gradients that are those of the last step still, and how often they were written to so far. None
    are where they were cleared since, or a backward pass has begun to accumulate into them."""
    passes = optimizer.backward_passes_per_step
    slots = [slot for slot in compressor._parameters.slots if slot.holds_reduced()]
    accumulating = any(optimizer._allreduce_delay.get(slot.parameter, passes) != passes for slot in slots)
    if accumulating or all(tensors.is_zero(slot.parameter.grad) for slot in slots):
        return {}
    return {slot: slot.version() for slot in slots}


def _take_over(compressor: Compressor, optimizer: Any, terms_of: MovedTerms) -> None:
    """The momentum buffers of a checkpoint without compression, which was loaded into the optimizer.

    They are the same on all ranks, so what they add to this step's gradients needs no communication.
    """
    for slot in compressor._parameters.slots:
        buffer, terms = terms_of.buffer_of(optimizer, slot.parameter), terms_of.of(slot.parameter)
        if buffer is None or not terms.momentum or slot.parameter.grad is None:
            continue
        share = terms.momentum * buffer
        slot.parameter.grad.add_(share, alpha=terms.momentum if terms.nesterov else 1.0)
        if slot.codec is not None and slot.codec.momentum is not None:
            entries, _ = tensors.entries(share / compressor._step.op_scale)
            slot.codec.momentum = slot.codec.momentum + floats.widen(np.asarray(entries))
        elif slot.momentum is not None:
            slot.momentum.add_(share)


def register() -> None:
    """For all optimizers; others than ours are let pass."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
