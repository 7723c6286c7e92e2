"""The user goes on with the optimizer after its terms were moved: broadcasts, checkpoints, new options."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch

import hgc_horovod.torch as hgc
from tests.cases import variants

from .equivalence import ALL, BOUND, DECAY, Hook, distance, train
from .harness import Given


@variants(before={"when": "before"}, after={"when": "after"})
def case_broadcast_state(when: str) -> None:
    """Horovod's usual broadcasts change nothing, before the compressor takes the momentum or after.

    The broadcast of an optimizer without state makes it step with zero gradients, so without weight decay.
    """

    def broadcast(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    sgd = {"lr": 0.1, "momentum": 0.9}
    found = distance(train(sgd), train(sgd, ALL, hooks={when: broadcast}))
    assert found < BOUND, found


def _reload(model: torch.nn.Module, optimizer: Any) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


def _cycle(model: torch.nn.Module, optimizer: Any, step: int) -> None:
    optimizer.param_groups[0]["momentum"] = 0.95 - 0.05 * step


@variants(constant={}, cycled={"each": _cycle})
def case_reloaded(**hooks: Hook) -> None:
    """Loading its own state halfway changes nothing, also where a scheduler changes the momentum."""
    found = distance(train(DECAY, hooks=hooks), train(DECAY, ALL, hooks={"halfway": _reload, **hooks}))
    assert found < BOUND, found


@variants(
    weight_decay_off={"weight_decay": 0.0},
    momentum_off={"momentum": 0.0},
    both={"weight_decay": 0.2, "momentum": 0.5},
)
def case_changed_by_hand(**options: float) -> None:
    """Options that the user changes between two steps hold from then on, also where they become zero."""

    def change(model: torch.nn.Module, optimizer: Any) -> None:
        optimizer.param_groups[0].update(options)

    found = distance(train(DECAY, hooks={"halfway": change}), train(DECAY, ALL, hooks={"halfway": change}))
    assert found < BOUND, found


@variants(its_own={"foreign": False}, a_plain_runs={"foreign": True})
def case_loaded_state(foreign: bool) -> None:
    """After load_state_dict the momentum is applied once: it is moved again, or an error tells what to do.

    torch replaces the parameter groups by the checkpoint's, and those of a plain run hold a momentum.
    """
    model = Given()
    state = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).state_dict()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    compressor = hgc.Compression.hgc(model.named_parameters(), **ALL, momentum_from=optimizer)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compressor
    )
    try:
        optimizer.load_state_dict(state if foreign else optimizer.state_dict())
        for step in range(2):
            optimizer.zero_grad()
            model.loss(step).backward()
            optimizer.step()
            assert optimizer.param_groups[0]["momentum"] == 0, "a second momentum beside the compressor's"
            optimizer.param_groups[0]["momentum"] = 0.5  # as a scheduler does that cycles it
    except ValueError as error:
        assert "momentum" in str(error)


def _wrapped(**options: Any) -> tuple[Given, Any, hgc.Compressor]:
    """A model, its wrapped SGD with momentum 0.9, and the compressor."""
    model = Given()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    if options.pop("move"):
        options["momentum_from"] = sgd
    compressor = hgc.Compression.hgc(model.named_parameters(), min_elements=0, inflate=True, **options)
    wrapper = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters(), compression=compressor)
    return model, wrapper, compressor


def case_masking_of_moved_momentum() -> None:
    """Masking clears the moved momentum where an entry was sent, and nowhere else."""
    model, optimizer, compressor = _wrapped(move=True, masking=True, density=0.25, bits=32)
    model.loss(0).backward()
    optimizer.step()
    codecs = [slot.codec for slot in compressor._parameters.slots if slot.codec is not None]
    assert codecs
    for codec in codecs:
        assert codec.momentum is not None
        sent = codec.residual == 0
        assert sent.sum() == codec.method.slots(codec.size)
        assert not codec.momentum[sent].any() and codec.momentum[~sent].all()


def case_two_momenta_at_the_first_step() -> None:
    """A momentum in the compressor and another in the optimizer that was wrapped: refused before the step."""
    model, optimizer, _ = _wrapped(move=False, momentum=0.5)
    start = [parameter.detach().clone() for parameter in model.parameters()]
    model.loss(0).backward()
    try:
        optimizer.step()
    except ValueError as error:
        assert "momentum=0.5" in str(error) and "momentum_from" in str(error)
    else:
        raise AssertionError("two momenta were applied")
    optimizer.synchronize()  # what is under way ends on every rank
    assert all(map(torch.equal, start, model.parameters()))


def case_another_optimizer_is_left_alone() -> None:
    """Another optimizer of the same parameters keeps its options, whatever it is, and steps."""
    model, optimizer, compressor = _wrapped(move=True)
    model.loss(0).backward()
    optimizer.step()
    torch.optim.Adam(model.parameters()).step()
    other = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.8, weight_decay=0.2)
    other.step()
    assert (other.param_groups[0]["momentum"], other.param_groups[0]["weight_decay"]) == (0.8, 0.2)
    assert "momentum 0.9, weight_decay 0.1" in str(compressor._terms)
