"""Dropping a step in place of `optimizer.step()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import horovod.torch as hvd

if TYPE_CHECKING:
    from .compressor import Compressor


def discard(compressor: Compressor, optimizer: Any) -> None:
    """See `Compressor.discard`."""
    step = compressor._step
    if getattr(optimizer, "_compression", None) is not compressor:
        raise ValueError("optimizer must be the DistributedOptimizer of this compressor")
    if step.unapplied and not optimizer._handles:
        raise ValueError("discard comes too late: call it in place of optimizer.synchronize()")
    if step.failed:
        _drop(compressor, optimizer)
    else:
        step.discarding = True
        try:
            optimizer.synchronize()
        finally:
            step.discarding = False
    optimizer._synchronized = False
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _drop(compressor: Compressor, optimizer: Any) -> None:
    """What is left of a step whose `synchronize` has told every rank why it cannot be made."""
    for handle, _ in optimizer._handles.values():
        if handle is not None:
            hvd.synchronize(handle)  # returns at once where Horovod has waited for it already
    optimizer._handles.clear()
    for parameter in optimizer._allreduce_delay:
        optimizer._allreduce_delay[parameter] = optimizer.backward_passes_per_step
    for group in getattr(optimizer, "_group_counts", {}):
        optimizer._group_counts[group] = 0
    compressor._abandon()
    compressor._step.begun = compressor._step.failed = False
