"""The kernels in C++ (`csrc/`), called through ctypes, which releases the interpreter's lock."""

from __future__ import annotations

import ctypes

import numpy as np

from ..core.block import Block, Entries
from ..core.context import Context
from ..core.feedback import Feedback
from ..core.method import Method
from ..core.quantize import BFloat16, Float32, Geometric, SignMean
from ..core.select import TopK
from ..core.types import Bytes
from . import library
from .calls import THREAD_GRAIN, Native, address, expect_ok, readable
from .composed import ComposedKernels
from .interface import Accumulated, Decay, Kept, Sent, State
from .passes import NativePasses
from .plan import BFLOAT16, DTYPES, Key, Plan, step_of, take_in
from .reference import ReferenceKernels

_KNOWN = {TopK, Float32, BFloat16, SignMean, Geometric, Feedback}  # the parts that are in the library
_NOTHING = np.zeros(0, np.float32)


class NativeKernels(Native, ComposedKernels):
    """See `interface.Kernels`, and `Native` for the arguments.

    Attributes:
        encodes, rescans: how many tensors were encoded, and how many further passes over one were needed
            because the threshold was guessed too high.
    """

    def __init__(self, threads: int = 1, path: str | None = None, grain: int = THREAD_GRAIN) -> None:
        super().__init__(threads, path, grain)
        self.passes = passes = NativePasses(threads, path, grain)
        self.pack_codes, self.add_codes = passes.pack_codes, passes.add_codes
        self.encodes = self.rescans = 0

    @property
    def description(self) -> str:
        again = f", {self.rescans} second passes in {self.encodes} encodes" if self.encodes else ""
        return f"cpu ({self.path}, at most {self.threads} threads{again})"

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
        plan: Plan | None = state.plan
        if plan is None or method.controller is not None or not plan.fits(self, method, k, world_size, state):
            if not _is_fused(method, context):
                return super().encode(method, k, state, gradient, decay, world_size, factor, out, context)
            key = Key(self, method, k, world_size, state.residual, state.momentum)
            plan = Plan(key, self._calls, plan)
            plan.step.path, plan.step.threads = self._path, self._threads(state.residual.size)
        step = plan.step
        _alive = take_in(step, gradient, decay, factor)
        masked = _NOTHING
        if plan.masking:
            masked = np.empty(k, np.float32)
            step.masked = address(masked)
        payload, before = plan.write_to(out), None
        step.guard = 1
        status = self._calls.hgc_encode(plan.format_address, plan.step_address, plan.payload_address)
        if status == library.DWARFED:
            before = plan.copies()
            step.guard = 0
            status = self._calls.hgc_encode(plan.format_address, plan.step_address, plan.payload_address)
        if status == library.NON_FINITE:
            if before is not None:
                plan.restore(before)
            return None
        expect_ok(status)
        state.momentum, state.plan = plan.momentum, plan
        self.encodes += 1
        self.rescans += step.scans - 1
        return Sent(payload, step.multiplier, masked[: step.sent] if plan.masking else masked, before)

    def accumulate(
        self,
        feedback: Feedback,
        state: State,
        gradient: Entries,
        decay: Decay | None,
        world_size: int,
        factor: float = 1.0,
    ) -> Accumulated | None:
        if type(feedback) is not Feedback:
            return ReferenceKernels().accumulate(feedback, state, gradient, decay, world_size, factor)
        momentum, residual = state.momentum, state.residual
        if feedback.momentum and momentum is None:
            momentum = np.zeros(residual.size, np.float32)
        step = step_of(feedback, world_size, residual, momentum)
        step.path, step.threads = self._path, self._threads(residual.size)
        _alive = take_in(step, gradient, decay, factor)
        total = residual if feedback.keep else np.empty(residual.size, np.float32)
        call = ctypes.byref(step), residual.size, address(total)
        before: Kept | None = None
        step.guard = 1
        status = self._calls.hgc_accumulate(*call)
        if status == library.DWARFED:
            before = residual.copy(), None if state.momentum is None else state.momentum.copy()
            step.guard = 0
            status = self._calls.hgc_accumulate(*call)
        if status == library.NON_FINITE:
            if before is not None:
                residual[:] = before[0]
                if state.momentum is not None and before[1] is not None:
                    state.momentum[:] = before[1]
            return None
        expect_ok(status)
        state.momentum = momentum
        return Accumulated(total, step.multiplier, before)

    def decode_sum(
        self, payloads: Bytes | Block, count: int, out: Entries, factor: float, vote: bool = False
    ) -> None:
        flat, start = readable(payloads)
        status = library.DAMAGED  # or of a kind that is put together of passes
        if not vote:
            status = self._calls.hgc_decode_sum(
                start,
                flat.size,
                count,
                out.size,
                factor,
                address(out),
                DTYPES.get(out.dtype, BFLOAT16),
                self._path,
                self._threads(out.size),
            )
        if status == library.DAMAGED:
            super().decode_sum(payloads, count, out, factor, vote)
        else:
            expect_ok(status)


def _is_fused(method: Method, context: Context | None) -> bool:
    """Whether the one pass of `hgc_encode` does all of this step."""
    parts = (type(method.selector), type(method.quantizer), type(method.feedback))
    noted = method.controller is not None and context is not None and method.controller.due(context.step)
    return _KNOWN.issuperset(parts) and not noted
