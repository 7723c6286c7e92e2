"""The kernels in NumPy: they define every byte."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import check, floats, wire
from ..core.bits import pack, unpack
from ..core.block import Block, Entries
from ..core.feedback import Feedback
from ..core.method import Method
from ..core.types import Bytes, Floats
from .interface import Decay, Sent, State, check_codes


class ReferenceKernels:
    """See `interface.Kernels`."""

    description = "reference (NumPy)"

    def encode(
        self,
        method: Method,
        k: int,
        state: State,
        gradient: Entries,
        decay: Decay | None,
        world_size: int,
        factor: float = 1.0,
        out: Bytes | None = None,
    ) -> Sent | None:
        gradient = floats.widen(np.asarray(gradient))
        before = None
        if dwarfs(method.feedback, state, gradient, factor):
            before = (state.residual, state.momentum)  # neither is changed in place
        feedback, size = method.feedback, state.residual.size
        momentum = state.momentum
        if feedback.clip is not None and not np.isfinite(gradient).all():
            return None
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found below and refused
            multiplier = float(feedback.multiplier(gradient, world_size, factor))
            gradient = update = updated(gradient, multiplier, decay)
            if feedback.momentum:
                buffer = np.zeros(size, np.float32) if momentum is None else momentum
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

        header = wire.layout(size, k, method.quantizer, method.name)
        indices = np.arange(size) if header.index_kind == wire.ALL else method.selector.select(total, k)
        codes, scales = header.quantizer.quantize(total[indices])
        values = header.quantizer.dequantize(codes, scales)

        masked = np.zeros(0, np.float32)
        if feedback.masking and feedback.momentum and momentum is not None:
            masked = momentum[indices]
            momentum[indices] = 0
        total[indices] -= values
        if feedback.keep:
            state.residual = total
        state.momentum = momentum
        payload = wire.pack(header, indices, codes, scales)
        if out is not None and out.size == payload.size:
            out[:] = payload
            payload = out
        return Sent(payload, multiplier, masked, before)

    def decode_sum(self, payloads: Bytes | Block, count: int, out: Entries, factor: float) -> None:
        payloads, out = np.asarray(payloads), np.asarray(out)
        decoded = [wire.unpack(payload) for payload in wire.split(payloads)]
        if len(decoded) != count:
            raise wire.PayloadError(f"{count} payloads are expected; got {len(decoded)}")
        for header, _, _ in decoded:
            if header.n != out.size:
                raise wire.PayloadError(f"{out.size} entries are expected; got a payload of {header.n}")
        total = np.zeros(out.size, np.float32)
        with np.errstate(over="ignore"):
            for _, indices, values in decoded:
                total[indices] += np.float32(factor) * values
        floats.narrow(total, out)

    def pack_codes(self, codes: NDArray[np.uint8], bits: int) -> Bytes:
        return pack(codes.astype(np.uint64), check.whole("bits", bits, 1, 8))

    def add_codes(
        self, packed: Bytes, bits: int, levels: Floats, scales: Floats, bucket: int, out: Floats
    ) -> None:
        bucket = check_codes(packed, bits, levels, scales, bucket, out)
        codes = unpack(packed, bits, out.size)
        out += scales[np.arange(out.size) // bucket] * levels[codes]


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


def take_back(feedback: Feedback, state: State, sent: Sent, gradient: Entries, decay: Decay | None) -> None:
    """Bring back the state of before the step that `sent` came of, of any kernels, to float32 rounding."""
    if sent.before is not None:
        state.residual, state.momentum = sent.before
        return
    _, indices, values = wire.unpack(sent.payload)
    update = updated(np.asarray(gradient), sent.multiplier, decay)
    if feedback.momentum and state.momentum is not None:
        if feedback.masking:
            state.momentum[indices] = sent.masked_momentum
        before = feedback.retreat(state.momentum, update)
        update = feedback.direction(state.momentum, update)
        state.momentum = before
    if feedback.keep:
        state.residual[indices] += values
        state.residual = state.residual - update


def updated(gradient: NDArray[Any], multiplier: float, decay: Decay | None) -> Floats:
    """The gradient after scaling, clipping and weight decay."""
    update = floats.widen(gradient)
    if multiplier != 1:
        update = update * np.float32(multiplier)
    if decay is not None:
        update = update + np.float32(decay.factor) * floats.widen(np.asarray(decay.weight))
    return update
