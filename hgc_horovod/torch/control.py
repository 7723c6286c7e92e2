"""What Horovod itself reduces in place of a compressed tensor: two numbers.

Entry 0 is 1, so its reduced value is the scale of Horovod's op: 1 for Average (with any predivide factor), W
for Sum. Entry 1 is 1 on the first rank of the compressor's process set alone, which tells over how many ranks
Horovod has reduced.
"""

from __future__ import annotations

import numpy as np
import torch

from .tensors import Buffer, wire_dtype

_DTYPES = {torch.float32: np.float32, torch.float16: np.float16, torch.float64: np.float64}


def vector(like: torch.Tensor, *, first: bool, kept: Buffer | None = None) -> Buffer:
    """This rank's numbers, in the dtype that Horovod would reduce `like` in; in `kept` where it has that."""
    dtype = wire_dtype(like.dtype)
    if kept is None or kept.tensor.dtype is not dtype:
        kept = Buffer.of(np.empty(2, _DTYPES[dtype]))
    kept.array[0], kept.array[1] = 1, first
    return kept


def scale_of(reduced: torch.Tensor, world_size: int) -> float:
    """What the mean of the ranks' gradients is to be multiplied by; ValueError where the optimizer's process
    set is not the compressor's."""
    scale, first = reduced.tolist()
    if abs(first * world_size - scale) > 0.01 * scale:
        raise ValueError(
            "process_set must be the one that DistributedOptimizer was given: the compressor's "
            f"has {world_size} ranks, and the optimizer reduces over others"
        )
    for wanted in (1.0, float(world_size)):
        if abs(scale - wanted) < 0.01 * wanted:
            return wanted
    return float(scale)
