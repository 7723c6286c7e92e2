"""NumPy arrays of the dtypes that gradients have, and the dtypes that MPI can add."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..core import floats

Array = NDArray[Any]
_DTYPES = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))


def gradient(name: str, values: ArrayLike, shape: tuple[int, ...] | int) -> Array:
    """The values as an array of this shape, or, where that is a number, of so many entries; ValueError where
    they are none of floats."""
    array: Array = np.asarray(values)
    if not (array.dtype in _DTYPES or floats.is_bfloat16(array.dtype)):
        raise ValueError(
            f"the gradient of {name!r} must be float16, bfloat16, float32 or float64; got {array.dtype}"
        )
    fits = array.size == shape if isinstance(shape, int) else array.shape == shape
    if not fits:
        wanted = f"have {shape} entries" if isinstance(shape, int) else f"be of shape {shape}"
        raise ValueError(f"the gradient of {name!r} must {wanted}; got {array.shape}")
    return array


def result(name: str, out: Array | None, like: Array) -> Array:
    """Where a result of this shape and dtype goes: `out`, or a new array."""
    if out is None:
        return np.empty(like.shape, like.dtype)
    if not (
        isinstance(out, np.ndarray)
        and (out.shape, out.dtype) == (like.shape, like.dtype)
        and out.flags.writeable
    ):
        raise ValueError(
            f"out of {name!r} must be a {like.dtype} array of shape {like.shape} and not read-only; "
            f"got {out!r:.60}"
        )
    return out


def wire_dtype(dtype: np.dtype[Any], fp16: bool) -> np.dtype[Any]:
    """What is summed in place of this dtype: MPI knows no half precision, so float32 is the smallest."""
    return np.dtype(np.float64 if dtype == np.float64 and not fp16 else np.float32)


def widen(array: Array, dtype: np.dtype[Any]) -> Array:
    """The values, flat and in C order, in a wire dtype."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype == np.float64:
        return flat
    with np.errstate(over="ignore"):  # what overflows becomes an infinity, and is found as one
        return floats.widen(flat)


def write(values: Array, out: Array) -> None:
    """Write values (n,) to an array of n entries of any gradient's dtype, rounded to nearest."""
    flat = out.reshape(-1) if out.flags.c_contiguous else np.empty(out.size, out.dtype)
    if floats.is_bfloat16(out.dtype):
        with np.errstate(over="ignore"):
            floats.narrow(values.astype(np.float32, copy=False), flat)
    else:
        with np.errstate(over="ignore"):
            flat[:] = values
    if not out.flags.c_contiguous:
        out[...] = flat.reshape(out.shape)


def size_of(shape: tuple[int, ...] | int) -> int:
    return shape if isinstance(shape, int) else math.prod(shape)
