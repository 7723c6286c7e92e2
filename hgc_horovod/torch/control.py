"""What the ranks share about a compressed tensor: three numbers, reduced by Horovod itself.

Entry 0 is 1, so its reduced value is the scale of Horovod's op: 1 for Average (with any predivide factor), W
for Sum. Entry 1 is 1 where this rank's gradient holds a NaN or an infinity. Entry 2 is 1 on the first rank
of the compressor's process set alone, which tells over how many ranks Horovod has reduced.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from .tensors import wire_dtype

_NUMBERS = {
    (finite, first): np.array([1, not finite, first], np.float32)
    for finite in (False, True)
    for first in (False, True)
}


class Shared(NamedTuple):
    """`scale`: what the mean of the ranks' gradients is to be multiplied by. `finite`: on every rank."""

    scale: float
    finite: bool


def vector(like: torch.Tensor, *, finite: bool, first: bool) -> torch.Tensor:
    """This rank's numbers, in the dtype and on the device that Horovod would reduce `like` in."""
    numbers = torch.from_numpy(_NUMBERS[finite, first].copy())
    if like.dtype is torch.float32 and like.is_cpu:
        return numbers
    return numbers.to(like.device, wire_dtype(like.dtype))


def read(reduced: torch.Tensor, world_size: int) -> Shared:
    """The reduced numbers' meaning; ValueError where the optimizer's process set is not the compressor's."""
    scale, broken, first = reduced.tolist()
    if abs(first * world_size - scale) > 0.01 * scale:
        raise ValueError(
            "process_set must be the one that DistributedOptimizer was given: the compressor's "
            f"has {world_size} ranks, and the optimizer reduces over others"
        )
    for wanted in (1.0, float(world_size)):
        if abs(scale - wanted) < 0.01 * wanted:
            scale = wanted
    return Shared(scale, not broken)
