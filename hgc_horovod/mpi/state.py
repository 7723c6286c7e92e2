"""A reducer's state between steps: what a checkpoint holds.

Residuals and momentum belong to the rank that kept them. What the optimizer would get of them in the end is
their mean over the ranks, or their sum where the tensor is summed: that is what is kept where a run goes on
with another number of ranks. What the method's parts remember beside that is the same on all ranks, or a
rank's estimate: all ranks go on with that of rank 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core import check
from ..core.method import Method
from ..core.types import Json
from . import agreement
from .arrays import Array
from .tensors import Tensor, World

VERSION = 1
_OTHER_WORLD = ("refuse", "mean", "zero")
_FLAGS = ("compressed", "summed")


class Kept(NamedTuple):
    """What is kept of one tensor; see `Tensor`. Residual and momentum are float (n,) or None, `memory` is the
    codec's, and `parts` tells which parts of a method remember it."""

    step: int
    compressed: bool
    summed: bool
    residual: Array | None
    momentum: Array | None
    memory: dict[str, Array]
    parts: Json

    @classmethod
    def of(cls, tensor: Tensor) -> Kept:
        residual, momentum = (None, tensor.momentum) if tensor.codec is None else tensor.kept()
        residual, momentum = (None if v is None else v.copy() for v in (residual, momentum))
        memory = {} if tensor.codec is None else tensor.codec.memory
        memory = {key: values.copy() for key, values in memory.items()}
        parts = _parts(tensor.method)
        return cls(tensor.step, tensor.compressed, tensor.summed, residual, momentum, memory, parts)

    @classmethod
    def read(cls, tensor: Tensor, state: Mapping[str, Any]) -> Kept:
        """Check what `of` made, as `_asdict` has it."""
        arrays = []
        for key in ("residual", "momentum"):
            values = state[key]
            if values is not None:
                values = np.array(values)
                if values.shape != (tensor.size,) or values.dtype.kind != "f":
                    raise ValueError(
                        f"state: the {key} of {tensor.name!r} must be float ({tensor.size},); "
                        f"got {values.dtype}, {values.shape}"
                    )
                if not np.isfinite(values).all():
                    raise ValueError(f"state: the {key} of {tensor.name!r} holds a NaN or an infinity")
            arrays.append(values)
        step = check.whole(f"state: the step of {tensor.name!r}", state["step"], 0)
        compressed, summed = (check.flag(f"state: {k} of {tensor.name!r}", state[k]) for k in _FLAGS)
        memory: dict[str, Array] = {}
        parts = _parts(tensor.method)
        if state.get("parts") == parts:  # others would take it for something else
            memory = {str(key): np.array(values) for key, values in state["memory"].items()}
        residual, momentum = arrays
        return cls(step, compressed, summed, residual, momentum, memory, parts)

    def give(self, tensor: Tensor, world: World) -> None:
        """Let the tensor go on from here."""
        tensor.step, tensor.compressed, tensor.summed = self.step, self.compressed, self.summed
        tensor.codec, tensor.momentum = None, self.momentum
        if self.residual is not None:
            tensor.codec_in(world).residual = self.residual
        if self.memory:
            codec = tensor.codec_in(world)
            codec.memory = dict(self.memory)


def of(method: Method, world: World, tensors: Mapping[str, Tensor]) -> Json:
    """This rank's state."""
    return {
        "version": VERSION,
        "rank": world.rank,
        "world_size": world.size,
        "method": method.to_json(),
        "tensors": {name: Kept.of(tensor)._asdict() for name, tensor in tensors.items()},
    }


def read(
    method: Method, world: World, tensors: Mapping[str, Tensor], state: Json | list[Json], other_world: str
) -> dict[str, Kept]:
    """What this rank goes on with, of its own state or of all ranks'; ValueError where that cannot be."""
    if other_world not in _OTHER_WORLD:
        raise ValueError(f"other_world must be one of {', '.join(_OTHER_WORLD)}; got {other_world!r}")
    states = state if isinstance(state, list) else [state]
    if not states or any(not isinstance(one, dict) or one.get("version") != VERSION for one in states):
        raise ValueError(f"state must be what state_dict returned, of version {VERSION}; got {state!r:.60}")
    saved = states[0]["world_size"]
    own = [one for one in states if one["rank"] == world.rank]
    if saved == world.size and not own:
        raise ValueError(
            f"this is the state of rank {states[0]['rank']}, and residuals are each rank's own: load that of "
            f"rank {world.rank} here, or all ranks' as a list"
        )
    if saved != world.size and other_world == "refuse":
        raise ValueError(
            f"the state was kept by {saved} ranks, and there are {world.size} now; other_world='mean' keeps "
            "what they have not sent yet, 'zero' drops it"
        )
    if saved != world.size and [one["rank"] for one in states] != list(range(saved)):
        raise ValueError(f"other_world needs the states of all {saved} ranks, as a list in their order")
    if states[0]["method"] != method.to_json():
        warnings.warn(
            f"the state was kept under another method, {states[0]['method']}, and goes on under "
            f"{method.to_json()}",
            stacklevel=5,
        )
    parts = [_tensors(one, tensors) for one in (own[:1] if saved == world.size else states)]
    if saved == world.size:
        return parts[0]
    return {name: _joined([part[name] for part in parts], world.size, other_world) for name in tensors}


def _parts(method: Method) -> Json:
    """The parts that remember something, as plain data."""
    fields = agreement.plain(method)
    return {key: fields[key] for key in ("selector", "controller") if key in fields}


def _tensors(state: Json, tensors: Mapping[str, Tensor]) -> dict[str, Kept]:
    given = state["tensors"]
    if strange := sorted(tensors.keys() ^ given.keys()):
        raise ValueError(f"state must be of the same tensors; only one side has {', '.join(strange[:5])}")
    return {name: Kept.read(tensor, given[name]) for name, tensor in tensors.items()}


def _joined(ranks: Sequence[Kept], size: int, other_world: str) -> Kept:
    """What every rank of a world of another size goes on with."""
    first = ranks[0]
    factor = np.float32(len(ranks) / size if first.summed else 1)
    if not first.compressed:  # the momentum of dense steps, which is the same on all ranks
        return first._replace(momentum=None if first.momentum is None else first.momentum * factor)
    if other_world == "zero":
        return first._replace(residual=None, momentum=None)
    residual, momentum = (
        _mean([one.residual for one in ranks], factor),
        _mean([one.momentum for one in ranks], factor),
    )
    return first._replace(residual=residual, momentum=momentum)


def _mean(ranks: Sequence[Array | None], factor: np.float32) -> Array | None:
    """The mean over the ranks, multiplied by a factor; None where no rank has anything."""
    there = [values for values in ranks if values is not None]
    if not there:
        return None
    total: Array = np.sum(there, axis=0)
    return total * (factor / np.float32(len(ranks)))
