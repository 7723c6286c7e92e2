"""Hooks that users put on parameters and modules, before the optimizer is wrapped or after."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from tests.cases import variants

from .harness import OPTIONS, STEPS, Codecs, Given, backward, check, everyones, reduced, wrap
from .surroundings import loss_of, network


def _scale_in_place(p: torch.nn.Parameter) -> None:
    def scale(p: torch.nn.Parameter) -> None:
        p.grad.mul_(3)

    p.register_post_accumulate_grad_hook(scale)


def _replace(p: torch.nn.Parameter) -> None:
    def replace(p: torch.nn.Parameter) -> None:
        p.grad = 3 * p.grad

    p.register_post_accumulate_grad_hook(replace)


def _scale(p: torch.nn.Parameter) -> None:
    p.register_hook(lambda gradient: 3 * gradient)


def _watch(p: torch.nn.Parameter) -> None:
    p.register_post_accumulate_grad_hook(lambda p: p.grad.norm() and None)
    p.register_hook(lambda gradient: gradient.norm() and None)


@variants(
    in_place={"hook": _scale_in_place, "factor": 3},
    replaced={"hook": _replace, "factor": 3},
    tensor={"hook": _scale, "factor": 3},
    watching={"hook": _watch, "factor": 1},
)
def case_hooks(hook: Callable[[torch.nn.Parameter], None], factor: int) -> None:
    """What the hooks of a parameter leave of its gradient is compressed."""
    for times in ((1, 0), (0, 1), (1, 1)):
        model, codecs = Given(), Codecs(OPTIONS)
        power = factor ** sum(times)
        for p in list(model.parameters()) * times[0]:
            hook(p)
        optimizer, _ = wrap(model, OPTIONS)
        for p in list(model.parameters()) * times[1]:
            hook(p)

        def given(name: str, shape: Any, step: int, power: int = power) -> list[np.ndarray]:
            return [np.float32(power) * part for part in everyones(name, shape, step)]

        for step in reduced(optimizer, backward(model)):
            check(model, codecs, step, given=given)


@variants(before={"late": False}, after={"late": True})
def case_module_hooks(late: bool) -> None:
    """A full backward hook of the third module doubles what flows back: the first one gets twice as much."""
    model, codecs = network(), Codecs(OPTIONS)
    twin, seen = copy.deepcopy(model), []

    def double(module: Any, into: Any, out: Any) -> Any:
        seen.append(type(module).__name__)
        return (2 * into[0],)

    def register() -> None:
        model[2].register_full_backward_hook(double)
        model[4].register_full_backward_hook(lambda module, into, out: seen.append("watched"))
        model[3].register_full_backward_pre_hook(lambda module, out: seen.append("before"))

    if not late:
        register()
    optimizer, _ = wrap(model, OPTIONS)
    if late:
        register()

    def given(name: str, _: Any, step: int) -> list[np.ndarray]:
        parts = []
        for rank in range(hvd.size()):
            twin.zero_grad()
            loss_of(twin, step, rank).backward()
            parts.append(twin.get_parameter(name).grad.numpy() * np.float32(2 if name[0] == "0" else 1))
        return parts

    for step in reduced(optimizer, lambda step: loss_of(model, step).backward()):
        twin.load_state_dict(model.state_dict())
        check(model, codecs, step, given=given)
    assert sorted(seen) == sorted(STEPS * ["Linear", "watched", "before"])
