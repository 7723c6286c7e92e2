"""How each step of one tensor is sent, and what its method's parts keep for that."""

from __future__ import annotations

import numpy as np

from .core import wire
from .core.context import Context, Memory, Peers, matrix_shape
from .core.method import Method
from .core.quantize import BFloat16, Float32, Geometric, SignMean
from .core.random import Draw, key_of
from .core.select import TopK
from .core.types import Bytes

_NEEDLESS = frozenset({Float32, BFloat16, SignMean, Geometric})  # quantizers that need no context


class Planner:
    """One codec's.

    Attributes:
        name: the tensor's.
        method: what is sent; `planned`: as the last step sent it, where a controller has changed it.
        memory: what the parts keep beside residual and momentum; `before`: before the last step.
    """

    def __init__(
        self, method: Method, shape: tuple[int, ...], size: int, seed: int, name: str, peers: Peers
    ) -> None:
        self._set(method)
        self.matrix = matrix_shape(shape)
        self.memory: Memory = {}
        self.before: Memory = {}
        self.name, self._size, self._seed, self._peers = name, size, seed, peers
        self._key: tuple[int, int] | None = None
        self._learnt = True  # what the last step's payloads tell the controller

    def use(self, method: Method) -> None:
        """Another method, from the next step on."""
        if not self.method.remembers_like(method):
            self.remember({})
        self._set(method)

    def _set(self, method: Method) -> None:
        self.method = self.planned = method
        self._final_k: int | None = None
        parts = (type(method.selector), type(method.quantizer))
        self._is_plain = method.controller is None and parts[0] is TopK and parts[1] in _NEEDLESS

    def remember(self, memory: Memory) -> None:
        """Go on from this memory."""
        self.memory = self.before = memory
        self._learnt = True

    def plan(self, step: int, rank: int) -> tuple[Method, Context | None]:
        """The method as a step sends it, and what its parts are told; the hybrid method's need nothing."""
        method = self.method
        if self._is_plain:
            return method, None
        if self._key is None:
            self._key = key_of(self._seed, self.name)
        draw = Draw(self._key, step, rank)
        context = Context(draw, step, self.matrix, dict(self.memory), self._peers)
        if method.controller is not None:
            planned = method.controller.plan(method, self._size, context)
            method = self.planned if planned == self.planned else planned
        return method, context

    def slots(self, method: Method, step: int) -> int:
        """k of a planned method, which stays the same after the warm-up."""
        if method is not self.method:
            return method.slots(self._size)
        if step < method.schedule.steps:
            return method.slots(self._size, step)
        if self._final_k is None:
            self._final_k = method.slots(self._size)
        return self._final_k

    def commit(self, method: Method, context: Context | None) -> None:
        """The step was made."""
        self.planned, self._learnt = method, False
        if context is not None:
            self.memory, self.before = context.memory, self.memory

    def take_back(self) -> None:
        """The step was taken back."""
        self.memory, self._learnt = self.before, True

    def learn(self, payloads: Bytes, step: int) -> None:
        """Give the controller the mean of the notes in all ranks' payloads of a step, once."""
        controller = self.method.controller
        if self._learnt or controller is None or not controller.due(step):
            return
        self._learnt = True
        notes = [wire.read_notes(payload) for payload in wire.split(payloads)]
        if all(each.size == controller.notes for each in notes):
            self.memory = dict(self.memory)
            controller.learn(list(np.mean(notes, axis=0, dtype=np.float64)), self.memory, step)

    def nothing(self, step: int, rank: int) -> Bytes:
        """A payload of a step's size that decodes to zeros."""
        method, context = self.plan(step, rank)
        controller = method.controller
        notes = controller.notes if context is not None and controller and controller.due(step) else 0
        k = self.slots(method, step)
        return wire.nothing(self._size, k, method.quantizer, method.name, notes, self.matrix[0])
