"""Momentum and weight decay, moved from the user's SGD into the compressor.

Momentum correction needs the momentum before compression: what is accumulated is the velocity, not the
gradient. Weight decay belongs to the gradient that the velocity sums up, so it moves along.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from ..core.method import Method
from .parameters import Slot

# What stands in the optimizer where a value was moved: to SGD a zero, but not the zero that a user writes.
MARK = -0.0
_VALUES = ("momentum", "weight_decay")
_MOVED = (*_VALUES, "nesterov")


def _is_mark(value: Any) -> bool:
    return value == 0 and math.copysign(1, value) < 0


class Terms(NamedTuple):
    """What is added to a parameter's gradient: torch.optim.SGD's terms of these names."""

    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False


class FixedTerms:
    """The same momentum for every parameter, as a method states it."""

    def __init__(self, momentum: float, nesterov: bool) -> None:
        self._terms = Terms(momentum, 0.0, nesterov)

    def of(self, parameter: torch.Tensor) -> Terms:
        return self._terms

    def state(self) -> None:
        """What a checkpoint has to hold: the terms are the method's, and do not change."""

    def load_state(self, state: Any) -> None:
        pass

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an optimizer that applies a momentum of its own as well, or whose own was moved away."""
        if any(_is_mark(group.get(key)) for group in optimizer.param_groups for key in _VALUES):
            raise ValueError(
                "the optimizer's momentum or weight decay reads -0.0: momentum_from moved it into another "
                "compressor. Write the values into its groups again, or give momentum_from here, too"
            )
        if self._terms.momentum and any(group.get("momentum") for group in optimizer.param_groups):
            raise ValueError(
                f"momentum={self._terms.momentum} in the compressor and the optimizer's own would be two; "
                "give the optimizer momentum=0, or leave momentum out and pass momentum_from=optimizer"
            )


class _Group:
    """A parameter group of the optimizer as it is now, and what was moved out of it."""

    def __init__(self, index: int, live: dict[str, Any]) -> None:
        self.index = index
        self.live = live
        self.momentum = self.weight_decay = 0.0
        self.nesterov = False

    def move(self) -> Terms:
        """Take out of the group what stands there (again); all terms of the group now."""
        for key in _VALUES:
            value = self.live[key]
            if not _is_mark(value):
                setattr(self, key, float(value))
                self.live[key] = MARK
        if self.live["nesterov"]:
            self.nesterov, self.live["nesterov"] = True, False
        # SGD with maximize negates the gradient before it adds the weight decay; here it is negated after.
        decay = -self.weight_decay if self.live["maximize"] else self.weight_decay
        return Terms(self.momentum, decay, self.nesterov and self.momentum > 0)


class MovedTerms:
    """The terms of an SGD optimizer's parameter groups, taken out of the optimizer.

    Each group's momentum, weight decay and Nesterov flag are zeroed in the optimizer. A value that appears
    there later (a scheduler cycles the momentum, a checkpoint is loaded) is moved as well, before the
    optimizer can use it. Momentum buffers of earlier steps are left behind when Horovod wraps an optimizer;
    those of a checkpoint that is loaded later are taken over (`hooks`).
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._groups: dict[int, _Group] = {}
        self._optimizer: Callable[[], torch.optim.Optimizer | None] = weakref.ref(optimizer)
        for index, live in enumerate(optimizer.param_groups):
            group = _Group(index, live)
            group.move()
            self._groups.update((id(parameter), group) for parameter in live["params"])

    def __str__(self) -> str:
        return "; ".join(
            f"momentum {group.momentum}, weight_decay {group.weight_decay}, nesterov {group.nesterov}"
            for group in self._distinct()
        )

    def state(self) -> list[dict[str, Any]]:
        """The terms of each group, as plain data."""
        return [{key: getattr(group, key) for key in _MOVED} for group in self._distinct()]

    def load_state(self, state: list[dict[str, Any]] | None) -> None:
        """Take over the terms that `state` returned; None, of another compressor's kind, is let pass."""
        groups = self._distinct()
        if state is not None and len(state) != len(groups):
            raise ValueError(
                f"the state is of {len(state)} parameter groups; momentum_from has {len(groups)}"
            )
        optimizer = self._optimizer()
        for group, terms in zip(groups, state or [], strict=False):
            if optimizer is not None:
                group.live = optimizer.param_groups[group.index]
            group.move()  # what stands there is older than the state
            for key in _MOVED:
                setattr(group, key, terms[key])

    def buffer_of(self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> torch.Tensor | None:
        """The momentum buffer that stands in the optimizer, as of gradients to descend; it is taken out."""
        group, kept = self._groups.get(id(parameter)), optimizer.state.get(parameter, {})
        buffer: torch.Tensor | None = kept.pop("momentum_buffer", None) if group is not None else None
        return -buffer if buffer is not None and group is not None and group.live["maximize"] else buffer

    def covers(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the terms were taken out of these parameters' groups."""
        return any(id(p) in self._groups for group in optimizer.param_groups for p in group["params"])

    def _distinct(self) -> list[_Group]:
        return list({id(group): group for group in self._groups.values()}.values())

    def __getstate__(self) -> dict[str, Any]:
        return {"parameters": [(group, group.live["params"]) for group in self._distinct()]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # By identities again, which a copy's parameters have anew; it meets its optimizer when that steps.
        self._optimizer = lambda: None
        self._groups = {
            id(parameter): group for group, parameters in state["parameters"] for parameter in parameters
        }

    def of(self, parameter: torch.Tensor) -> Terms:
        """The parameter's terms now; none for a parameter that the optimizer does not have."""
        group = self._groups.get(id(parameter))
        if group is None:
            return Terms()
        optimizer = self._optimizer()
        if optimizer is not None:
            group.live = optimizer.param_groups[group.index]
        return group.move()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Move what stands again in the groups of Horovod's wrapper, which are new after a checkpoint."""
        self._optimizer = weakref.ref(optimizer)
        met: dict[int, int] = {}
        for number, live in enumerate(optimizer.param_groups):
            for group in {id(g): g for g in map(self._groups.get, map(id, live["params"])) if g}.values():
                if met.setdefault(id(group), number) != number:
                    raise ValueError(
                        "momentum_from: parameters came into another parameter group after their momentum "
                        "was moved; create the compressor anew"
                    )
                group.live = live
                group.move()


def terms_for(
    method: Method,
    momentum_from: torch.optim.Optimizer | None,
    optimizer: torch.optim.Optimizer | None,
    slots: Sequence[Slot],
    reduces: bool,
) -> FixedTerms | MovedTerms:
    """The terms that the arguments ask for; ValueError where they ask for two momenta.

    Where Horovod does not reduce, nothing reaches the compressor, and the optimizer keeps its terms. So it
    does where no method keeps what it does not send: there is nothing for a momentum to correct then, and the
    optimizer's own smooths the noise that compression adds.
    """
    momentum = method.feedback.momentum
    if momentum and momentum_from is not None:
        raise ValueError(
            "momentum and momentum_from exclude each other; leave momentum out to take the optimizer's"
        )
    if momentum_from is not None:
        _check_movable(momentum_from)
        _check_registered(momentum_from, [slot.parameter for slot in slots])
        if left_to := _keep_nothing(slots):
            warnings.warn(
                f"momentum_from: {left_to} keeps nothing of what it does not send, so momentum and weight "
                "decay stay in the optimizer, where they belong with such a method; leave momentum_from out",
                stacklevel=4,
            )
        elif reduces:
            return MovedTerms(momentum_from)
    terms = FixedTerms(momentum, method.feedback.nesterov)
    if optimizer is not None:
        terms.before_step(optimizer)
    return terms


def _keep_nothing(slots: Sequence[Slot]) -> str:
    """The name of a method that compresses, where none of them keeps anything; else nothing."""
    sent = [slot.method for slot in slots if slot.floating and not slot.method.is_dense(slot.parameter.shape)]
    return "" if not sent or any(method.feedback.keep for method in sent) else sent[0].name


def _check_movable(optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(optimizer, torch.optim.SGD):
        raise ValueError(
            "momentum_from must be a torch.optim.SGD, whose momentum can be moved; with "
            f"{type(optimizer).__name__} leave it out: that optimizer keeps its own moments"
        )
    for group in optimizer.param_groups:
        if group["dampening"]:
            raise ValueError(f"momentum_from needs dampening=0 in every group; got {group['dampening']}")
    if not any(group["momentum"] for group in optimizer.param_groups):
        raise ValueError(
            "momentum_from has no momentum to move: its groups' momentum is 0. If another compressor has "
            "taken it, or a checkpoint of a compressed run was loaded, create the compressor from a new "
            "optimizer, and load the checkpoint into what DistributedOptimizer returns"
        )


def _check_registered(optimizer: torch.optim.Optimizer, registered: Iterable[torch.Tensor]) -> None:
    known = {id(parameter) for parameter in registered}
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    stray = [parameter for parameter in parameters if id(parameter) not in known]
    if stray:
        raise ValueError(
            f"named_parameters must name every parameter of momentum_from; {len(stray)} are "
            f"missing, the first of shape {tuple(stray[0].shape)}"
        )


def advance(
    buffer: torch.Tensor | None, gradient: torch.Tensor, terms: Terms
) -> tuple[torch.Tensor, torch.Tensor]:
    """One momentum step on an averaged gradient: (the new buffer, what the optimizer is to apply).

    The buffer is the same as a codec's (`core.feedback`), so that a tensor may pass from dense steps to
    compressed ones.
    """
    after = gradient.clone() if buffer is None else buffer.mul(terms.momentum).add_(gradient)
    return after, gradient.add(after, alpha=terms.momentum) if terms.nesterov else after
