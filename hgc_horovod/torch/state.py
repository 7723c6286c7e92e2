"""A compressor's state between steps: what a checkpoint holds, and what all ranks must have in common.

Residuals and velocities belong to the rank that kept them. What the optimizer would get of them in the end is
scale · mean over the ranks, with the scale of Horovod's op (1 for Average, W for Sum): that is what is kept
where a run goes on with another number of ranks. What a method's parts remember beside (`Codec.memory`) has
to be the same on all ranks, or may be any rank's: then it is the first one's.
"""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..codec import Codec
from ..core import check
from ..core.context import Memory
from ..core.method import Method
from . import tensors

if TYPE_CHECKING:
    from .compressor import Compressor
    from .parameters import Slot

VERSION = 1
_OTHER_WORLD = ("refuse", "mean", "zero")
State = dict[str, Any]


def settings(compressor: Compressor) -> State:
    """Everything that has to be the same on all ranks, as plain data."""
    return {
        "method": json.loads(compressor.method.to_json()),
        "seed": compressor.seed,
        "loss_scale": compressor._step.loss_scale if compressor._loss_scale else "none",
        "momentum_from": compressor._terms.state(),
        "parameters": {
            slot.name: {
                "shape": list(slot.parameter.shape),
                "dtype": str(slot.parameter.dtype),
                "requires_grad": slot.parameter.requires_grad,
                "method": {} if slot.method is compressor.method else json.loads(slot.method.to_json()),
                "steps so far": slot.step,
            }
            for slot in compressor._parameters.slots
        },
    }


def of(compressor: Compressor) -> State:
    """This rank's state. ValueError in the middle of a step."""
    compressor._check_between_steps("state_dict")
    compressor._step.look_around()
    for slot in compressor._parameters.slots:
        compressor._terms.of(slot.parameter)  # moves what a scheduler has written since the last step
    return {
        "version": VERSION,
        "rank": compressor._step.rank,
        "world_size": compressor._step.world,
        "method": compressor.method.to_json(),
        "scale": compressor._step.op_scale,
        "terms": compressor._terms.state(),
        "tensors": {slot.name: _of_slot(slot) for slot in compressor._parameters.slots},
    }


def load(compressor: Compressor, state: State | list[State], other_world: str) -> None:
    """Take over this rank's state, or what becomes of it in another world."""
    if other_world not in _OTHER_WORLD:
        raise ValueError(f"other_world must be one of {', '.join(_OTHER_WORLD)}; got {other_world!r}")
    compressor._check_between_steps("load_state_dict")
    compressor._step.look_around()
    rank, world = compressor._step.rank, compressor._step.world
    states = state if isinstance(state, list) else [state]
    if not states or any(not isinstance(one, dict) or one.get("version") != VERSION for one in states):
        raise ValueError(f"state must be what state_dict returned, of version {VERSION}; got {state!r:.60}")
    if states[0].get("method", compressor.method.to_json()) != compressor.method.to_json():
        warnings.warn(
            f"the state was kept under another method, {states[0]['method']}, and goes on under "
            f"{compressor.method.to_json()}; set compression.method where that is not meant",
            stacklevel=3,
        )
    saved = states[0]["world_size"]
    own = [one for one in states if one["rank"] == rank]
    if saved == world and own:
        take(compressor, own[0])
    elif saved == world:
        raise ValueError(
            f"this is the state of rank {states[0]['rank']}, and residuals are each rank's own: load that of "
            f"rank {rank} here, or all ranks' as a list"
        )
    elif other_world == "refuse":
        raise ValueError(
            f"the state was kept by {saved} ranks, and there are {world} now; other_world='mean' keeps what "
            "they have not sent yet, 'zero' drops it"
        )
    elif other_world == "zero":
        take(compressor, {**states[0], "tensors": {k: _zero(v) for k, v in states[0]["tensors"].items()}})
    elif [one["rank"] for one in states] != list(range(saved)):
        raise ValueError(
            f"other_world='mean' needs the states of all {saved} ranks, as a list in their order"
        )
    else:
        take(compressor, _mean(states, world))


