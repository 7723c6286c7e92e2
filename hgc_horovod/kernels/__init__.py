"""Interchangeable kernels: the NumPy reference, and the native ones that give the same bytes much faster."""

from __future__ import annotations

import functools
import logging
import os

from ..core import check
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
    chosen = (os.environ.get("HGC_KERNELS") or "auto") if name == "auto" else name
    if chosen not in ("auto", "cpu", "reference"):
        origin = "HGC_KERNELS" if name == "auto" else "name"
        raise ValueError(f'{origin} must be "auto", "reference" or "cpu"; got {chosen!r}')
    if chosen == "cpu":
        return NativeKernels(threads)
    if chosen == "auto":
        check.whole("threads", threads, 1)
        try:
            library.load()
            return NativeKernels(threads)
        except ValueError as error:
            _notice(str(error))
    return ReferenceKernels()


@functools.cache
def _notice(reason: str) -> None:
    log.warning(
        "hgc_horovod: %s. NumPy's kernels run instead: they give the same bytes but take many times longer. "
        "HGC_KERNELS=reference silences this notice.",
        reason,
    )
