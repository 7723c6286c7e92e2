"""The kernels in C++ (`csrc/`), called through ctypes, which releases the interpreter's lock."""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core import check, wire
from ..core.bits import packed_bytes
from ..core.block import Block, Entries
from ..core.feedback import Feedback
from ..core.method import Method
from ..core.quantize import BFloat16, Float32, Geometric, SignMean
from ..core.select import TopK
from ..core.types import Bytes, Floats
from . import library
from .interface import Decay, Kept, Sent, State, check_codes
from .reference import ReferenceKernels

THREAD_GRAIN = 1 << 18  # entries that are worth a thread of their own
_Memory = ctypes.c_char * 0
_BFLOAT16 = 2
_DTYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1}
_KNOWN = {TopK, Float32, BFloat16, SignMean, Geometric, Feedback}  # the parts that are in the library
_NOTHING = np.zeros(0, np.float32)


class _Key(NamedTuple):
    """What a plan was made for."""

    kernels: NativeKernels
    method: Method
    k: int
    world_size: int
    residual: Floats
    momentum: Floats | None


class _Plan:
    """The part of a call that stays the same from step to step, so that small tensors are not dominated by
    putting it together. `before`: the plan of the last step, if there was one."""

    def __init__(self, key: _Key, calls: ctypes.CDLL, before: _Plan | None) -> None:
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
        self.step = library.Step(
            momentum=feedback.momentum,
            nesterov=feedback.nesterov,
            masking=self.masking,
            keep=feedback.keep,
            clip=feedback.clip or 0.0,
            sqrt_world=math.sqrt(key.world_size),
            residual=_address(key.residual),
        )
        self.step_address = ctypes.addressof(self.step)
        if feedback.momentum and self.momentum is not None:
            self.step.velocity = _address(self.momentum)
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
            self._payload, self.payload_address = out, _address(out)
        return out


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
        self._asked = path  # on another machine the best may be another one
        self.path = path or names[0]
        self._path = names.index(self.path)
        self._grain = check.whole("grain", grain, 1)
        self._reference = ReferenceKernels()
        self.encodes = self.rescans = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return NativeKernels, (self.threads, self._asked, self._grain)

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
    ) -> Sent | None:
        plan: _Plan | None = state.plan
        if plan is None or not plan.fits(self, method, k, world_size, state):
            parts = (type(method.selector), type(method.quantizer), type(method.feedback))
            if not _KNOWN.issuperset(parts):
                return self._reference.encode(method, k, state, gradient, decay, world_size, factor, out)
            key = _Key(self, method, k, world_size, state.residual, state.momentum)
            plan = _Plan(key, self._calls, plan)
            plan.step.path, plan.step.threads = self._path, self._threads(state.residual.size)
        step = plan.step
        gradient, step.gradient = _readable(gradient)
        step.gradient_dtype = _DTYPES.get(gradient.dtype, _BFLOAT16)
        step.factor = factor
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
        _check(status)
        state.momentum, state.plan = plan.momentum, plan
        self.encodes += 1
        self.rescans += step.scans - 1
        return Sent(payload, step.multiplier, masked[: step.sent] if plan.masking else masked, before)

    def decode_sum(self, payloads: Bytes | Block, count: int, out: Entries, factor: float) -> None:
        flat, start = _readable(payloads)
        status = self._calls.hgc_decode_sum(
            start,
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

    def pack_codes(self, codes: NDArray[np.uint8], bits: int) -> Bytes:
        check.whole("bits", bits, 1, 8)
        codes = np.ascontiguousarray(codes, np.uint8)
        packed = np.empty(packed_bytes(codes.size, bits), np.uint8)
        threads = self._threads(codes.size)
        _check(self._calls.hgc_pack_codes(_address(codes), codes.size, bits, _address(packed), threads))
        return packed

    def add_codes(
        self, packed: Bytes, bits: int, levels: Floats, scales: Floats, bucket: int, out: Floats
    ) -> None:
        bucket = check_codes(packed, bits, levels, scales, bucket, out)
        _check(
            self._calls.hgc_add_codes(
                _address(packed),
                out.size,
                bits,
                _address(levels),
                _address(scales),
                bucket,
                _address(out),
                self._path,
                self._threads(out.size),
            )
        )

    def _threads(self, size: int) -> int:
        return min(self.threads, max(1, size // self._grain))


def _address(array: Entries) -> int:
    if isinstance(array, Block):
        return array.address
    try:
        return ctypes.addressof(_Memory.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # not writable, or of no format that buffers know; twice as slow
        return int(array.__array_interface__["data"][0])


def _readable(array: Entries) -> tuple[Entries, int]:
    """The array, or a copy where it is not contiguous or not aligned, and its address."""
    if isinstance(array, Block):
        return array, array.address
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
