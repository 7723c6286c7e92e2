"""The arguments that every attachment to Horovod takes."""

from __future__ import annotations

from typing import Any

from .core import check
from .core.method import Method


def checked(hvd: Any, method: Method, seed: int, process_set: Any, name: str | None) -> Any:
    """The process set, or Horovod's global one in place of None. ValueError where an argument is wrong.

    `hvd` is Horovod's module for the framework.
    """
    if not hvd.is_initialized():
        raise ValueError("call hvd.init() before a compressor is created")
    if not isinstance(method, Method):
        raise ValueError(f"method must be a hgc_horovod.Method; got {type(method).__name__}")
    check.whole("seed", seed, 0)
    process_set = hvd.global_process_set if process_set is None else process_set
    if not isinstance(process_set, hvd.ProcessSet):
        raise ValueError(f"process_set must be a hvd.ProcessSet; got {process_set!r}")
    if name is not None and not isinstance(name, str):
        raise ValueError(f"name must be a string; got {name!r}")
    return process_set
