"""What is kept of each tensor, in TensorFlow variables."""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from .. import policy as policies
from ..core import wire
from ..core.method import Method
from .kept import Shared, is_native
from .steps import Steps

DIGEST = 16  # numbers


class Slot(tf.Module):
    """One tensor's method and state.

    Attributes:
        residual, velocity: float32 (n,), empty where nothing of that kind is kept.
        counts: int64 (3,), how many of its gradients were sent, by which rank, of how many.
        last: uint8 (bytes,), what it takes to undo the last step; see csrc/tensorflow/slot.h.
        python: what does its steps where the native operations do not know the method, and keeps all but the
            counts; else None.
    """

    def __init__(
        self, name: str, shape: Sequence[int], dtype: Any, method: Method, seed: int, shared: Shared
    ) -> None:
        super().__init__(name=None)
        self.key, self.shape, self.method = name, tuple(shape), method
        self.n, self.dtype, self.stages = math.prod(shape), dtype, _stages(method)
        self.compressed = not method.is_dense(shape, None, dtype.size)
        self.dense_until = _dense_until(method, shape, dtype.size) if self.compressed else 0
        self.python: Steps | None = None
        if self.compressed and not is_native(method):
            self.python = Steps(name, self.shape, method, seed, shared)
        outside(self._create)

    @property
    def wire_name(self) -> str:
        """The name as Horovod can take it, which cuts all off that stands before a slash."""
        return f"{re.sub('[^A-Za-z0-9_.]', '.', self.key)}.{zlib.crc32(self.key.encode()):x}"

    def _create(self) -> None:
        with tf.init_scope(), tf.device("cpu:0"):
            keeps, moves = self.compressed, self.method.feedback.momentum > 0
            if self.python is not None:
                keeps = moves = False
            self.residual = _variable(tf.zeros([self.n if keeps else 0]), "residual")
            self.velocity = _variable(tf.zeros([self.n if moves else 0]), "velocity")
            self.counts = _variable(tf.zeros([3], tf.int64), "step")
            self.last = _variable(tf.zeros([0], tf.uint8), "last", tf.TensorShape([None]))

    @property
    def step(self) -> Any:
        """How many of its gradients were sent, int64 ()."""
        return self.counts[0]

    def reset(self) -> None:
        """Forget what is kept."""
        for variable in (self.residual, self.velocity, self.counts):
            variable.assign(tf.zeros_like(variable))
        self.last.assign(tf.zeros([0], tf.uint8))
        if self.python is not None:
            self.python.reset()

    def state(self) -> dict[str, Any]:
        """What all operations are given of it."""
        feedback = self.method.feedback
        return {
            "residual": self.residual.handle,
            "velocity": self.velocity.handle,
            "step": self.counts.handle,
            "last": self.last.handle,
            "tensor_name": self.key,
            "momentum": feedback.momentum,
            "nesterov": feedback.nesterov,
            "masking": feedback.masking,
            "keep": feedback.keep,
            "clip": feedback.clip or 0.0,
        }

    def format(self) -> dict[str, Any]:
        """The attributes that say how many entries are sent, and how."""
        quantizer = self.method.quantizer
        return {
            "method": wire.METHOD_IDS.get(self.method.name, 0),
            "value_kind": quantizer.wire_id,
            "bits": quantizer.bits,
            "stages": self.stages,
            "slots": [self.method.slots(self.n, step) for step in [0, *self.stages]],
        }


