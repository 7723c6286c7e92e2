"""The shared library that `csrc/` is built into, as ctypes sees it."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import c_char_p, c_double, c_float, c_int32, c_int64, c_uint32, c_void_p
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

VERSION = 3  # HGC_VERSION of csrc/hgc.h
OK, NON_FINITE, DAMAGED, NO_MEMORY, DWARFED = range(5)


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
        ("multiplier", c_float),
        ("factor", c_double),
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
        ("guard", c_int32),
        ("path", c_int32),
        ("threads", c_int32),
    )


def find() -> Path | None:
    """The library that `setup.py` built beside this file, if it did; HGC_LIBRARY names another build."""
    other = os.environ.get("HGC_LIBRARY")
    if other:
        return Path(other)
    path = Path(__file__).with_name(f"_hgc{EXTENSION_SUFFIXES[0]}")
    return path if path.exists() else None


@functools.cache
def load() -> ctypes.CDLL:
    """The library with its calls declared. ValueError where it is not there, or cannot be used."""
    path = find()
    if path is None:
        raise ValueError(
            "the native kernels were not built with this installation; install a C++17 compiler and "
            'hgc-horovod again, or use kernels.get("reference")'
        )
    try:
        library = ctypes.CDLL(str(path))
        version = library.hgc_version()
    except (OSError, AttributeError) as error:
        raise ValueError(f"the native kernels cannot be loaded: {error}") from error
    if version != VERSION:
        raise ValueError(
            f"{path} has version {version} of the kernels' interface, and {VERSION} is needed; install "
            "hgc-horovod again"
        )
    library.hgc_paths.restype = c_char_p
    library.hgc_payload_bytes.restype = c_int64
    library.hgc_payload_bytes.argtypes = (c_void_p,)
    library.hgc_encode.argtypes = (c_void_p, c_void_p, c_void_p)
    library.hgc_encode_nothing.argtypes = (c_void_p, c_void_p)
    library.hgc_encode_nothing.restype = None
    library.hgc_undo.argtypes = (c_void_p, c_int64, c_int64, c_void_p)
    library.hgc_decode_sum.argtypes = (
        *(c_void_p, c_int64, c_int64, c_int64, c_float, c_void_p, c_int32, c_int32, c_int32),
    )
    library.hgc_pack_codes.argtypes = (c_void_p, c_int64, c_int32, c_void_p, c_int32)
    library.hgc_add_codes.argtypes = (
        *(c_void_p, c_int64, c_int32, c_void_p, c_void_p, c_int64, c_void_p, c_int32, c_int32),
    )
    return library
