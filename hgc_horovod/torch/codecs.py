"""A compressor's codecs, one for each compressed tensor, made when it is first needed."""

from __future__ import annotations

import numpy as np

from ..codec import Codec
from ..core.context import Peers
from ..kernels import Kernels
from . import tensors
from .momentum import Terms
from .parameters import Slot
from .step import Step


class Codecs:
    """One compressor's. All of them have the same `peers`."""

    def __init__(self, step: Step, seed: int, kernels: Kernels, peers: Peers) -> None:
        self._step, self._seed, self._kernels, self._peers = step, seed, kernels, peers

    def of(self, slot: Slot, terms: Terms) -> Codec:
        """The slot's codec, as of this step."""
        step = self._step
        if slot.codec is None:
            slot.codec = Codec(
                slot.method,
                slot.parameter.numel(),
                slot.name,
                self._seed,
                step.rank,
                step.world,
                self._kernels,
                shape=slot.parameter.shape,
                peers=self._peers,
            )
            if slot.momentum is not None:
                mean = slot.momentum / step.op_scale
                slot.codec.momentum, slot.momentum = np.asarray(tensors.entries(mean)[0]), None
        codec = slot.codec
        codec.step, codec.rank, codec.world_size = slot.step, step.rank, step.world
        method = slot.method_with(terms.momentum, terms.nesterov)
        if codec.method is not method:
            codec.method = method
        return codec
