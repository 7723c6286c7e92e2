"""Floating-point arrays of other types than float32: read exactly, written rounded to nearest, ties to even.

NumPy has no bfloat16. Here an array of `BFLOAT16`, a structured dtype of one 16-bit word, is one; arrays of a
registered dtype of that name (ml_dtypes, TensorFlow's) are taken as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .block import Block, Entries
from .types import Floats

BFLOAT16 = np.dtype([("bfloat16", "<u2")], align=True)
_FLOATS = (np.dtype(np.float32), np.dtype(np.float16))


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of this dtype are gradients that the codec takes."""
    return dtype.kind == "f" or is_bfloat16(dtype)


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "V" and (dtype == BFLOAT16 or dtype.name == "bfloat16")


def is_taken(dtype: np.dtype[Any]) -> bool:
    """Whether kernels read and write this dtype as it is."""
    return dtype in _FLOATS or is_bfloat16(dtype)


def taken(what: str, values: ArrayLike | Block, size: int) -> Entries:
    """The values as a block or an array (size,) of a dtype that `is_taken`. ValueError, which calls them
    `what`, where they have another size or no floating dtype."""
    if isinstance(values, Block) and values.size == size:
        return values
    array: NDArray[Any] = np.asarray(values)
    if array.dtype in _FLOATS and array.shape == (size,):  # by far the most frequent
        return array
    if array.shape != (size,) or not is_float(array.dtype):
        raise ValueError(f"{what} must be a float array of shape ({size},); got {array.dtype}, {array.shape}")
    if is_bfloat16(array.dtype):
        return array
    with np.errstate(over="ignore"):  # what overflows becomes an infinity, and is refused as one
        return array.astype(np.float32, copy=False)


def widen(array: NDArray[Any]) -> Floats:
    """The values as float32: the array itself where it is that."""
    if is_bfloat16(array.dtype):
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32, copy=False)


def narrow(values: Floats, out: NDArray[Any]) -> None:
    """Write float32 values into an array of float32, float16 or bfloat16, in which every NaN is 7FC0."""
    if is_bfloat16(out.dtype):
        word = values.view(np.uint32).astype(np.uint64)
        rounded = (word + 0x7FFF + (word >> 16 & 1)) >> 16
        out.view(np.uint16)[:] = np.where(np.isnan(values), 0x7FC0, rounded)
    else:
        with np.errstate(over="ignore"):
            out[:] = values