def take(compressor: Compressor, state: State) -> None:
    """Take over a state, whosever it is."""
    if state["terms"] is not None and compressor._terms.state() is None:
        raise ValueError(
            f"state: its momentum and weight decay were moved out of an optimizer by momentum_from, "
            f"{state['terms']}, and here nothing is: give momentum_from; where there is one process, go on "
            "without the compressor, and write these values into the optimizer's groups, which read -0.0"
        )
    slots = {slot.name: slot for slot in compressor._parameters.slots}
    given: dict[str, State] = state["tensors"]
    if strange := sorted(slots.keys() ^ given.keys()):
        raise ValueError(f"state must be of the same parameters; only one side has {', '.join(strange[:5])}")
    for name, slot in slots.items():
        for key in ("residual", "momentum"):
            values = given[name][key]
            if values is not None and values.shape != slot.parameter.shape:
                raise ValueError(
                    f"state of {name} must have its shape, {tuple(slot.parameter.shape)}; "
                    f"got {tuple(values.shape)}"
                )
    compressor._reset()
    compressor._step.look_around()
    compressor._step.op_scale = float(state["scale"])
    compressor._terms.load_state(state["terms"])
    for name, slot in slots.items():
        _load_slot(compressor, slot, given[name])


def _of_slot(slot: Slot) -> State:
    codec, shape = slot.codec, slot.parameter.shape
    if codec is None:
        momentum = None if slot.momentum is None else slot.momentum.detach().cpu().clone()
        return {"step": slot.step, "compressed": False, "residual": None, "momentum": momentum}
    return {
        "step": slot.step,
        "compressed": True,
        "residual": torch.from_numpy(codec.residual.copy()).view(shape),
        "momentum": None if codec.momentum is None else torch.from_numpy(codec.momentum.copy()).view(shape),
        **_memory_of(slot, codec),
    }


def _memory_of(slot: Slot, codec: Codec) -> State:
    """What the method's parts keep, and whose it is."""
    if not codec.memory:
        return {}
    memory = {key: torch.from_numpy(values.copy()) for key, values in codec.memory.items()}
    return {"memory": memory, "memory_of": slot.method.to_json()}


def _memory_for(slot: Slot, state: State) -> Memory:
    """What the slot's method may take over of that: nothing of other parts."""
    if not state.get("memory"):
        return {}
    if not slot.method.remembers_like(Method.from_json(state["memory_of"])):
        return {}
    return {key: values.numpy().copy() for key, values in state["memory"].items()}


def _load_slot(compressor: Compressor, slot: Slot, state: State) -> None:
    slot.step = check.whole("step", state["step"], 0)
    slot.codec = slot.momentum = None
    residual, momentum = state["residual"], state["momentum"]
    if momentum is not None and residual is None:
        wide = torch.promote_types(slot.parameter.dtype, torch.float32)
        slot.momentum = momentum.to(slot.parameter.device, wide, copy=True)
    if not state["compressed"]:
        return
    codec = compressor._exchange.codecs.of(slot, compressor._terms.of(slot.parameter))
    memory = _memory_for(slot, state)
    if residual is None:
        codec.memory = memory
        return
    codec.load_state_dict(
        {
            "version": 1,
            "step": slot.step,
            "residual": _flat(residual),
            "momentum": None if momentum is None else _flat(momentum),
            "memory": memory,
        }
    )


def _flat(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return np.asarray(tensors.entries(tensor)[0])


def _zero(state: State) -> State:
    """Without what is one rank's own; a dense tensor's momentum is all ranks'."""
    return state if state["residual"] is None else {**state, "residual": None, "momentum": None}


def _mean(states: list[State], world_size: int) -> State:
    """What every rank of a world of another size goes on with."""
    first = states[0]
    summed = first["scale"] == first["world_size"] > 1  # op=Sum
    weight = 1 / world_size if summed else 1 / len(states)
    result = {**first, "scale": float(world_size) if summed else first["scale"], "tensors": {}}
    for name, kept in first["tensors"].items():
        result["tensors"][name] = dict(kept)
        if all(one["tensors"][name]["residual"] is None for one in states):
            continue  # a dense tensor's momentum, which all ranks have
        for key in ("residual", "momentum"):
            values = [one["tensors"][name][key] for one in states if one["tensors"][name][key] is not None]
            result["tensors"][name][key] = sum(values) * weight if values else None
    return result
