"""One gradient's way through the graph: encoded and gathered, or reduced as it is, and what remains to be
done to what comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import horovod.tensorflow as hvd
import tensorflow as tf

from . import library, ranks
from .bridge import Bridge
from .slots import Slot

_REDUCED = (tf.float16, tf.float32, tf.float64)  # by Horovod, which knows no bfloat16
_ENCODED = (tf.float16, tf.bfloat16, tf.float32)


class Compressed(NamedTuple):
    """A gradient, also as it was encoded, and what the ranks have sent each other: their payloads, uint8, or
    for methods that average vectors the last mean, float32."""

    slot: Slot
    gradient: Any
    entries: Any
    received: Any
    dense: Any  # whether it is sent as it is in this step, or None where it never is


class Dense(NamedTuple):
    """A gradient that Horovod reduces as it is; without a slot where it is of no floating dtype."""

    slot: Slot | None
    gradient: Any


Context = Compressed | Dense


class Exchange:
    """One compressor's operations.

    Args:
        prefix: of the names of the allgathers.
        loss_scale: returns what this step's gradients were multiplied by.
        bridge: for the slots whose steps are Python's.
    """

    def __init__(
        self, prefix: str, process_set: Any, loss_scale: Callable[[], Any] | None, bridge: Bridge
    ) -> None:
        self._prefix, self._process_set, self._loss_scale = prefix, process_set, loss_scale
        self._bridge = bridge
        self._operations = library.load()

    def start(self, slot: Slot, gradient: Any, digest: list[float]) -> tuple[Any, Context]:
        """What Horovod is to reduce, and the rest for `finish`."""
        fp16 = slot.method.dense.fp16
        if not slot.compressed:
            return _to_wire(gradient, fp16), Dense(slot, gradient)
        entries = tf.cast(gradient, _encoded(gradient.dtype))
        if not slot.dense_until:
            control, received = self._encode(slot, entries, digest)
            return _to_wire(tf.cast(control, gradient.dtype), False), Compressed(
                slot, gradient, entries, received, None
            )

        def encode() -> tuple[Any, Any]:
            control, received = self._encode(slot, entries, digest)
            return _to_wire(tf.cast(control, gradient.dtype), fp16), received

        dense, nothing = slot.step < slot.dense_until, tf.zeros([0], _received(slot))
        wire, received = tf.cond(dense, lambda: (_with_scale(_to_wire(gradient, fp16)), nothing), encode)
        return wire, Compressed(slot, gradient, entries, received, dense)

    def finish(self, reduced: Any, context: Context) -> Any:
        """The reduced gradient, in the shape and dtype of the one that was sent."""
        slot, gradient = context.slot, context.gradient
        if slot is None:
            return reduced
        if isinstance(context, Dense):
            return self._finish_dense(slot, gradient, reduced, 1.0)
        if context.dense is None:
            return self._decode(context, reduced)
        return tf.cond(
            context.dense,
            lambda: self._finish_dense(slot, gradient, reduced[:-1], reduced[-1]),
            lambda: self._decode(context, reduced),
        )

    def undo(self, slot: Slot, gradient: Any) -> Any:
        """The operation that drops the last step of a tensor, in which this gradient was sent."""
        entries = tf.cast(gradient, _encoded(gradient.dtype))
        if slot.python is not None:
            return self._bridge.undo(slot, entries)
        return self._operations.hgc_undo(gradient=entries, **slot.state())

    def _encode(self, slot: Slot, entries: Any, digest: list[float]) -> tuple[Any, Any]:
        if slot.python is not None:
            return self._bridge.encode(slot, entries, self._scale(), digest)
        rank, world = ranks.of(self._process_set)
        payload, control = self._operations.hgc_encode(
            gradient=entries,
            rank=rank,
            world=world,
            loss_scale=self._scale(),
            elastic=ranks.may_change(),
            digest=digest,
            **slot.format(),
            **slot.state(),
        )
        gathered = hvd.allgather(
            payload,
            name=f"{self._prefix}.{slot.wire_name}",
            ignore_name_scope=True,
            process_set=self._process_set,
        )
        return control, gathered

    def _decode(self, context: Compressed, reduced: Any) -> Any:
        slot, control = context.slot, tf.cast(reduced, tf.float32)
        if slot.python is not None:
            result = self._bridge.decode(slot, context.received, context.entries, control, self._scale())
            return tf.cast(result, context.gradient.dtype)
        _, world = ranks.of(self._process_set)
        result = self._operations.hgc_decode(
            gathered=context.received,
            gradient=context.entries,
            world=world,
            loss_scale=self._scale(),
            control=control,
            **slot.state(),
        )
        return tf.cast(result, context.gradient.dtype)

    def _finish_dense(self, slot: Slot, gradient: Any, reduced: Any, scale: Any) -> Any:
        reduced = tf.cast(tf.reshape(reduced, tf.shape(gradient)), gradient.dtype)
        scale = tf.cast(scale, tf.float32)
        if slot.python is not None:
            return self._bridge.finish_dense(slot, reduced, scale, self._scale())
        return self._operations.hgc_dense(
            reduced=reduced,
            scale=scale,
            loss_scale=self._scale(),
            **slot.state(),
        )

    def _scale(self) -> Any:
        return tf.cast(1.0 if self._loss_scale is None else self._loss_scale(), tf.float32)


def _encoded(dtype: Any) -> Any:
    """The dtype in which the operations take a gradient of this one."""
    return dtype if dtype in _ENCODED else tf.float32


def _received(slot: Slot) -> Any:
    """The dtype of what the ranks send each other."""
    return tf.float32 if slot.method.by_allreduce else tf.uint8


def to_wire_dtype(dtype: Any, fp16: bool) -> Any:
    """The dtype in which Horovod reduces a gradient of this one."""
    if fp16:
        return tf.float16
    return dtype if dtype in _REDUCED else tf.float32


def _to_wire(tensor: Any, fp16: bool) -> Any:
    """As Horovod can reduce it."""
    return tf.cast(tensor, to_wire_dtype(tensor.dtype, fp16))


def _with_scale(wire: Any) -> Any:
    """Flat, with a 1 behind it, whose reduced value is the scale of Horovod's op."""
    return tf.concat([tf.reshape(wire, [-1]), tf.ones([1], wire.dtype)], 0)
