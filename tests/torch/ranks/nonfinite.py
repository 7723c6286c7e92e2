"""A NaN or an infinity on one rank: all ranks see it in that tensor, and in nothing else, now or later."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

import hgc_horovod.torch as hgc
from tests.cases import variants

from .harness import (
    OPTIONS,
    SHAPES,
    STEPS,
    Codecs,
    Given,
    backward,
    check,
    close,
    everyones,
    reduced,
    slot,
    values,
    wrap,
)

BAD = 3  # the step before which a step with a broken gradient comes
EXTRA = 100  # the number that `values` gets for that step
UNDONE = 1e-5  # what taking a step back leaves of float32 rounding, relative to the largest entry


def fill(model: Given, step: int, spoiled: str = "", value: float = np.nan, rank: int = 0) -> None:
    """The gradients of a step, without a backward pass; one of them broken on one rank."""
    for name, p in model.named_parameters():
        p.grad = torch.from_numpy(values(name, p.shape, step))
        if name == spoiled and hvd.rank() == rank % hvd.size():
            p.grad.view(-1)[7] = value


def memory(compressor: Any, name: str) -> dict[str, np.ndarray]:
    """Copies of what is kept of a tensor."""
    codec, buffer = slot(compressor, name).codec, slot(compressor, name).momentum
    dense = {"momentum": None if buffer is None else buffer.numpy()}
    kept = dense if codec is None else {"residual": codec.residual, "momentum": codec.momentum}
    return {key: array.copy() for key, array in kept.items() if array is not None}


def broken_step(
    model: Given,
    optimizer: Any,
    compressor: Any,
    value: float = np.nan,
    rank: int = 0,
    spoiled: str = "matrix",
    scale: float = 1,
) -> None:
    """Reduce a step in which a rank's gradient of `spoiled` is broken.

    Every rank takes its whole step back to float32 rounding, and no gradient can be used by mistake.
    """
    names = [name for name, _ in model.named_parameters()]
    before = {name: (memory(compressor, name), slot(compressor, name).step) for name in names}
    optimizer.zero_grad()
    fill(model, EXTRA, spoiled, value, rank)
    for p in model.parameters():
        p.grad.mul_(scale)
    optimizer.synchronize()
    assert not getattr(model, spoiled).grad.isfinite().all()
    for name, (kept, step) in before.items():
        after = memory(compressor, name)
        assert after.keys() == kept.keys()
        for key, array in kept.items():
            close(torch.from_numpy(after[key]), array, bound=UNDONE, what=f"{key} of {name}")
        assert slot(compressor, name).step == step, "the ranks' schedules part here"
        if slot(compressor, name).codec is not None:
            assert getattr(model, name).grad.isnan().all(), name


@variants(
    nan={},
    infinity={"value": -np.inf},
    last_rank={"rank": -1},
    exploding={"scale": 1e10, "momentum": 0.9},
    dense={"spoiled": "bias"},
    dense_with_momentum={"spoiled": "bias", "momentum": 0.9, "value": np.inf},
    no_feedback={"feedback": False},
    momentum={"momentum": 0.9},
    nesterov={"momentum": 0.9, "nesterov": True},
    masking={"momentum": 0.9, "masking": True},
    clip={"clip": 3.0},
    one_bit={"bits": 1},
    everything={"momentum": 0.9, "nesterov": True, "masking": True, "clip": 3.0, "bits": 2},
    warm_up={"warmup_steps": 8, "warmup_stages": 8},
    dense_from_then_on={"warmup_steps": 2 * BAD + 2, "warmup": [0.1, 1.0], "bits": 32},
)
def case_broken(
    value: float = np.nan, rank: int = 0, spoiled: str = "matrix", scale: float = 1, **options: Any
) -> None:
    """The broken step is skipped; before and after it all gradients are what the codecs say."""
    options = {**OPTIONS, **options}
    model, codecs = Given(), Codecs(options)
    optimizer, compressor = wrap(model, options)
    for step in reduced(optimizer, backward(model), range(BAD)):
        check(model, codecs, step)
    broken_step(model, optimizer, compressor, value, rank, spoiled, scale)
    for step in reduced(optimizer, backward(model), range(BAD, BAD + STEPS)):
        for name, p in model.named_parameters():
            expected = codecs.mean(name, everyones(name, p.shape, step))
            close(p.grad, expected, bound=UNDONE, what=f"{name}, step {step}")


@variants(
    average={},
    average_nesterov={"nesterov": True},
    sum={"op": hvd.Sum},
    sum_nesterov={"op": hvd.Sum, "nesterov": True},
)
def case_moved_terms(op: Any = hvd.Average, nesterov: bool = False) -> None:
    """With the optimizer's momentum and weight decay, training goes on as if the broken step had not been."""
    paths = []
    for broken in (False, True):
        model = Given({"matrix": SHAPES["matrix"]})
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.05, nesterov=nesterov)
        compressor = hgc.Compression.hgc(model.named_parameters(), **OPTIONS, momentum_from=sgd)
        optimizer = hvd.DistributedOptimizer(
            sgd, named_parameters=model.named_parameters(), op=op, compression=compressor
        )
        for step in range(BAD + STEPS):
            if broken and step == BAD:
                broken_step(model, optimizer, compressor)
                optimizer.zero_grad()
            model.loss(step).backward()
            optimizer.step()
            optimizer.zero_grad()
        paths.append(model.matrix.detach().numpy())
    close(torch.from_numpy(paths[1]), paths[0], bound=UNDONE)


def case_first_step() -> None:
    """A broken gradient before any state exists, and before the scale of op=Sum is known."""
    model, codecs = Given(), Codecs(OPTIONS)
    optimizer, compressor = wrap(model, OPTIONS, op=hvd.Sum)
    fill(model, EXTRA, "matrix", rank=1)
    optimizer.synchronize()
    assert model.matrix.grad.isnan().all() and slot(compressor, "matrix").step == 0
    assert slot(compressor, "bias").step == 0
    for step in reduced(optimizer, backward(model)):
        for name, p in model.named_parameters():
            expected = hvd.size() * codecs.mean(name, everyones(name, p.shape, step))
            close(p.grad, expected, bound=UNDONE, what=f"{name}, step {step}")


def case_overflow_of_half() -> None:
    """Float16 gradients that overflow on one rank, as under a loss scale that is too high."""
    model = Given(dtype=torch.float16)
    optimizer, compressor = wrap(model, OPTIONS)

    def scaled(step: int) -> None:
        (model.loss(step) * (1e5 if step == 2 and hvd.rank() == 1 else 1.0)).backward()

    for step in reduced(optimizer, scaled):
        for name, p in model.named_parameters():
            assert p.grad.isfinite().all() == (step != 2), (name, step)
            if step == 2:
                p.grad.zero_()
    assert slot(compressor, "matrix").step == slot(compressor, "other").step == STEPS - 1


@variants(nan={"value": np.nan}, infinity={"value": np.inf})
def case_dense_momentum(value: float) -> None:
    """Dense momentum takes up nothing of a broken step: later ones are those of a run without it."""
    options = {**OPTIONS, "momentum": 0.9}
    model, codecs = Given({"bias": (40,), "small": (5, 5)}), Codecs(options)
    optimizer, _ = wrap(model, options)

    def spoil(step: int) -> None:
        fill(model, step, "bias" if step == 2 else "", value, rank=1)

    for step in reduced(optimizer, spoil, range(6)):
        if step == 2:
            assert not model.bias.grad.isfinite().all()
            optimizer.zero_grad()
        else:
            check(model, codecs, step)
