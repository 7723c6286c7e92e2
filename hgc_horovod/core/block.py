"""A tensor's memory, as a framework hands it to the codec without a NumPy array in between."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Block:
    """`size` entries of `dtype` side by side at `address`, aligned to their type; `owner` keeps them alive.

    To make one costs less than a view as an array does, which counts where a tensor is small.
    `numpy.asarray(block)` is that view.
    """

    __slots__ = ("address", "dtype", "owner", "size")

    def __init__(self, address: int, size: int, dtype: np.dtype[Any], owner: Any) -> None:
        self.address = address
        self.size = size
        self.dtype = dtype
        self.owner = owner

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        memory = (ctypes.c_char * (self.size * self.dtype.itemsize)).from_address(self.address)
        memory.owner = self.owner  # type: ignore[attr-defined]
        view: NDArray[Any] = np.ndarray((self.size,), self.dtype, memoryview(memory))
        return view if dtype is None and not copy else view.astype(dtype or self.dtype)


Entries = NDArray[Any] | Block
