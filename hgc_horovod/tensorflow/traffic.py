"""What was sent, counted from the tensors' steps: each step's bytes follow from the method."""

from __future__ import annotations

import itertools

from ..report import Report, Traffic
from . import exchange
from .slots import DIGEST, Slot, Slots

_CONTROL = 4  # numbers that Horovod reduces in place of a compressed tensor: csrc/tensorflow/control.h


def report(title: str, slots: Slots) -> Report:
    first = slots.first_compressed
    rows = [_row(slot, _CONTROL + (DIGEST if slot is first else 0)) for slot in slots.by_name.values()]
    return Report.of(title, [row for row in rows if row.steps], "cpu, inside TensorFlow's graph")


def _row(slot: Slot, numbers: int) -> Traffic:
    row = Traffic(slot.key)
    steps = int(slot.step.numpy())
    dense = min(steps, slot.dense_until) if slot.compressed else steps
    control = numbers * exchange.to_wire_dtype(slot.dtype, False).size
    itemsize = exchange.to_wire_dtype(slot.dtype, slot.method.dense.fp16).size
    row.steps, row.compressed_steps = steps, steps - dense
    row.dense_bytes = 4 * slot.n * steps
    row.compressed_dense_bytes = 4 * slot.n * (steps - dense)
    bounds = [dense, *(step for step in slot.stages if dense < step < steps), steps]
    for begin, end in itertools.pairwise(bounds):
        row.payload_bytes += (end - begin) * (slot.method.payload_bytes(slot.n, begin) + control)
    row.sent_bytes = row.payload_bytes + dense * slot.n * itemsize
    return row
