"""The shared library that `csrc/` is built into, as ctypes sees it."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import c_char_p, c_double, c_float, c_int32, c_int64, c_uint32, c_void_p
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

VERSION = 4  # HGC_VERSION of csrc/hgc.h
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


class Draw(ctypes.Structure):
    """hgc_draw of csrc/hgc.h."""

    _fields_ = (("key", c_uint32 * 2), ("step", c_uint32), ("stream", c_uint32), ("rank", c_uint32))


_RUN = (c_int32, c_int32)  # path and threads
_VALUES = (c_void_p, c_int64)  # and how many
_BUCKETS = (c_void_p, c_int64)  # scales, and the entries of each
_CALLS = {
    "hgc_payload_bytes": (c_void_p,),
    "hgc_encode": (c_void_p, c_void_p, c_void_p),
    "hgc_encode_nothing": (c_void_p, c_void_p),
    "hgc_undo": (c_void_p, c_int64, c_int64, c_void_p),
    "hgc_decode_sum": (c_void_p, c_int64, c_int64, c_int64, c_float, c_void_p, c_int32, *_RUN),
    "hgc_accumulate": (c_void_p, c_int64, c_void_p),
    "hgc_pack_codes": (*_VALUES, c_int32, c_void_p, c_int32),
    "hgc_add_codes": (*_VALUES, c_int32, c_void_p, *_BUCKETS, c_void_p, *_RUN),
    "hgc_pack_powers": (*_VALUES, c_void_p, c_int32),
    "hgc_add_powers": (*_VALUES, c_float, c_void_p, *_RUN),
    "hgc_add_outer": (c_void_p, c_void_p, c_int64, c_int64, c_int64, c_float, c_void_p, *_RUN),
    "hgc_draw_words": (c_void_p, c_int64, c_void_p, *_RUN),
    "hgc_bucket_scales": (*_VALUES, c_int64, c_int32, c_void_p, *_RUN),
    "hgc_class_means": (*_VALUES, c_void_p, *_RUN),
    "hgc_sum_below": (*_VALUES, c_float, c_void_p, c_void_p, *_RUN),
    "hgc_moments": (*_VALUES, c_float, c_float, *[c_void_p] * 5, *_RUN),
    "hgc_log_histograms": (*_VALUES, c_int64, c_int32, c_void_p, *_RUN),
    "hgc_signs": (*_VALUES, c_void_p, *_RUN),
    "hgc_round_levels": (*_VALUES, *_BUCKETS, c_int32, c_void_p, c_void_p, *_RUN),
    "hgc_nearest_levels": (*_VALUES, *_BUCKETS, c_void_p, c_int32, c_void_p, *_RUN),
    "hgc_round_powers": (*_VALUES, c_void_p, c_void_p, *_RUN),
    "hgc_mark_at_least": (*_VALUES, *_BUCKETS, c_void_p, c_void_p, *_RUN),
    "hgc_mark_lucky": (*_VALUES, c_float, c_void_p, c_void_p, c_void_p, *_RUN),
    "hgc_positions": (*_VALUES, c_void_p, c_void_p, c_int32),
}


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
    library.hgc_encode_nothing.restype = None
    for name, arguments in _CALLS.items():
        getattr(library, name).argtypes = arguments
    return library
