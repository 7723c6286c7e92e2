"""Where Horovod's own functions meet a compressor. Horovod never tells it which optimizer it has been given
to, and does not know that momentum was moved out of one."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch

from .compressor import Compressor
from .joining import compressors
from .momentum import MovedTerms

Function = Callable[..., Any]


def register() -> None:
    """Once, when the package is imported."""
    hvd.DistributedOptimizer = _introducing(hvd.DistributedOptimizer)
    hvd.broadcast_optimizer_state = _completing(hvd.broadcast_optimizer_state)


def _introducing(make: Function) -> Function:
    """`hvd.DistributedOptimizer`, which tells a compressor whose it is."""

    @functools.wraps(make)
    def made(*arguments: Any, **keywords: Any) -> Any:
        optimizer = make(*arguments, **keywords)
        if isinstance(compressor := getattr(optimizer, "_compression", None), Compressor):
            _introduce(compressor, optimizer)
        return optimizer

    return made


def _introduce(compressor: Compressor, optimizer: Any) -> None:
    if compressor.optimizer() is not None:
        raise ValueError("one compressor serves one DistributedOptimizer, and this one has another already")
    compressor.optimizer = weakref.ref(optimizer)
    if getattr(optimizer, "sparse_as_dense", False):
        optimizer._allreduce_grad_async = _announcing(compressor, optimizer._allreduce_grad_async)
    _move_again(optimizer)
    optimizer.register_load_state_dict_pre_hook(_break_off)
    optimizer.register_load_state_dict_post_hook(_move_again)


def _announcing(compressor: Compressor, reduce: Function) -> Function:
    """Horovod's method that starts to reduce a parameter's gradient, of which a compressor may see a copy."""

    @functools.wraps(reduce)
    def announced(parameter: torch.Tensor) -> Any:
        compressor._parameters.expected = parameter
        try:
            return reduce(parameter)
        finally:
            compressor._parameters.expected = None

    return announced


def _break_off(optimizer: Any, _: Any) -> None:
    """Horovod drops what is in flight where a checkpoint is loaded in the middle of a step."""
    optimizer._compression._check_arrived()
    optimizer._compression._abandon()
    optimizer._compression._step.begun = False


def _move_again(optimizer: Any) -> None:
    """The optimizer's groups are others now, and what stands in them is to be moved."""
    if isinstance(terms := optimizer._compression._terms, MovedTerms):
        terms.before_step(optimizer)


def _completing(broadcast: Function) -> Function:
    """`hvd.broadcast_optimizer_state`, where a checkpoint without compression was loaded on the root alone.

    It has momentum buffers there, and Horovod would make them on the other ranks by a step, which without
    momentum makes none: the ranks would wait for each other for ever.
    """

    @functools.wraps(broadcast)
    def completed(optimizer: torch.optim.Optimizer, root_rank: int, *rest: Any, **keywords: Any) -> Any:
        for compressor in compressors:
            terms, everyone = compressor._terms, compressor.process_set.process_set_id == 0
            if everyone and isinstance(terms, MovedTerms) and terms.covers(optimizer):
                terms.load_state(hvd.broadcast_object(terms.state(), root_rank, name="hgc.terms"))
                _match_buffers(optimizer, root_rank)
        return broadcast(optimizer, root_rank, *rest, **keywords)

    return completed


def _match_buffers(optimizer: torch.optim.Optimizer, root_rank: int) -> None:
    """Have momentum buffers where the root has them."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    own = [optimizer.state.get(p, {}).get("momentum_buffer") is not None for p in parameters]
    roots = hvd.broadcast(torch.tensor(own, dtype=torch.uint8), root_rank, name="hgc.momentum_buffers")
    for parameter, has, wanted in zip(parameters, own, roots.tolist(), strict=True):
        if wanted and not has:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        elif has and not wanted:
            del optimizer.state[parameter]["momentum_buffer"]
