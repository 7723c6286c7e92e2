"""The part of a fused encoding that stays the same from step to step."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..core import wire
from ..core.block import Entries
from ..core.feedback import Feedback
from ..core.method import Method
from ..core.types import Bytes, Floats
from . import library
from .calls import address, readable
from .interface import Decay, Kept, State

if TYPE_CHECKING:
    from .native import NativeKernels

BFLOAT16 = 2
DTYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1}


class Key(NamedTuple):
    """What a plan was made for."""

    kernels: NativeKernels
    method: Method
    k: int
    world_size: int
    residual: Floats
    momentum: Floats | None


class Plan:
    """The part of a call that stays the same from step to step, so that small tensors are not dominated by
    putting it together. `before`: the plan of the last step, if there was one."""

    def __init__(self, key: Key, calls: ctypes.CDLL, before: Plan | None) -> None:
        feedback, quantizer, size = key.method.feedback, key.method.quantizer, key.residual.size
        self.momentum = key.momentum
        if feedback.momentum and self.momentum is None:
            self.momentum = np.zeros(size, np.float32)
        self._key = key._replace(momentum=self.momentum)
        self.masking = feedback.masking and feedback.momentum > 0
        method_id = wire.METHOD_IDS.get(key.method.name, 0)
        self._format = library.Format(size, key.k, method_id, quantizer.wire_id, quantizer.bits)
        self.format_address = ctypes.addressof(self._format)
        self.payload_bytes: int = calls.hgc_payload_bytes(self.format_address)
        self.payload_address = 0
        self._payload: Bytes | None = None
        self.step = step_of(feedback, key.world_size, key.residual, self.momentum)
        self.step_address = ctypes.addressof(self.step)
        if before is not None and before._key.k == key.k:
            for name in ("hint", "caution", "turn"):
                setattr(self.step, name, getattr(before.step, name))

    def fits(self, kernels: NativeKernels, method: Method, k: int, world_size: int, state: State) -> bool:
        key = self._key
        return (
            key.residual is state.residual
            and key.momentum is state.momentum
            and key.method is method
            and key.k == k
            and key.world_size == world_size
            and key.kernels is kernels
        )

    def copies(self) -> Kept:
        """Of what is kept."""
        momentum = self._key.momentum if self.step.velocity else None
        return self._key.residual.copy(), None if momentum is None else momentum.copy()

    def restore(self, before: Kept) -> None:
        self._key.residual[:], momentum = before
        if momentum is not None and self._key.momentum is not None:
            self._key.momentum[:] = momentum

    def write_to(self, out: Bytes | None) -> Bytes:
        """Where the payload goes, whose address is then in `payload_address`."""
        if out is None or out.size != self.payload_bytes:
            out = np.empty(self.payload_bytes, np.uint8)
        if out is not self._payload:
            self._payload, self.payload_address = out, address(out)
        return out


def step_of(feedback: Feedback, world_size: int, residual: Floats, momentum: Floats | None) -> library.Step:
    """What stays the same from step to step."""
    step = library.Step(
        momentum=feedback.momentum,
        nesterov=feedback.nesterov,
        masking=feedback.masking and feedback.momentum > 0,
        keep=feedback.keep,
        clip=feedback.clip or 0.0,
        sqrt_world=math.sqrt(world_size),
        residual=address(residual),
    )
    if feedback.momentum and momentum is not None:
        step.velocity = address(momentum)
    return step


def take_in(step: library.Step, gradient: Entries, decay: Decay | None, factor: float) -> tuple[Any, ...]:
    """Put a gradient into a step. What is returned must live as long as the step is used."""
    weight = None
    gradient, step.gradient = readable(gradient)
    step.gradient_dtype = DTYPES.get(gradient.dtype, BFLOAT16)
    step.factor = factor
    if decay is None:
        step.weight = None
    else:
        weight, step.weight = readable(decay.weight)
        step.weight_dtype = DTYPES.get(weight.dtype, BFLOAT16)
        step.weight_decay = decay.factor
    return gradient, weight
