"""Gradients between `compress` and `decompress`."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import horovod.torch as hvd
import torch

from ..codec import Codec
from ..core.block import Block
from . import tensors
from .momentum import Terms, advance
from .parameters import Slot

log = logging.getLogger("hgc_horovod")


class Dense(NamedTuple):
    """A gradient on its way through Horovod's own allreduce; without a slot where it is not registered."""

    slot: Slot | None
    gradient: torch.Tensor


class Reduced(NamedTuple):
    """A gradient that was reduced before, and is not to be once more."""

    gradient: torch.Tensor


class Taken(NamedTuple):
    """What was taken up of a gradient, as long as `entries` hold it: its `own` memory, or a copy."""

    codec: Codec
    entries: Block
    own: bool
    version: int  # of the gradient
    weight_decay: float


@dataclass(eq=False)
class Compressed(ABC):
    """A gradient in whose place something else is on its way. `taken` is None unless it was taken up, and
    `handle` is of what Horovod is working on."""

    slot: Slot
    gradient: torch.Tensor
    taken: Taken | None = None
    handle: int = -1

    @abstractmethod
    def encode(self, taken: Taken, factor: float) -> torch.Tensor:
        """Take `factor` times the gradient up; returns what is to be sent first. NonFiniteError as the
        codec's."""

    @abstractmethod
    def nothing(self, codec: Codec | None) -> torch.Tensor:
        """What is sent in place of that where it cannot be made, without a codec where there is none."""

    @abstractmethod
    def send(self, tensor: torch.Tensor, prefix: str, process_set: Any) -> None:
        """Have Horovod start with what is to be sent first."""

    @abstractmethod
    def take_back(self) -> None:
        """Undo what `encode` did, if anything, before the gradient is written to."""

    @abstractmethod
    def finish(self, arrived: torch.Tensor, factor: float) -> torch.Tensor | None:
        """The gradient, `factor` times the mean over the ranks, given what came of `handle`; None where that
        is not finite, on all ranks alike, and what is kept is as before."""

    def written_to(self) -> bool:
        """Whether what was taken up is there no longer. Views count writes together: they are trusted."""
        taken = self.taken
        if taken is None or not taken.own:
            return False
        if self.gradient.data_ptr() != taken.entries.address:
            return True
        return not self.gradient._is_view() and self.gradient._version != taken.version


Context = Dense | Compressed | Reduced | None  # None: a sparse gradient, which Horovod gathers itself


def weight_of(slot: Slot, weight_decay: float) -> Block | None:
    """The parameter's entries, where they are needed."""
    return tensors.entries(slot.parameter)[0] if weight_decay else None


def apply_terms(slot: Slot, result: torch.Tensor, terms: Terms, loss_scale: float) -> None:
    """Add weight decay and momentum to a gradient that was reduced dense, in place."""
    if not (terms.momentum or terms.weight_decay):
        return
    if not torch.isfinite(result).all():  # finite gradients may overflow in their sum
        return
    # In half precision what is free of the loss scale would underflow.
    update = result.to(torch.promote_types(result.dtype, torch.float32))
    if loss_scale != 1:
        update = update / loss_scale
    if terms.weight_decay:
        update = update.add(slot.parameter.detach(), alpha=terms.weight_decay)
    if terms.momentum:
        slot.momentum, update = advance(slot.momentum, update, terms)
    result.copy_(update.mul(loss_scale) if loss_scale != 1 else update)


def drain(name: str, handle: int) -> None:
    """Wait for what nobody needs any more."""
    try:
        hvd.synchronize(handle)
    except Exception as error:
        log.info("hgc_horovod: %s was not reduced: %s", name, error)
