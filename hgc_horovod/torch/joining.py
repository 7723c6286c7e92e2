"""`hvd.join()` and compression exclude each other, which a user should hear of before the job hangs.

The ranks that go on gather payloads, which Horovod cannot do without the joined ones: its background
thread fails there, and the others may wait for ever (seen with a warm response cache over MPI). So while this
process has a compressor, `hvd.join()` raises an error.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd

compressors: weakref.WeakSet[Any] = weakref.WeakSet()


def guarded(join: Callable[..., Any]) -> Callable[..., Any]:
    """Horovod's function, unless a compressor is there."""

    @functools.wraps(join)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        if compressors:
            gc.collect()  # one that nobody holds any more is not in the way
        if compressors and hvd.size() > 1:
            raise RuntimeError(
                "hvd.join() cannot be used with a gradient compressor: the ranks that go on would wait for "
                "this one. Give every rank the same number of batches, for example with drop_last=True or "
                "a DistributedSampler, and end with hvd.barrier()"
            )
        return join(*arguments, **keywords)

    return checked


hvd.join = guarded(hvd.join)
