"""Which parameter a gradient belongs to: Horovod hands a compressor gradients without names."""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..codec import Codec
from ..core import wire
from ..core.method import Method
from ..policy import Policy, methods_for
from ..policy import check as check_policy
from ..report import Traffic
from .tensors import Buffer


@dataclass(eq=False)
class Slot:
    """One registered parameter, the method that sends its gradients, and what the compressor keeps for it.

    `codec` holds the state of its compressed steps and `momentum` the buffer of its dense ones; each is made
    when it is first needed. `step` counts its steps. `in_flight`: compressed and not yet decompressed,
    while Horovod reads `payload` and `numbers`, which are kept from step to step. `reduced` refers to the
    gradient of the last step that counted.
    """

    name: str
    parameter: torch.Tensor
    method: Method
    step: int = 0
    codec: Codec | None = None
    momentum: torch.Tensor | None = None
    in_flight: bool = False
    payload: Buffer | None = None
    numbers: Buffer | None = None
    reduced: Callable[[], torch.Tensor | None] | None = None
    floating: bool = field(init=False)
    traffic: Traffic = field(init=False)
    _finally_dense: bool | None = None
    _full: Method | None = None

    def is_dense(self, gradient: torch.Tensor) -> bool:
        """Whether the gradient is to be sent as it is, which stays the same after the warm-up."""
        if not self.floating:
            return True
        if self.step < self.method.schedule.steps:
            return self.method.is_dense(gradient.shape, self.step, gradient.element_size())
        if self._finally_dense is None:
            self._finally_dense = self.method.is_dense(gradient.shape, None, gradient.element_size())
        return self._finally_dense

    def use(self, method: Method) -> None:
        """Send by another method from now on; what was kept stays."""
        self.method, self._finally_dense, self._full = method, None, None

    def method_with(self, momentum: float, nesterov: bool) -> Method:
        """The method with a momentum, always the same object as long as that is the same."""
        full = self.method if self._full is None else self._full
        if (full.feedback.momentum, full.feedback.nesterov) != (momentum, nesterov):
            full = self.method.with_feedback(momentum=momentum, nesterov=nesterov)
        self._full = full
        return full

    def remember_reduced(self) -> None:
        gradient = self.parameter.grad
        self.reduced = None if gradient is None else weakref.ref(gradient)

    def holds_reduced(self) -> bool:
        """Whether the parameter's gradient is still what the last step made it, unless it was written to."""
        gradient = self.parameter.grad
        return gradient is not None and self.reduced is not None and self.reduced() is gradient

    def version(self) -> int:
        """How often the parameter's gradient was written to."""
        return 0 if self.parameter.grad is None else self.parameter.grad._version

    def __post_init__(self) -> None:
        self.traffic = Traffic(self.name)
        self.floating = self.parameter.is_floating_point()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "payload": None, "numbers": None, "reduced": None}


class Parameters:
    """The registered parameters, found by their gradients' identity.

    Gradients come in nearly the same order in every step, so the first guess is the one that followed last
    time; only a change of order costs a search.
    """

    def __init__(
        self, named_parameters: Iterable[tuple[str, torch.Tensor]], method: Method, policy: Policy = ()
    ) -> None:
        pairs = list(named_parameters)
        if not pairs:
            raise ValueError(
                "named_parameters is empty; pass model.named_parameters() anew to each call "
                "that takes it, since a generator yields its parameters only once"
            )
        if any(
            not isinstance(pair, tuple)
            or len(pair) != 2
            or not isinstance(pair[0], str)
            or not isinstance(pair[1], torch.Tensor)
            for pair in pairs
        ):
            raise ValueError(
                "named_parameters must be pairs of a name and a tensor, as "
                f"model.named_parameters() yields them; got {type(pairs[0]).__name__} first"
            )
        counts = Counter(name for name, _ in pairs)
        if twice := [name for name, count in counts.items() if count > 1]:
            raise ValueError(f"named_parameters must have unique names; these came twice: {', '.join(twice)}")
        if large := [name for name, parameter in pairs if parameter.numel() > wire.MAX_ENTRIES]:
            raise ValueError(
                f"named_parameters: {large[0]} has more than 2^31 - 1 entries, which Horovod cannot count; "
                "split it into several parameters"
            )
        first: dict[int, str] = {}
        for name, parameter in pairs:  # a parameter that is shared under two names keeps the first
            first.setdefault(id(parameter), name)
        self._policy = check_policy(policy, method)
        single = [(name, parameter) for name, parameter in pairs if first[id(parameter)] == name]
        methods = methods_for(single, self._policy, method)
        self.slots = [Slot(*pair, method) for pair, method in zip(single, methods, strict=True)]
        self._start_search()

    def use(self, method: Method) -> None:
        """Another method for the parameters that the policy leaves to the default."""
        check_policy(self._policy, method)
        named = [(slot.name, slot.parameter) for slot in self.slots]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it was said when the compressor was made
            methods = methods_for(named, self._policy, method)
        for slot, its in zip(self.slots, methods, strict=True):
            slot.use(its)

    def _start_search(self) -> None:
        self._index = {id(slot.parameter): index for index, slot in enumerate(self.slots)}
        self.expected: torch.Tensor | None = None  # whose gradient comes next, where that is known
        self._follower = list(range(1, len(self.slots) + 1))
        self._last = -1

    def __getstate__(self) -> dict[str, Any]:
        return {"slots": self.slots, "_policy": self._policy}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_search()  # anew: it goes by the parameters' identities

    def find(self, gradient: torch.Tensor) -> Slot | None:
        """The slot whose parameter has this very gradient, or None.

        With Horovod's `sparse_as_dense` the gradient is a dense copy of a sparse one, and is found by the
        parameter that is `expected`, or by its values where nobody has told.
        """
        if self.expected is not None:
            return self.slots[self._index[id(self.expected)]] if id(self.expected) in self._index else None
        guess = self._follower[self._last]
        if not (guess < len(self.slots) and self.slots[guess].parameter.grad is gradient):
            found = self._search(gradient)
            if found is None:
                return None
            self._follower[self._last] = guess = found
        self._last = guess
        return self.slots[guess]

    def _search(self, gradient: torch.Tensor) -> int | None:
        for index, slot in enumerate(self.slots):
            if slot.parameter.grad is gradient:
                return index
        sparse = self.with_sparse_gradient(gradient.shape)
        waiting = [slot for slot in sparse if not slot.in_flight]
        if len(waiting) > 1:
            waiting = [slot for slot in waiting if torch.equal(_dense_gradient(slot), gradient)]
        return self._index[id(waiting[0].parameter)] if waiting else None

    def with_sparse_gradient(self, shape: torch.Size) -> list[Slot]:
        """The slots of this shape whose gradient is sparse now."""
        alike = [slot for slot in self.slots if slot.parameter.shape == shape]
        return [slot for slot in alike if slot.parameter.grad is not None and slot.parameter.grad.is_sparse]


def _dense_gradient(slot: Slot) -> torch.Tensor:
    assert slot.parameter.grad is not None
    return slot.parameter.grad.to_dense()
