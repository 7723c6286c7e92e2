"""What Horovod itself reduces in place of a compressed tensor: a few numbers, float32, as in
`csrc/tensorflow/control.h`. Behind them stands a digest of the settings."""

from __future__ import annotations

import numpy as np

from ..agreement import CompressionError
from ..core.types import Floats

SCALE, FIRST, BROKEN, FAILED, CONTROL = range(5)


def vector(first: bool, broken: bool, failed: bool) -> Floats:
    """This rank's: whether it is the first one, its gradient is not finite, it could not be encoded."""
    return np.array([1, first, broken, failed], np.float32)


def failure(control: Floats, world: int, name: str) -> Exception | None:
    """What the reduced numbers of a tensor tell, or None: the error that every rank raises."""
    if not abs(control[FIRST] * world - control[SCALE]) <= 0.01 * control[SCALE]:
        return ValueError(
            f"process_set must be the one that Horovod was given: the compressor's has {world} ranks, and "
            f"Horovod reduced {name} over others"
        )
    if (np.abs(control[CONTROL:]) < 0.99 * control[SCALE]).any():
        return ValueError(
            "all ranks need the same settings: method, policy, names and shapes of variables, process_set "
            "and seed differ"
        )
    if control[FAILED] > 0:
        return CompressionError(f"a rank could not encode the gradient of {name}; its log says why")
    return None


def op_scale(control: Floats, world: int) -> np.float32:
    """The scale of Horovod's op, 1 for Average, without the rounding of its sums."""
    reduced = np.float32(control[SCALE])
    near = (np.float32(wanted) for wanted in (1, world) if abs(reduced - wanted) < 0.01 * wanted)
    return next(near, reduced)
