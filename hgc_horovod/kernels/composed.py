"""Any method's step, put together of its parts: what the reference does, and the native kernels for parts
that are not in their one fused pass."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import floats, wire
from ..core.bits import pack
from ..core.block import Block, Entries
from ..core.bucketed import Bucketed, PowerOfTwo
from ..core.context import Context
from ..core.feedback import Feedback
from ..core.matrices import Factors, Rounds
from ..core.method import Method
from ..core.passes import LARGEST, Passes
from ..core.types import Bytes, Floats
from .interface import Accumulated, Decay, Kept, Sent, State

_NOTHING = np.zeros(0, np.float32)


class ComposedKernels:
    """Kernels that are made of passes and of a way to accumulate."""

    passes: Passes

    @abstractmethod
    def accumulate(
        self,
        feedback: Feedback,
        state: State,
        gradient: Entries,
        decay: Decay | None,
        world_size: int,
        factor: float = 1.0,
    ) -> Accumulated | None:
        """See `interface.Kernels`."""

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
        context: Context | None = None,
    ) -> Sent | None:
        feedback = method.feedback
        step = self.accumulate(feedback, state, gradient, decay, world_size, factor)
        if step is None:
            return None
        if context is not None:
            context.passes = self.passes
            context.update = lambda: added(feedback, state, gradient, step.multiplier, decay)
        try:
            payload, indices = self._compress(method, k, step.total, context)
        except Exception:  # one that a part of the user's raised
            subtract(feedback, state, gradient, step.multiplier, decay, step.before)
            raise
        masked = _NOTHING
        if feedback.masking and feedback.momentum and state.momentum is not None:
            places = np.arange(step.total.size) if indices is None else indices
            masked = state.momentum[places]
            state.momentum[places] = 0
        if out is not None and out.size == payload.size:
            out[:] = payload
            payload = out
        return Sent(payload, step.multiplier, masked, step.before)

    def rounds(
        self,
        method: Method,
        k: int,
        state: State,
        gradient: Entries,
        decay: Decay | None,
        world_size: int,
        factor: float,
        context: Context,
    ) -> Rounds | None:
        """One step of a method that averages vectors; None as `encode` does. The state is as it was before
        until the last mean has been sent in."""
        feedback = method.feedback
        kept = State(state.residual.copy(), None if state.momentum is None else state.momentum.copy())
        step = self.accumulate(feedback, kept, gradient, decay, world_size, factor)
        if step is None:
            return None
        context.passes = self.passes
        return self._finish(method, k, state, kept, step.total, context)

    def _finish(
        self, method: Method, k: int, state: State, kept: State, total: Floats, context: Context
    ) -> Rounds:
        mean, own = yield from method.selector.rounds(total, k, context)  # type: ignore[attr-defined]
        if method.feedback.keep:
            state.residual = total - own
        state.momentum = kept.momentum
        return mean, own

    def _compress(
        self, method: Method, k: int, total: Floats, context: Context | None
    ) -> tuple[Bytes, NDArray[np.int64] | None]:
        """The payload and the positions that it holds, None for all; takes what it carries out of `total`
        where that is kept."""
        size, quantizer, controller = total.size, method.quantizer, method.controller
        keep = method.feedback.keep
        notes = _NOTHING
        if controller is not None and context is not None and controller.due(context.step):
            notes = np.clip(np.array(controller.measure(total, context)), -LARGEST, LARGEST)
            notes = notes.astype(np.float32)
        if isinstance(quantizer, Factors) and size:
            return self._compress_matrix(method, total, keep, context, notes), None
        header, selector = wire.layout(size, k, quantizer, method.name, notes.size), method.selector
        if not size or (header.index_kind == wire.ALL and not selector.varies):
            return self._compress_all(header, total, keep, context, notes), None
        indices = selector.select(total, k, context)  # type: ignore[arg-type]
        if selector.varies:
            slots = max(min(size, 1), indices.size)
            header = wire.layout(size, slots, quantizer, method.name, notes.size)
        values = selector.take(total[indices], context)  # type: ignore[arg-type]
        codes, scales = quantizer.quantize(values, context)
        if keep:
            total[indices] -= quantizer.dequantize(codes, scales)
        return wire.pack(header, indices, codes, scales, notes), indices

    def _compress_all(
        self, header: wire.Header, total: Floats, keep: bool, context: Context | None, notes: Floats
    ) -> Bytes:
        quantizer = header.quantizer
        codes, scales = quantizer.quantize(total, context)
        payload, at = wire.begin(header, scales, notes), header.sections[2]
        if isinstance(quantizer, Bucketed):
            packed = self.passes.pack_codes(codes.astype(np.uint8, copy=False), quantizer.bits)
            if keep:
                levels, scales, bucket = quantizer.table(scales, total.size)
                self.passes.add_codes(packed, quantizer.bits, -levels, scales, bucket, total)
        elif isinstance(quantizer, PowerOfTwo):
            packed = self.passes.pack_powers(codes.astype(np.uint16, copy=False))
            if keep:
                self.passes.add_powers(packed, -1.0, total)
        else:
            packed = pack(codes, quantizer.bits)
            if keep:
                total -= quantizer.dequantize(codes, scales)
        payload[at : at + packed.size] = packed
        return payload

    def _compress_matrix(
        self, method: Method, total: Floats, keep: bool, context: Context | None, notes: Floats
    ) -> Bytes:
        assert context is not None
        left, right = method.selector.factorize(total, context)  # type: ignore[attr-defined]
        if not left.shape[0] and total.size:  # a payload has one slot at least
            left, right = (np.zeros((1, length), np.float32) for length in context.shape)
        if keep:
            self.passes.add_outer(left, right, -1.0, total)
        quantizer = Factors(rows=context.shape[0] if total.size else 1)
        header = wire.layout(total.size, left.shape[0], quantizer, method.name, notes.size)
        codes, scales = quantizer.quantize(np.concatenate([left.reshape(-1), right.reshape(-1)]))
        return wire.pack(header, np.arange(codes.size), codes, scales, notes)

    def decode_sum(
        self, payloads: Bytes | Block, count: int, out: Entries, factor: float, vote: bool = False
    ) -> None:
        payloads, out = np.asarray(payloads), np.asarray(out)
        parts = wire.split(payloads)
        if len(parts) != count:
            raise wire.PayloadError(f"{count} payloads are expected; got {len(parts)}")
        total = np.zeros(out.size, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # a factor may be of any size
            add: list[Callable[[Floats], None]] = [self._adder(part, out.size, factor) for part in parts]
            for added in add:
                added(total)
        if vote:
            total = np.sign(total) * np.float32(count * factor)
        floats.narrow(total, out)

    def _adder(self, payload: Bytes, size: int, factor: float) -> Callable[[Floats], None]:
        """What adds a payload's values, times `factor`; PayloadError where it is damaged."""
        header = wire.check_whole(payload)
        if header.n != size:
            raise wire.PayloadError(f"{size} entries are expected; got a payload of {header.n}")
        quantizer, passes = header.quantizer, self.passes
        if header.index_kind == wire.ALL and isinstance(quantizer, Bucketed):
            levels, scales, bucket = wire.check_table(header, payload)
            scales, packed = np.float32(factor) * scales, wire.packed_fields(header, payload)
            return lambda out: passes.add_codes(packed, quantizer.bits, levels, scales, bucket, out)
        if header.index_kind == wire.ALL and isinstance(quantizer, PowerOfTwo):
            powers = wire.check_powers(header, payload, passes)
            return lambda out: np.add(out, np.float32(factor) * powers, out=out)
        header, indices, values = wire.unpack(payload, 1.0 if header.index_kind == wire.OUTER else factor)
        if isinstance(quantizer, Factors):
            rows, k = header.quantizer.rows, header.k  # type: ignore[attr-defined]
            left, right = values[: k * rows].reshape(k, rows), values[k * rows :].reshape(k, size // rows)
            return lambda out: passes.add_outer(left, right, factor, out)

        def add(out: Floats) -> None:
            out[indices] += values

        return add

    def take_back(
        self, method: Method, state: State, sent: Sent, gradient: Entries, decay: Decay | None
    ) -> None:
        """Bring back the state of before the step that `sent` came of, to float32 rounding."""
        feedback = method.feedback
        if sent.before is None:
            if feedback.masking and state.momentum is not None:
                _, indices, _ = wire.unpack(sent.payload)
                state.momentum[indices] = sent.masked_momentum
            if feedback.keep:
                self._adder(sent.payload, state.residual.size, 1.0)(state.residual)
        subtract(feedback, state, gradient, sent.multiplier, decay, sent.before)


def subtract(
    feedback: Feedback,
    state: State,
    gradient: Entries,
    multiplier: float,
    decay: Decay | None,
    before: Kept | None,
) -> None:
    """Take back what `accumulate` has added, to float32 rounding, or bring back what was kept before."""
    if before is not None:
        state.residual, state.momentum = before
        return
    update = updated(np.asarray(gradient), multiplier, decay)
    if feedback.momentum and state.momentum is not None:
        earlier = feedback.retreat(state.momentum, update)
        update = feedback.direction(state.momentum, update)
        state.momentum = earlier
    if feedback.keep:
        state.residual = state.residual - update


def added(
    feedback: Feedback, state: State, gradient: Entries, multiplier: float, decay: Decay | None
) -> Floats:
    """What a step has added to the residual, given the momentum buffer that it has entered."""
    update = updated(np.asarray(gradient), multiplier, decay)
    if feedback.momentum and state.momentum is not None:
        return feedback.direction(state.momentum, update)
    return update


def updated(gradient: NDArray[Any], multiplier: float, decay: Decay | None) -> Floats:
    """The gradient after scaling, clipping and weight decay."""
    update = floats.widen(gradient)
    if multiplier != 1:
        update = update * np.float32(multiplier)
    if decay is not None:
        update = update + np.float32(decay.factor) * floats.widen(np.asarray(decay.weight))
    return update
