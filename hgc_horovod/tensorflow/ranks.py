"""Which rank of a process set this is, and how many there are."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf
from horovod.tensorflow.mpi_ops import rank_op, size_op


def may_change() -> bool:
    """Whether this is an elastic job."""
    return os.environ.get("HOROVOD_ELASTIC") == "1"


def of(process_set: Any) -> tuple[Any, Any]:
    """Rank and number of ranks as int32 (): numbers, or in an elastic job, where they change, operations."""
    if may_change() and process_set.process_set_id == 0:
        return rank_op(), size_op(process_set_id=0)
    if not process_set.included():  # the graph is traced here, too, and reduces nothing
        return tf.constant(-1, tf.int32), tf.constant(0, tf.int32)
    return tf.constant(process_set.rank(), tf.int32), tf.constant(process_set.size(), tf.int32)
