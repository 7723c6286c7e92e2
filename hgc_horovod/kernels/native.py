"""The kernels in C++ (`csrc/`), called through ctypes, which releases the interpreter's lock."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
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
_FLOAT32, _FLOAT16, _BFLOAT16 = range(3)
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
        ("scans", c_int32),
        ("path", c_int32),
        ("threads", c_int32),
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
        feedback, quantizer, size = method.feedback, method.quantizer, state.residual.size
        if method.selector.kind != "top_k":
            return self._reference.encode(method, k, state, gradient, decay, world_size)
        momentum = state.momentum
        if feedback.momentum and momentum is None:
            momentum = np.zeros(size, np.float32)
        masking = feedback.masking and feedback.momentum > 0
        masked = np.empty(k if masking else 0, np.float32)
        gradient = np.ascontiguousarray(gradient)
        step = _Step(
            gradient=_address(gradient),
            gradient_dtype=_dtype(gradient),
            momentum=feedback.momentum,
            nesterov=feedback.nesterov,
            masking=masking,
            keep=feedback.keep,
            clip=feedback.clip or 0.0,
            sqrt_world=math.sqrt(world_size),
            residual=_address(state.residual),
            path=self._path,
            threads=self._threads(size),
        )
        if decay is not None:
            weight = np.ascontiguousarray(decay.weight)
            step.weight, step.weight_dtype, step.weight_decay = _address(weight), _dtype(weight), decay.factor
        if feedback.momentum and momentum is not None:
            step.velocity, step.masked = _address(momentum), _address(masked)
        method_id = wire.METHOD_IDS.get(method.name, 0)
        layout = _Format(size, k, method_id, quantizer.wire_id, quantizer.bits)
        payload = np.empty(self._library.hgc_payload_bytes(byref(layout)), np.uint8)
        status = self._library.hgc_encode(byref(layout), byref(step), _address(payload))
        if status == _NON_FINITE:
            return None
        _check(status)
        self.encodes += 1
        self.rescans += step.scans - 1
        state.momentum = momentum
        return Sent(payload, np.float32(step.clip_factor), masked[: step.sent])

    def decode_sum(self, buffers: Sequence[Bytes], count: int, out: NDArray[Any], factor: float) -> None:
        for buffer in buffers:
            wire.check_buffer(buffer)
        flat = [np.ascontiguousarray(buffer) for buffer in buffers]
        status = self._library.hgc_decode_sum(
            (c_void_p * len(flat))(*[_address(buffer) for buffer in flat]),
            (c_int64 * len(flat))(*[buffer.size for buffer in flat]),
            len(flat),
            count,
            out.size,
            factor,
            _address(out),
            _dtype(out),
            self._path,
            self._threads(out.size),
        )
        if status == _DAMAGED:
            self._reference.decode_sum(buffers, count, out, factor)  # says what is wrong
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
        check_codes(packed, bits_, levels, scales, bucket, out)
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
    """The library that `setup.py` built beside this file, if it did."""
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
    library.hgc_payload_bytes.argtypes = (POINTER(_Format),)
    library.hgc_encode.argtypes = (POINTER(_Format), POINTER(_Step), c_void_p)
    library.hgc_decode_sum.argtypes = (
        *(c_void_p, c_void_p, c_int32, c_int32, c_int64, c_float, c_void_p, c_int32, c_int32, c_int32),
    )
    library.hgc_pack_codes.argtypes = (c_void_p, c_int64, c_int32, c_void_p, c_int32)
    library.hgc_add_codes.argtypes = (
        *(c_void_p, c_int64, c_int32, c_void_p, c_void_p, c_int64, c_void_p, c_int32, c_int32),
    )
    return library


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _dtype(array: NDArray[Any]) -> int:
    if array.dtype == np.float32:
        return _FLOAT32
    return _FLOAT16 if array.dtype == np.float16 else _BFLOAT16


def _check(status: int) -> None:
    if status == _NO_MEMORY:
        raise MemoryError("the native kernels could not get scratch memory or a thread")
    if status != _OK:
        raise AssertionError(f"the native kernels returned {status}")
