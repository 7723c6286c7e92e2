"""The compressor that Horovod's TensorFlow wrappers are given.

Horovod calls `compress(gradient)` and `decompress(reduced, context)` while a graph is traced, inside a branch
of a `tf.cond`, and allreduces in between what `compress` returned. Bytes cannot be summed, so the payload
travels by an allgather of our own, and Horovod reduces a few numbers (`csrc/tensorflow/control.h`) that tell
the scale of its op and whether a rank's gradient was not finite. All of it is in the graph: no Python runs in
a step, but for methods that the native operations do not know (`bridge`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from ..agreement import difference
from ..core.method import Method
from ..policy import Policy
from ..report import Report
from . import ranks, traffic
from .bridge import Bridge
from .exchange import Context, Dense, Exchange
from .kept import Shared
from .slots import Slot, Slots, outside


class _Tracing:
    """What is known while graphs are traced, and nothing of which is state.

    Attributes:
        variable_of: the variables of the gradients that are being reduced, by the gradients' ids.
        functions: those that reduce eager gradients, by what they were made for.
        compared: the ranks' settings have been compared.
    """

    def __init__(self) -> None:
        self.variable_of: dict[int, Any] = {}
        self.functions: dict[Any, Any] = {}
        self.compared = False


class Compressor(tf.Module):
    """Made by `Compression.hgc` and `Compression.from_method`; one for each tape or optimizer."""

    def __init__(
        self,
        method: Method,
        *,
        variables: Sequence[Any] | None,
        policy: Policy,
        process_set: Any,
        loss_scale: Callable[[], Any] | None,
        prefix: str,
        seed: int,
    ) -> None:
        super().__init__(name=None)
        self.method = method
        self.process_set = process_set
        self.drops_steps = loss_scale is not None
        shared = Shared(self.drops_steps)
        self.slots = Slots(method, policy, variables, seed, shared)
        self._prefix = prefix
        self.tracing = _Tracing()
        outside(self._create)
        self._bridge = Bridge(prefix, process_set, shared, self._loss)
        self._exchange = Exchange(prefix, process_set, loss_scale, self._bridge)

    def _create(self) -> None:
        with tf.init_scope(), tf.device("cpu:0"):
            self._loss = tf.Variable(math.nan, trainable=False, name="loss", dtype=tf.float32)

    @contextlib.contextmanager
    def reducing(self, gradients: Sequence[Any], variables: Sequence[Any]) -> Iterator[None]:
        """While this holds, `compress` knows these tensors as the gradients of these variables."""
        known = {id(g): v for g, v in zip(gradients, variables, strict=True) if g is not None}
        before, self.tracing.variable_of = self.tracing.variable_of, known
        try:
            yield
        finally:
            self.tracing.variable_of = before

    def compare_once(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Compare the settings with the other ranks', where the first step is about to be traced.

        Raises ValueError, on every rank, where two differ.
        """
        members = self.process_set
        if self.tracing.compared or ranks.may_change() or not members.included() or members.size() == 1:
            return
        pairs = zip(gradients, variables, strict=True)
        slots = [self.slots.of_variable(v, g) for g, v in pairs if g is not None]
        with tf.init_scope():
            if not tf.executing_eagerly():  # a graph of TensorFlow 1, in which nothing can be asked
                return
            settings = self.slots.settings(slots) | {"loss_scale": self.drops_steps}
            name = f"{self._prefix}.settings"
            everyones = hvd.allgather_object(settings, name=name, process_set=members)
        if text := difference(everyones):
            raise ValueError(text)
        self.tracing.compared = True

    def compress(self, gradient: Any) -> tuple[Any, Context]:
        """Start sending a gradient; Horovod allreduces the tensor that is returned."""
        return self._start(self._slot_of, gradient)

    def decompress(self, reduced: Any, context: Context) -> Any:
        """The reduced gradient, in the shape and dtype of the one that was compressed."""
        result = self._exchange.finish(reduced, context)
        if self.tracing.variable_of or context.slot is None or context.slot.python is None:
            return result
        return self._bridge.checked([result])[0]

    def conclude(
        self, gradients: Sequence[Any], reduced: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """The reduced gradients of a step, behind which what is kept is as before where one is not finite and
        the loss scale's optimizer drops them all, and the step fails where a rank could not encode one."""
        if self.drops_steps:
            reduced = self._undone(gradients, reduced, variables)
        in_python = any(slot.python is not None for slot in self.slots.by_name.values())
        return self._bridge.checked(reduced) if in_python else list(reduced)

    def report_loss(self, value: Any) -> None:
        """Tell a step's loss, float (), to methods that steer by it (`methods.mqgrad`): eagerly, or a tensor
        within a `tf.function`. It counts for the gradients that are reduced afterwards."""
        self._loss.assign(tf.reshape(tf.cast(value, tf.float32), []))

    def _undone(
        self, gradients: Sequence[Any], reduced: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        sent = [
            (gradient, self.slots.of_variable(variable, gradient))
            for gradient, variable in zip(gradients, variables, strict=True)
            if gradient is not None and not isinstance(gradient, tf.IndexedSlices)
        ]
        finite = [tf.reduce_all(tf.math.is_finite(_values(one))) for one in reduced if one is not None]

        def undo() -> Any:
            return tf.group(*(self._exchange.undo(slot, gradient) for gradient, slot in sent))

        undone = tf.cond(tf.reduce_all(finite), tf.no_op, undo)
        with tf.control_dependencies([undone]):
            return [one if one is None else tf.nest.map_structure(tf.identity, one) for one in reduced]

    def __getitem__(self, name: str) -> _Named:
        """This compressor for the tensor of that name, for `hvd.allreduce(x, compression=compressor[name])`
        of tensors that are no gradients of a tape or an optimizer."""
        return _Named(self, name)

    def reset(self) -> None:
        """Forget what is kept of all tensors, such as that of another number of ranks in a checkpoint."""
        for slot in self.slots.by_name.values():
            slot.reset()

    def report(self) -> Report:
        """Bytes and ratios per tensor and in total, as this rank has sent them so far."""
        return traffic.report(repr(self), self.slots)

    def __repr__(self) -> str:
        slots = self.slots.by_name.values()
        sent = [slot for slot in slots if slot.compressed]
        return (
            f"Compression.{self.method}: {len(sent)} of {len(slots)} tensors, "
            f"{sum(slot.n for slot in sent):,} of {sum(slot.n for slot in slots):,} entries"
        )

    def _slot_of(self, gradient: Any) -> Slot:
        variable = self.tracing.variable_of.get(id(gradient))
        if variable is not None:
            return self.slots.of_variable(variable, gradient)
        if tf.executing_eagerly():
            raise ValueError(
                "an eager tensor has no name: give hvd.allreduce compression=compressor[name], with a name "
                "of your choice for each tensor"
            )
        return self.slots.named(self.slots.next_place(_outermost(gradient.graph)), gradient)

    def _start(self, slot_of: Callable[[Any], Slot], gradient: Any) -> tuple[Any, Context]:
        if not gradient.dtype.is_floating:
            return gradient, Dense(None, gradient)
        slot = slot_of(gradient)
        return self._exchange.start(slot, gradient, self.slots.digest_with(slot))


class _Named:
    """A compressor for one tensor that is known by a name."""

    def __init__(self, compressor: Compressor, name: str) -> None:
        self._compressor, self._name = compressor, name

    def compress(self, tensor: Any) -> tuple[Any, Context]:
        slots = self._compressor.slots
        return self._compressor._start(lambda gradient: slots.named(self._name, gradient), tensor)

    def decompress(self, reduced: Any, context: Context) -> Any:
        return self._compressor.decompress(reduced, context)


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _outermost(graph: Any) -> Any:
    while getattr(graph, "outer_graph", None) is not None and graph.outer_graph.building_function:
        graph = graph.outer_graph
    return graph
