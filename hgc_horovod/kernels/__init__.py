"""Interchangeable kernels: the NumPy reference, and the native ones that give the same bytes much faster."""

from __future__ import annotations

import functools
import logging
import os

from . import library
from .interface import Decay, Kernels, Sent, State
from .native import NativeKernels
from .reference import ReferenceKernels

__all__ = ["Decay", "Kernels", "Sent", "State", "get"]
log = logging.getLogger("hgc_horovod")


def get(name: str = "auto", threads: int = 1) -> Kernels:
    """The kernels of this name.

    Args:
        name: "cpu" for the native ones, "reference" for NumPy's, "auto" for the native ones where they were
            built and NumPy's elsewhere. The environment variable HGC_KERNELS decides what "auto" is.
        threads: the most threads that native kernels use for one tensor.
    """
    chosen = os.environ.get("HGC_KERNELS", "auto") if name == "auto" else name
    if chosen == "reference" or (chosen == "auto" and library.find() is None):
        if chosen == "auto":
            _notice()
        return ReferenceKernels()
    if chosen in ("auto", "cpu"):
        return NativeKernels(threads)
    origin = "HGC_KERNELS" if name == "auto" else "name"
    raise ValueError(f'{origin} must be "auto", "reference" or "cpu"; got {chosen!r}')


@functools.cache
def _notice() -> None:
    log.warning(
        "hgc_horovod: the native kernels were not built, for want of a C++17 compiler; NumPy's give the same "
        "bytes but take many times longer. Install a compiler and hgc-horovod again, or set "
        "HGC_KERNELS=reference to be rid of this notice."
    )
