"""What was sent, counted from the tensors' steps: each step's bytes follow from the method."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ..report import Report, Traffic
from .slots import Slot

_CONTROL = 16  # bytes that Horovod reduces in place of a compressed tensor


def report(title: str, slots: Iterable[Slot]) -> Report:
    rows = [_row(slot) for slot in slots]
    return Report.of(title, [row for row in rows if row.steps], "cpu, inside TensorFlow's graph")


def _row(slot: Slot) -> Traffic:
    row = Traffic(slot.key)
    steps = int(slot.step.numpy())
    dense = min(steps, slot.dense_until) if slot.compressed else steps
    itemsize = 2 if slot.method.dense.fp16 else slot.itemsize
    row.steps, row.compressed_steps = steps, steps - dense
    row.dense_bytes = 4 * slot.n * steps
    row.compressed_dense_bytes = 4 * slot.n * (steps - dense)
    bounds = [dense, *(step for step in slot.stages if dense < step < steps), steps]
    for begin, end in itertools.pairwise(bounds):
        row.payload_bytes += (end - begin) * (slot.method.payload_bytes(slot.n, begin) + _CONTROL)
    row.sent_bytes = row.payload_bytes + dense * slot.n * itemsize
    return row
