"""The kernels in NumPy: they define every byte."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..core import check, floats
from ..core.block import Entries
from ..core.feedback import Feedback
from ..core.passes import NumPyPasses
from ..core.types import Bytes, Floats
from .composed import ComposedKernels, updated
from .interface import Accumulated, Decay, State, check_codes


class ReferenceKernels(ComposedKernels):
    """See `interface.Kernels`."""

    description = "reference (NumPy)"
    passes = NumPyPasses()

    def accumulate(
        self,
        feedback: Feedback,
        state: State,
        gradient: Entries,
        decay: Decay | None,
        world_size: int,
        factor: float = 1.0,
    ) -> Accumulated | None:
        gradient = floats.widen(np.asarray(gradient))
        before = None
        if dwarfs(feedback, state, gradient, factor):
            before = (state.residual, state.momentum)  # neither is changed in place
        momentum = state.momentum
        if feedback.clip is not None and not np.isfinite(gradient).all():
            return None
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found below and refused
            multiplier = float(feedback.multiplier(gradient, world_size, factor))
            gradient = update = updated(gradient, multiplier, decay)
            if feedback.momentum:
                buffer = np.zeros(gradient.size, np.float32) if momentum is None else momentum
                momentum, update = feedback.advance(buffer, gradient)
            total = state.residual + update if feedback.keep else update.copy()
            finite = np.isfinite(total)
            if not finite.all():
                if before is not None:
                    return None
                if feedback.keep:
                    state.residual = np.where(finite, total - update, state.residual)
                if state.momentum is not None and momentum is not None and feedback.momentum:
                    earlier = feedback.retreat(momentum, gradient)
                    state.momentum = np.where(finite, earlier, state.momentum)
                return None
        state.momentum = momentum
        if feedback.keep:
            state.residual = total
        return Accumulated(total, multiplier, before)

    def pack_codes(self, codes: NDArray[np.uint8], bits: int) -> Bytes:
        return self.passes.pack_codes(codes, check.whole("bits", bits, 1, 8))

    def add_codes(
        self, packed: Bytes, bits: int, levels: Floats, scales: Floats, bucket: int, out: Floats
    ) -> None:
        bucket = check_codes(packed, bits, levels, scales, bucket, out)
        self.passes.add_codes(packed, bits, levels, scales, bucket, out)


def dwarfs(feedback: Feedback, state: State, gradient: Floats, factor: float) -> bool:
    """Whether the gradient is so much larger than what is kept that adding and subtracting it would round
    that away. A sample is enough: a step that explodes is large nearly everywhere."""
    size = state.residual.size
    count = min(size, 64)
    places = np.arange(count) * (size // max(count, 1))
    kept = [state.residual] if feedback.keep else []
    if feedback.momentum and state.momentum is not None:
        kept.append(state.momentum)
    most = max((float(np.abs(array[places]).max(initial=0)) for array in kept), default=0.0)
    largest = float(np.abs(gradient[places]).max(initial=0))
    return most > 0 and not (math.isfinite(largest) and largest * factor <= 256 * most)
