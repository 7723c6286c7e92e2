"""What was sent: what Python has counted where it does a tensor's steps, and else from the tensors' steps, as
each step's bytes follow from the method."""

from __future__ import annotations

import itertools
from dataclasses import replace

from ..report import Report, Traffic
from . import exchange
from .slots import DIGEST, Slot, Slots

_CONTROL = 4  # numbers that Horovod reduces in place of a compressed tensor: csrc/tensorflow/control.h


def report(title: str, slots: Slots) -> Report:
    first = slots.first_compressed
    rows = [_row(slot, _CONTROL + (DIGEST if slot is first else 0)) for slot in slots.by_name.values()]
    described = {
        "cpu, inside TensorFlow's graph"
        if slot.python is None
        else f"{slot.python.shared.kernels.description}, called from TensorFlow's graph"
        for slot in slots.by_name.values()
        if slot.compressed
    }
    return Report.of(title, [row for row in rows if row.steps], "; ".join(sorted(described)))


def _row(slot: Slot, numbers: int) -> Traffic:
    if slot.python is not None:
        return _counted(slot, slot.python.traffic, numbers)
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


def _counted(slot: Slot, counted: Traffic, numbers: int) -> Traffic:
    """What Python has counted of it, and what TensorFlow's graph has added."""
    control = numbers * exchange.to_wire_dtype(slot.dtype, False).size * counted.compressed_steps
    itemsize = exchange.to_wire_dtype(slot.dtype, slot.method.dense.fp16).size
    dense = (counted.steps - counted.compressed_steps) * slot.n * itemsize
    return replace(
        counted,
        payload_bytes=counted.payload_bytes + control,
        sent_bytes=counted.sent_bytes + control + dense,
    )