class Slots(tf.Module):
    """All tensors of one compressor, by name.

    A gradient is known by its variable where Horovod's function that reduces a step's gradients names it (see
    `attach`), and else by its place among those that a graph gives to the compressor.
    """

    def __init__(
        self,
        method: Method,
        policy: policies.Policy,
        variables: Sequence[Any] | None,
        seed: int,
        shared: Shared,
    ) -> None:
        super().__init__(name=None)
        self._shared = shared
        self._method, self._policy, self._seed = method, policies.check(policy, method), seed
        self.by_name: dict[str, Slot] = {}
        self._names = _Names()
        self._fixed = False
        self._places: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        if variables is not None:
            named = [(self._names.of(variable), variable) for variable in variables]
            for (name, variable), chosen in zip(
                named, policies.methods_for(named, self._policy, method), strict=True
            ):
                self._add(name, variable.shape, variable.dtype, chosen)
            self._fixed = True

    def of_variable(self, variable: Any, gradient: Any) -> Slot:
        name = self._names.of(variable)
        if name in self.by_name:
            return self.by_name[name]
        if self._fixed:
            raise ValueError(f"variables must hold every variable that is trained; {name} is missing")
        return self._add(name, variable.shape, gradient.dtype, self._choose(name, variable))

    def named(self, name: str, gradient: Any) -> Slot:
        slot = self.by_name.get(name)
        if slot is None:
            slot = self._add(name, gradient.shape, gradient.dtype, self._choose(name, gradient))
        if not gradient.shape.is_compatible_with(slot.shape):
            raise ValueError(
                f"{name} was of shape {slot.shape} before, and is {tuple(gradient.shape)} now: gradients "
                "must come in the same order in every graph, and a compressor serves one model"
            )
        return slot

    def next_place(self, graph: Any) -> str:
        """The name of a gradient that nothing is known of but the graph that it comes in."""
        place = self._places.get(graph, 0)
        self._places[graph] = place + 1
        return f"gradient_{place}"

    def settings(self, slots: Sequence[Slot]) -> dict[str, Any]:
        """What has to be the same on all ranks of these tensors, as plain data."""
        return {
            "method": json.loads(self._method.to_json()),
            "seed": self._seed,
            "tensors": {
                slot.key: {"shape": list(slot.shape), "method": json.loads(slot.method.to_json())}
                for slot in slots
            },
        }

    def digest_with(self, slot: Slot) -> list[float]:
        """What all ranks must have in common, as 16 numbers of -1 or 1, with the first tensor that is
        compressed; one is enough to tell."""
        if slot is not self.first_compressed:
            return []
        common = self.settings(list(self.by_name.values()) if self._fixed else [])
        data = hashlib.sha256(json.dumps(common).encode()).digest()
        return [1.0 if data[i // 8] >> i % 8 & 1 else -1.0 for i in range(DIGEST)]

    @property
    def first_compressed(self) -> Slot | None:
        return next((one for one in self.by_name.values() if one.compressed), None)

    def _choose(self, name: str, tensor: Any) -> Method:
        return policies.method_for(name, tensor, self._policy, self._method)

    def _add(self, name: str, shape: Any, dtype: Any, method: Method) -> Slot:
        if not shape.is_fully_defined():
            raise ValueError(f"the shape of {name} must be known; got {shape}")
        slot = self.by_name[name] = Slot(name, shape.as_list(), dtype, method, self._seed, self._shared)
        return slot


class _Names:
    """Variables' names, with a number behind those that others have as well."""

    def __init__(self) -> None:
        self._known: dict[Any, str] = {}

    def of(self, variable: Any) -> str:
        variable = getattr(variable, "_variable", variable)  # Keras wraps it for mixed precision
        if not hasattr(variable, "ref"):
            raise ValueError(
                f"variables must be tf.Variables; got {type(variable)}. Of a Keras 3 model give the values, "
                "[v.value for v in model.trainable_variables], and train with hvd.DistributedGradientTape; "
                "fit needs tf_keras and TF_USE_LEGACY_KERAS=1"
            )
        if variable.ref() not in self._known:
            plain, taken = variable.name.split(":")[0], set(self._known.values())
            names = (f"{plain}_{i}" if i else plain for i in range(len(taken) + 1))
            self._known[variable.ref()] = next(name for name in names if name not in taken)
        return self._known[variable.ref()]


def outside(create: Callable[[], None]) -> None:
    """Create variables unnoticed by a `tf.function` that is being traced, which would trace itself once more
    for them: it looks for variables on its own thread."""
    if not tf.compat.v1.executing_eagerly_outside_functions():
        create()
        return
    thread = threading.Thread(target=create)
    thread.start()
    thread.join()


def _variable(value: Any, name: str, shape: Any = None) -> Any:
    return tf.Variable(value, trainable=False, name=name, shape=shape)


def _stages(method: Method) -> list[int]:
    """The steps at which the density changes."""
    schedule = method.schedule
    if not schedule.stage_steps:
        return []
    return list(range(schedule.dense_steps + schedule.stage_steps, schedule.steps + 1, schedule.stage_steps))


def _dense_until(method: Method, shape: Sequence[int], itemsize: int) -> int:
    """How many steps a tensor that is compressed later is sent as it is."""
    steps = [0, method.schedule.dense_steps, *_stages(method)]
    return next(step for step in steps if not method.is_dense(shape, step, itemsize))
