"""Python's part of a graph: the steps of tensors whose methods the native operations do not know.

The order of a tensor's steps is that of reading and writing its `counts`, a TensorFlow variable, as with the
native operations. Each collective has a name, so that ranks may work on their tensors in different orders.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from . import ranks
from .control import CONTROL
from .kept import Shared
from .slots import Slot
from .steps import Steps


class Bridge:
    """One compressor's.

    Args:
        prefix: of the names of the collectives.
        loss: a variable, what the user has reported last.
    """

    def __init__(self, prefix: str, process_set: Any, shared: Shared, loss: Any) -> None:
        self._prefix, self._process_set, self._shared, self._loss = prefix, process_set, shared, loss

    def encode(self, slot: Slot, entries: Any, scale: Any, digest: list[float]) -> tuple[Any, Any]:
        """What Horovod is to reduce, and what the ranks have sent each other."""
        rank, world = ranks.of(self._process_set)
        given, steps = [entries, rank, world, scale, self._loss.read_value()], _steps(slot)
        if slot.method.by_allreduce:
            vector, control = _call(slot, steps.begin, given, (tf.float32, tf.float32))
            received = self._average(slot, vector, 0)
            for number in range(1, len(slot.method.round_sizes(slot.shape))):
                given = [received, tf.constant(number)]
                vector, control = _call(slot, steps.proceed, given, (tf.float32, tf.float32))
                received = self._average(slot, vector, number)
        else:
            payload, control = _call(slot, steps.encode, given, (tf.uint8, tf.float32))
            received = hvd.allgather(
                tf.ensure_shape(payload, [None]),
                name=f"{self._prefix}.{slot.wire_name}",
                ignore_name_scope=True,
                process_set=self._process_set,
            )
        control = tf.concat([tf.ensure_shape(control, [CONTROL]), tf.constant(digest, tf.float32)], 0)
        return control, received

    def decode(self, slot: Slot, received: Any, entries: Any, control: Any, scale: Any) -> Any:
        """The reduced gradient, of the shape and dtype of `entries`."""
        _, world = ranks.of(self._process_set)
        function = _steps(slot).finish if slot.method.by_allreduce else _steps(slot).decode
        given = [received, entries, control, world, scale]
        (result,) = _call(slot, function, given, (entries.dtype,))
        return tf.ensure_shape(result, slot.shape)

    def finish_dense(self, slot: Slot, reduced: Any, op_scale: Any, scale: Any) -> Any:
        """The update of a gradient that was reduced as it is."""
        (result,) = _call(slot, _steps(slot).finish_dense, [reduced, op_scale, scale], (reduced.dtype,))
        return tf.ensure_shape(result, slot.shape)

    def undo(self, slot: Slot, entries: Any) -> Any:
        """Drops the last step of a tensor, in which these entries were sent; whether there was one."""
        (undone,) = _call(slot, _steps(slot).undo, [entries], (tf.bool,))
        return undone

    def checked(self, tensors: Sequence[Any]) -> list[Any]:
        """These reduced gradients, behind which the step fails where a tensor of it did."""
        given = [one for one in tensors if one is not None]
        with tf.control_dependencies(tf.nest.flatten(given, expand_composites=True)):
            (checked,) = _numpy_function(self._check, [], (tf.bool,))
        with tf.control_dependencies([checked]):
            return [one if one is None else tf.nest.map_structure(tf.identity, one) for one in tensors]

    def _check(self) -> tuple[bool]:
        failures, self._shared.failures = self._shared.failures, []
        if failures:
            raise failures[0]
        return (True,)

    def _average(self, slot: Slot, vector: Any, number: int) -> Any:
        return hvd.allreduce(
            tf.ensure_shape(vector, [None]),
            op=hvd.Average,
            name=f"{self._prefix}.{slot.wire_name}.{number}",
            ignore_name_scope=True,
            process_set=self._process_set,
        )


def _steps(slot: Slot) -> Steps:
    assert slot.python is not None
    return slot.python


def _call(
    slot: Slot, function: Callable[..., Any], inputs: Sequence[Any], dtypes: Sequence[Any]
) -> list[Any]:
    """A function of `Steps`, which is given the tensor's counts first, and returns them last."""
    with tf.control_dependencies(inputs):
        counts = slot.counts.read_value()
    *results, after = _numpy_function(function, [counts, *inputs], [*dtypes, tf.int64])
    with tf.control_dependencies([slot.counts.assign(tf.ensure_shape(after, [3]), read_value=False)]):
        return [tf.identity(result) for result in results]


def _numpy_function(
    function: Callable[..., Any], inputs: Sequence[Any], dtypes: Sequence[Any]
) -> Sequence[Any]:
    """`tf.numpy_function` of a bound method; eagerly the method itself, since TensorFlow would keep a wrapper
    of it for every call."""
    if tf.executing_eagerly():
        arrays = function(*(one.numpy() for one in inputs))
        return [tf.convert_to_tensor(one, dtype) for one, dtype in zip(arrays, dtypes, strict=True)]
    if tf.compat.v1.executing_eagerly_outside_functions():
        function = _weak(function)
    results: Sequence[Any] = tf.numpy_function(function, inputs, dtypes)
    return results


def _weak(method: Any) -> Callable[..., Any]:
    """The bound method, which does not keep its object alive: TensorFlow keeps what a graph calls as long as
    the process, and lets graphs hold their variables no differently."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        bound = reference()
        if bound is None:
            raise RuntimeError("the compressor that this graph was made with is gone")
        return bound(*arguments)

    return call
