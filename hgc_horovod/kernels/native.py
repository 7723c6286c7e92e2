"""The kernels in C++ (`csrc/`), called through ctypes, which releases the interpreter's lock."""

from __future__ import annotations

import ctypes
import functools
import math
import os
from ctypes import c_char_p, c_double, c_float, c_int32, c_int64, c_uint32, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import bits, check, wire
from ..core.method import Method
from ..core.types import Bytes, Floats
from .interface import Decay, Sent, State, check_codes
from .reference import ReferenceKernels

THREAD_GRAIN = 1 << 18  # entries that are worth a thread of their own
_Memory = ctypes.c_char * 0
_BFLOAT16 = 2
_DTYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1}
_NOTHING = np.zeros(0, np.float32)
_OK, _NON_FINITE, _DAMAGED, _NO_MEMORY = range(4)


class _Format(ctypes.Structure):
    """hgc_format of csrc/hgc.h."""

    _fields_ = (
        ("n", c_int64),
        ("k", c_int64),
        ("method", c_int32),
        ("value_kind", c_int32),
        ("bits", c_int32),
    )


class _Step(ctypes.Structure):
    """hgc_step of csrc/hgc.h."""

    _fields_ = (
        ("gradient", c_void_p),
        ("weight", c_void_p),
        ("gradient_dtype", c_int32),
        ("weight_dtype", c_int32),
        ("weight_decay", c_float),
        ("momentum", c_float),
        ("nesterov", c_int32),
        ("masking", c_int32),
        ("keep", c_int32),
        ("clip_factor", c_float),
        ("clip", c_double),
        ("sqrt_world", c_double),
        ("residual", c_void_p),
        ("velocity", c_void_p),
        ("masked", c_void_p),
        ("sent", c_int64),
        ("hint", c_float),
        ("caution", c_float),
        ("turn", c_uint32),
        ("scans", c_int32),
        ("path", c_int32),
        ("threads", c_int32),
    )


class _Plan:
    """The part of a call that stays the same from step to step, so that small tensors are not dominated by
    putting it together."""

    def __init__(self, library: ctypes.CDLL, method: Method, k: int, state: State, world_size: int) -> None:
        self.momentum = state.momentum
        if method.feedback.momentum and self.momentum is None:
            self.momentum = np.zeros(state.residual.size, np.float32)
        self._key = (method, k, state.residual, self.momentum, world_size)
        feedback, quantizer, size = method.feedback, method.quantizer, state.residual.size
        method_id = wire.METHOD_IDS.get(method.name, 0)
        self._format = _Format(size, k, method_id, quantizer.wire_id, quantizer.bits)
        self.format_address = ctypes.addressof(self._format)
        self.payload_bytes: int = library.hgc_payload_bytes(self.format_address)
        self.step = _Step(
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
        self._library = _load()
        self.threads = check.whole("threads", threads, 1)
        names = self._library.hgc_paths().decode().split(",")
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
            if method.selector.kind != "top_k":
                return self._reference.encode(method, k, state, gradient, decay, world_size)
            plan = _Plan(self._library, method, k, state, world_size)
            plan.step.path, plan.step.threads = self._path, self._threads(state.residual.size)
        step = plan.step
        gradient, step.gradient = _readable(gradient)
        step.gradient_dtype = _DTYPES.get(gradient.dtype, _BFLOAT16)
        step.weight = None
        if decay is not None:
            weight, step.weight = _readable(decay.weight)
            step.weight_dtype = _DTYPES.get(weight.dtype, _BFLOAT16)
            step.weight_decay = decay.factor
        masked = _NOTHING
        if plan.masking:
            masked = np.empty(k, np.float32)
            step.masked = _address(masked)
        payload = np.empty(plan.payload_bytes, np.uint8)
        status = self._library.hgc_encode(plan.format_address, plan.step_address, _address(payload))
        if status == _NON_FINITE:
            return None
        _check(status)
        state.momentum, state.plan = plan.momentum, plan
        self.encodes += 1
        self.rescans += step.scans - 1
        return Sent(payload, np.float32(step.clip_factor), masked[: step.sent] if plan.masking else masked)

    def decode_sum(self, payloads: Bytes, count: int, out: NDArray[Any], factor: float) -> None:
        flat = np.ascontiguousarray(payloads)
        status = self._library.hgc_decode_sum(
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
        if status == _DAMAGED:
            self._reference.decode_sum(payloads, count, out, factor)  # says what is wrong
            raise AssertionError("the kernels disagree about a payload")
        _check(status)

    def pack_codes(self, codes: NDArray[np.uint8], bits_: int) -> Bytes:
        check.whole("bits", bits_, 1, 8)
        codes = np.ascontiguousarray(codes, np.uint8)
        packed = np.empty(bits.packed_bytes(codes.size, bits_), np.uint8)
        threads = self._threads(codes.size)
        _check(self._library.hgc_pack_codes(_address(codes), codes.size, bits_, _address(packed), threads))
        return packed

    def add_codes(
        self, packed: Bytes, bits_: int, levels: Floats, scales: Floats, bucket: int, out: Floats
    ) -> None:
        bucket = check_codes(packed, bits_, levels, scales, bucket, out)
        _check(
            self._library.hgc_add_codes(
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


def find() -> Path | None:
    """The library that `setup.py` built beside this file, if it did; HGC_LIBRARY names another build."""
    other = os.environ.get("HGC_LIBRARY")
    if other:
        return Path(other)
    return next(iter(sorted(Path(__file__).parent.glob("_hgc*.so"))), None)


@functools.cache
def _load() -> ctypes.CDLL:
    path = find()
    if path is None:
        raise ValueError(
            "the native kernels were not built with this installation; install a C++17 compiler and "
            'hgc-horovod again, or use kernels.get("reference")'
        )
    library = ctypes.CDLL(str(path))
    library.hgc_paths.restype = c_char_p
    library.hgc_payload_bytes.restype = c_int64
    library.hgc_payload_bytes.argtypes = (c_void_p,)
    library.hgc_encode.argtypes = (c_void_p, c_void_p, c_void_p)
    library.hgc_decode_sum.argtypes = (
        *(c_void_p, c_int64, c_int64, c_int64, c_float, c_void_p, c_int32, c_int32, c_int32),
    )
    library.hgc_pack_codes.argtypes = (c_void_p, c_int64, c_int32, c_void_p, c_int32)
    library.hgc_add_codes.argtypes = (
        *(c_void_p, c_int64, c_int32, c_void_p, c_void_p, c_int64, c_void_p, c_int32, c_int32),
    )
    return library


def _address(array: NDArray[Any]) -> int:
    try:
        return ctypes.addressof(_Memory.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # not writable, or of no format that buffers know; twice as slow
        return int(array.__array_interface__["data"][0])


def _readable(array: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """The array, or a copy where it is not contiguous or not aligned, and its address."""
    array = np.ascontiguousarray(array)
    address = _address(array)
    if address % array.itemsize:
        array = array.copy()
        address = _address(array)
    return array, address


def _check(status: int) -> None:
    if status == _NO_MEMORY:
        raise MemoryError("the native kernels could not get scratch memory")
    if status != _OK:
        raise AssertionError(f"the native kernels returned {status}")
