"""The kernels in C++ (`csrc/`), called through ctypes, which releases the interpreter's lock."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import bits, check, wire
from ..core.method import Method
from ..core.types import Bytes, Floats
from . import library
from .interface import Decay, Sent, State, check_codes
from .reference import ReferenceKernels

THREAD_GRAIN = 1 << 18  # entries that are worth a thread of their own
_Memory = ctypes.c_char * 0
_BFLOAT16 = 2
_DTYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1}
_QUANTIZERS = ("float32", "bfloat16", "sign_mean", "geometric")  # what the library knows
_NOTHING = np.zeros(0, np.float32)


class _Plan:
    """The part of a call that stays the same from step to step, so that small tensors are not dominated by
    putting it together."""

    def __init__(self, calls: ctypes.CDLL, method: Method, k: int, state: State, world_size: int) -> None:
        self.momentum = state.momentum
        if method.feedback.momentum and self.momentum is None:
            self.momentum = np.zeros(state.residual.size, np.float32)
        self._key = (method, k, state.residual, self.momentum, world_size)
        feedback, quantizer, size = method.feedback, method.quantizer, state.residual.size
        method_id = wire.METHOD_IDS.get(method.name, 0)
        self._format = library.Format(size, k, method_id, quantizer.wire_id, quantizer.bits)
        self.format_address = ctypes.addressof(self._format)
        self.payload_bytes: int = calls.hgc_payload_bytes(self.format_address)
        self.step = library.Step(
            momentum=feedback.momentum,
            nesterov=feedback.nesterov,
            masking=feedback.masking and feedback.momentum > 0,
            keep=feedback.keep,
            clip=feedback.clip or 0.0,
            sqrt_world=math.sqrt(world_size),
            residual=_address(state.residual),
        )
        self.step_address = ctypes.addressof(self.step)
        self.masking = feedback.masking and feedback.momentum > 0
        if feedback.momentum and self.momentum is not None:
            self.step.velocity = _address(self.momentum)

    def fits(self, method: Method, k: int, state: State, world_size: int) -> bool:
        was = self._key
        return (
            was[0] is method
            and was[1] == k
            and was[2] is state.residual
            and was[3] is state.momentum
            and was[4] == world_size
        )


class NativeKernels:
    """See `interface.Kernels`.

    Args:
        threads: at most so many for one tensor, and no more than are worth their start.
        path: "avx512", "avx2" or "portable"; by default the best that the machine has.
        grain: how many entries are worth a thread.

    Attributes:
        encodes, rescans: how many tensors were encoded, and how many further passes over one were needed
            because the threshold was guessed too high.
    """

    def __init__(self, threads: int = 1, path: str | None = None, grain: int = THREAD_GRAIN) -> None:
        self._calls = library.load()
        self.threads = check.whole("threads", threads, 1)
        names = self._calls.hgc_paths().decode().split(",")
        if path is not None and path not in names:
            raise ValueError(f"path must be one that this machine can run, {', '.join(names)}; got {path!r}")
        self.path = path or names[0]
        self._path = names.index(self.path)
        self._grain = check.whole("grain", grain, 1)
        self._reference = ReferenceKernels()
        self.encodes = self.rescans = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return NativeKernels, (self.threads, self.path, self._grain)

    @property
    def description(self) -> str:
        again = f", {self.rescans} second passes in {self.encodes} encodes" if self.encodes else ""
        return f"cpu ({self.path}, at most {self.threads} threads{again})"

    def encode(
        self,
        method: Method,
        k: int,
        state: State,
        gradient: NDArray[Any],
        decay: Decay | None,
        world_size: int,
    ) -> Sent | None:
        plan: _Plan | None = state.plan
        if plan is None or not plan.fits(method, k, state, world_size):
            if method.selector.kind != "top_k" or method.quantizer.kind not in _QUANTIZERS:
                return self._reference.encode(method, k, state, gradient, decay, world_size)
            plan = _Plan(self._calls, method, k, state, world_size)
            plan.step.path, plan.step.threads = self._path, self._threads(state.residual.size)
        step = plan.step
        gradient, step.gradient = _readable(gradient)
        step.gradient_dtype = _DTYPES.get(gradient.dtype, _BFLOAT16)
        if decay is None:
            step.weight = None
        else:
            weight, step.weight = _readable(decay.weight)
            step.weight_dtype = _DTYPES.get(weight.dtype, _BFLOAT16)
            step.weight_decay = decay.factor
        masked = _NOTHING
        if plan.masking:
            masked = np.empty(k, np.float32)
            step.masked = _address(masked)
        payload = np.empty(plan.payload_bytes, np.uint8)
        status = self._calls.hgc_encode(plan.format_address, plan.step_address, _address(payload))
        if status == library.NON_FINITE:
            return None
        _check(status)
        state.momentum, state.plan = plan.momentum, plan
        self.encodes += 1
        self.rescans += step.scans - 1
        return Sent(payload, step.clip_factor, masked[: step.sent] if plan.masking else masked)

    def decode_sum(self, payloads: Bytes, count: int, out: NDArray[Any], factor: float) -> None:
        flat = np.ascontiguousarray(payloads)
        status = self._calls.hgc_decode_sum(
            _address(flat),
            flat.size,
            count,
            out.size,
            factor,
            _address(out),
            _DTYPES.get(out.dtype, _BFLOAT16),
            self._path,
            self._threads(out.size),
        )
        if status == library.DAMAGED:
            self._reference.decode_sum(payloads, count, out, factor)  # says what is wrong
            raise AssertionError("the kernels disagree about a payload")
        _check(status)

    def pack_codes(self, codes: NDArray[np.uint8], bits_: int) -> Bytes:
        check.whole("bits", bits_, 1, 8)
        codes = np.ascontiguousarray(codes, np.uint8)
        packed = np.empty(bits.packed_bytes(codes.size, bits_), np.uint8)
        threads = self._threads(codes.size)
        _check(self._calls.hgc_pack_codes(_address(codes), codes.size, bits_, _address(packed), threads))
        return packed

    def add_codes(
        self, packed: Bytes, bits_: int, levels: Floats, scales: Floats, bucket: int, out: Floats
    ) -> None:
        bucket = check_codes(packed, bits_, levels, scales, bucket, out)
        _check(
            self._calls.hgc_add_codes(
                _address(packed),
                out.size,
                bits_,
                _address(levels),
                _address(scales),
                bucket,
                _address(out),
                self._path,
                self._threads(out.size),
            )
        )

    def _threads(self, size: int) -> int:
        return min(self.threads, 1 + size // self._grain)


def _address(array: NDArray[Any]) -> int:
    try:
        return ctypes.addressof(_Memory.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # not writable, or of no format that buffers know; twice as slow
        return int(array.__array_interface__["data"][0])


def _readable(array: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """The array, or a copy where it is not contiguous or not aligned, and its address."""
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    address = _address(array)
    if address % array.itemsize:
        array = array.copy()
        address = _address(array)
    return array, address


def _check(status: int) -> None:
    if status == library.NO_MEMORY:
        raise MemoryError("the native kernels could not get scratch memory")
    if status:
        raise AssertionError(f"the native kernels returned {status}")
