"""With everything sent exactly (density 1, 32 bits) training is plain Horovod's to float32 rounding.

That shows that momentum, Nesterov and weight decay, once moved into the compressor, are the optimizer's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import horovod.torch as hvd
import torch

import hgc_horovod.torch as hgc
from tests.cases import variants

from .harness import Given, tanh_network, values

EXACT = {"density": 1.0, "bits": 32, "inflate": True, "min_elements": 0}
ALL = {**EXACT, "min_ndim": 0}
STEPS = 8
BOUND = 1e-5  # of the largest parameter: STEPS steps of a few float32 roundings each, carried on by momentum

Path = list[dict[str, torch.Tensor]]  # the parameters after each step
Hook = Callable[..., object]


def network() -> torch.nn.Module:
    return tanh_network(11, 48, 30)


def network_loss(model: torch.nn.Module, step: int) -> torch.Tensor:
    inputs, targets = values("inputs", (16, 20), step), values("targets", (16, 5), step)
    return torch.nn.functional.mse_loss(model(torch.from_numpy(inputs)), torch.from_numpy(targets))


def given_loss(model: Given, step: int) -> torch.Tensor:
    return model.loss(step)


def build(
    model: torch.nn.Module,
    kind: type[torch.optim.Optimizer] = torch.optim.SGD,
    second: Mapping[str, Any] | None = None,
    **options: Any,
) -> torch.optim.Optimizer:
    """An optimizer with one group, or with a second one that has options of its own."""
    parameters = list(model.parameters())
    if second is None:
        return kind(parameters, **options)
    return kind([{"params": parameters[::2]}, {"params": parameters[1::2], **second}], **options)


def train(
    sgd: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    *,
    move: bool = True,
    make: Callable[[], torch.nn.Module] = network,
    loss: Callable[..., torch.Tensor] = network_loss,
    schedule: Any = None,
    hooks: Mapping[str, Hook] | None = None,
    **horovod: Any,
) -> Path:
    """Train with plain Horovod, or where `options` are given with a compressor that takes the momentum.

    `hooks` are called with the model and the optimizer: `before` and `after` the compressor is created, then
    `halfway` through the steps, and in `each` step with its number as well.
    """
    model, hooks = make(), hooks or {}
    optimizer, compressor = build(model, **sgd), hvd.Compression.none
    scheduler = schedule(optimizer) if schedule else None
    hooks.get("before", _nothing)(model, optimizer)
    if options is not None:
        attach = {"momentum_from": optimizer if move else None, "process_set": horovod.get("process_set")}
        compressor = hgc.Compression.hgc(model.named_parameters(), **options, **attach)
    hooks.get("after", _nothing)(model, optimizer)
    named = [(f"{options is None}.{name}", p) for name, p in model.named_parameters()]
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named, compression=compressor, **horovod)
    path = []
    for step in range(STEPS):
        if step == STEPS // 2:
            hooks.get("halfway", _nothing)(model, optimizer)
        hooks.get("each", _nothing)(model, optimizer, step)
        optimizer.zero_grad()
        loss(model, step).backward()
        optimizer.step()
        if scheduler:
            scheduler.step()
        path.append({name: p.detach().clone() for name, p in model.named_parameters()})
    return path


def _nothing(*_: Any) -> None:
    pass


def distance(one: Path, other: Path, step: int = -1) -> float:
    """The largest difference after a step, relative to the largest entry."""
    largest = max(p.abs().max().item() for p in one[step].values())
    return max((one[step][name] - other[step][name]).abs().max().item() for name in one[step]) / largest


DECAY = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.02}


@variants(
    plain={"lr": 0.1, "move": False},
    momentum={"lr": 0.1, "momentum": 0.9},
    momentum_left={"lr": 0.1, "momentum": 0.9, "move": False},
    decay=DECAY,
    decay_left={**DECAY, "move": False},
    nesterov={**DECAY, "nesterov": True},
    groups={**DECAY, "second": {"lr": 0.05, "momentum": 0.5, "weight_decay": 0.0}},
    groups_without={**DECAY, "second": {"momentum": 0.0, "weight_decay": 0.1}},
    groups_nesterov={**DECAY, "second": {"momentum": 0.8, "nesterov": True}},
    maximize={**DECAY, "lr": 0.02, "maximize": True},
    adamw={"kind": torch.optim.AdamW, "lr": 0.01, "weight_decay": 0.1, "eps": 1e-3, "move": False},
)
def case_average(move: bool = True, **sgd: Any) -> None:
    """All compressed; then 1-D tensors dense, whose momentum comes after averaging, like all at first."""
    plain = train(sgd)
    for options in (ALL, {**EXACT, "dense_steps": 3}):
        found = distance(plain, train(sgd, options, move=move))
        assert found < BOUND, (found, options)


@variants(heavy_ball={}, nesterov={"nesterov": True})
def case_cycled_momentum(**sgd: Any) -> None:
    """A scheduler writes another momentum into the optimizer in every step: each is moved before its use."""

    def schedule(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=STEPS + 1)

    plain = train({**DECAY, **sgd}, schedule=schedule)
    for options in (ALL, EXACT):
        found = distance(plain, train({**DECAY, **sgd}, options, schedule=schedule))
        assert found < BOUND, (found, options)


@variants(predivide={"gradient_predivide_factor": 2.0}, groups={"groups": 2})
def case_horovod(**horovod: Any) -> None:
    assert distance(train(DECAY, **horovod), train(DECAY, ALL, **horovod)) < BOUND


def case_process_set() -> None:
    """Where Horovod does not reduce, outside of a process set, the optimizer keeps its momentum."""
    subset = hvd.add_process_set(list(range(1, hvd.size())))
    found = distance(train(DECAY, process_set=subset), train(DECAY, ALL, process_set=subset))
    assert found < BOUND, found
    hvd.barrier()
    hvd.remove_process_set(subset)


@variants(
    momentum={"lr": 0.01, "momentum": 0.9, "weight_decay": 0.0},
    decay=DECAY,
    nesterov={**DECAY, "nesterov": True},
    group_without={**DECAY, "second": {"momentum": 0.0}},
    maximize={**DECAY, "maximize": True},
)
def case_sum(**sgd: Any) -> None:
    """With op=Sum each rank adds a W-th of the weight decay; the first step does not know W yet.

    It sends (W - 1)·decay·p too much, and the second step takes that back. So the parameters are off by
    lr·(W - 1)·decay·p once (twice that with Nesterov, whose first update counts a gradient nearly twice), and
    later by a second-order effect of it: below 2 % of what the weight decay does. 1-D tensors go dense, where
    W does not matter. The gradients here do not depend on the parameters.
    """
    ways = {"make": Given, "loss": given_loss, "op": hvd.Sum}
    plain, compressed = train(sgd, **ways), train(sgd, EXACT, **ways)
    without = train({**sgd, "weight_decay": 0.0}, **ways)
    effect = distance(plain, without)
    assert not sgd["weight_decay"] or effect > 100 * BOUND
    lag = sgd["lr"] * (hvd.size() - 1) * sgd["weight_decay"] * (2 if sgd.get("nesterov") else 1)
    assert distance(plain, compressed, step=0) <= 1.5 * lag + BOUND  # of the step's largest parameter
    assert distance(plain, compressed) < 0.02 * effect + BOUND
