"""How the native library is called: which path, how many threads, and where arrays lie."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ..core import check
from ..core.block import Block, Entries
from . import library

THREAD_GRAIN = 1 << 18  # entries that are worth a thread of their own
_Memory = ctypes.c_char * 0


class Native:
    """The library, and how its calls run.

    Args:
        threads: at most so many for one tensor, and no more than are worth their start.
        path: "avx512", "avx2" or "portable"; by default the best that the machine has.
        grain: how many entries are worth a thread.
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

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.threads, self._asked, self._grain)

    def _threads(self, size: int) -> int:
        return min(self.threads, max(1, size // self._grain))


def address(array: Entries) -> int:
    if isinstance(array, Block):
        return array.address
    try:
        return ctypes.addressof(_Memory.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # not writable, or of no format that buffers know; twice as slow
        return int(array.__array_interface__["data"][0])


def readable(array: Entries) -> tuple[Entries, int]:
    """The array, or a copy where it is not contiguous or not aligned, and its address."""
    if isinstance(array, Block):
        return array, array.address
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    at = address(array)
    if at % array.itemsize:
        array = array.copy()
        at = address(array)
    return array, at


def expect_ok(status: int) -> None:
    if status == library.NO_MEMORY:
        raise MemoryError("the native kernels could not get scratch memory")
    if status:
        raise AssertionError(f"the native kernels returned {status}")
