"""A compressed gradient as a payload: encoded, gathered from all ranks, and decoded."""

from __future__ import annotations

import horovod.torch as hvd
import numpy as np
import torch

from ..codec import Codec
from . import tensors
from .flight import Compressed, Taken, weight_of
from .tensors import Buffer

_MOST_BYTES = 2**31 - 1  # that Horovod can count


class Payload(Compressed):
    """See `Compressed`. The slot keeps the memory of the last payload for the next of the same size."""

    def encode(self, taken: Taken, factor: float) -> torch.Tensor:
        out = None if self.slot.payload is None else self.slot.payload.array
        decay = taken.weight_decay
        payload = taken.codec.encode(taken.entries, weight_of(self.slot, decay), decay, out, factor)
        self.taken = taken
        _check_countable(payload.nbytes, taken.codec.world_size)
        if self.slot.payload is None or payload is not out:
            self.slot.payload = Buffer.of(payload)
        return self.slot.payload.tensor

    def nothing(self, codec: Codec | None) -> torch.Tensor:
        return torch.from_numpy(np.zeros(0, np.uint8) if codec is None else codec.encode_nothing())

    def send(self, tensor: torch.Tensor, prefix: str, process_set: hvd.ProcessSet) -> None:
        self.handle = hvd.allgather_async(tensor, f"{prefix}.{self.slot.name}", process_set)

    def take_back(self) -> None:
        if self.taken is not None:
            codec, decay = self.taken.codec, self.taken.weight_decay
            codec.undo(self.taken.entries, weight_of(self.slot, decay), decay)

    def finish(self, arrived: torch.Tensor, factor: float) -> torch.Tensor:
        assert self.taken is not None
        codec, entries, own = self.taken[:3]
        world = codec.world_size
        out = entries if own else None
        mean = codec.decode_gathered(tensors.payload(arrived), world, out, factor / world)
        return self.gradient if own else tensors.fill(self.gradient, np.asarray(mean))


def _check_countable(payload: int, world_size: int) -> None:
    if payload * world_size > _MOST_BYTES:
        raise ValueError(
            f"the payloads of {world_size} ranks take {payload * world_size:,} bytes, and Horovod can count "
            f"{_MOST_BYTES:,}; choose a method that sends less"
        )
