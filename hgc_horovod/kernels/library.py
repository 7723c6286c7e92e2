"""The shared library that `csrc/` is built into, as ctypes sees it."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import c_char_p, c_double, c_float, c_int32, c_int64, c_uint32, c_void_p
from pathlib import Path

OK, NON_FINITE, DAMAGED, NO_MEMORY = range(4)


class Format(ctypes.Structure):
    """hgc_format of csrc/hgc.h."""

    _fields_ = (
        ("n", c_int64),
        ("k", c_int64),
        ("method", c_int32),
        ("value_kind", c_int32),
        ("bits", c_int32),
    )


class Step(ctypes.Structure):
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


def find() -> Path | None:
    """The library that `setup.py` built beside this file, if it did; HGC_LIBRARY names another build."""
    other = os.environ.get("HGC_LIBRARY")
    if other:
        return Path(other)
    return next(iter(sorted(Path(__file__).parent.glob("_hgc*.so"))), None)


@functools.cache
def load() -> ctypes.CDLL:
    """The library with its calls declared. ValueError where it is not there, or of another version."""
    path = find()
    if path is None:
        raise ValueError(
            "the native kernels were not built with this installation; install a C++17 compiler and "
            'hgc-horovod again, or use kernels.get("reference")'
        )
    library = ctypes.CDLL(str(path))
    library.hgc_step_bytes.restype = c_int64
    if library.hgc_step_bytes() != ctypes.sizeof(Step):
        raise ValueError(f"{path} was built from another version of csrc; install hgc-horovod again")
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
