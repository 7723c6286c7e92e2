"""Gradients between `compress` and `decompress`."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..codec import Codec
from ..core.block import Block
from . import tensors
from .momentum import Terms, advance
from .parameters import Slot


class Dense(NamedTuple):
    """A gradient on its way through Horovod's own allreduce; without a slot where it is not registered."""

    slot: Slot | None
    gradient: torch.Tensor


class Reduced(NamedTuple):
    """A gradient that was reduced before, and is not to be once more."""

    gradient: torch.Tensor


class Encoded(NamedTuple):
    """What was encoded, as long as `entries` hold it: the gradient's `own` memory, or a copy."""

    codec: Codec
    entries: Block
    own: bool
    version: int  # of the gradient
    weight_decay: float


class Compressed(NamedTuple):
    """A gradient whose payload is being gathered, and what was encoded, unless that failed."""

    slot: Slot
    gradient: torch.Tensor
    encoded: Encoded | None
    handle: int

    def written_to(self) -> bool:
        """Whether what was encoded is no longer there. Views count their writes together, and are trusted."""
        encoded = self.encoded
        if encoded is None or not encoded.own:
            return False
        if self.gradient.data_ptr() != encoded.entries.address:
            return True
        return not self.gradient._is_view() and self.gradient._version != encoded.version


Context = Dense | Compressed | Reduced | None  # None: a sparse gradient, which Horovod gathers itself


def take_back(slot: Slot, encoded: Encoded | None) -> None:
    """Undo the encoding, if there was one, before anything is written over what was encoded."""
    if encoded is not None:
        weight = weight_of(slot, encoded.weight_decay)
        encoded.codec.undo(encoded.entries, weight, encoded.weight_decay)


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
