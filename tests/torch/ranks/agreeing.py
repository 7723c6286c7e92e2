"""Errors of one rank, and settings that differ, are told on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import horovod.torch as hvd
import torch

import hgc_horovod.torch as hgc
from hgc_horovod import Codec, methods
from hgc_horovod.torch import payloads
from tests.cases import variants

from .harness import (
    OPTIONS,
    Codecs,
    Given,
    accumulating,
    backward,
    check,
    raises,
    reduced,
    slot,
    wrap,
)


def first() -> bool:
    return hvd.rank() == 0


def options(**changed: Any) -> Callable[[], Any]:
    """A compressor with other options on the first rank."""

    def make() -> Any:
        return wrap(Given(), {**OPTIONS, **(changed if first() else {})})

    return make


def attach(**changed: Any) -> Callable[[], Any]:
    return lambda: wrap(Given(), OPTIONS, attach=changed if first() else {})


def shapes(**changed: tuple[int, ...]) -> Callable[[], Any]:
    usual = {"matrix": (48, 32), "other": (30, 50)}
    return lambda: wrap(Given(changed if first() else usual), OPTIONS)


def moved(**changed: Any) -> Callable[[], Any]:
    """Another checkpoint was loaded on the first rank, before its momentum was moved."""

    def make() -> Any:
        model = Given()
        terms = {"momentum": 0.9, "weight_decay": 0.1, **(changed if first() else {})}
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, **terms)
        compressor = hgc.Compression.hgc(model.named_parameters(), **OPTIONS, momentum_from=sgd)
        return hvd.DistributedOptimizer(
            sgd, named_parameters=model.named_parameters(), compression=compressor
        ), compressor

    return make


def resumed() -> Any:
    """The first rank alone goes on from a checkpoint."""
    optimizer, compressor = wrap(Given(), OPTIONS)
    if first():
        state = compressor.state_dict()
        for kept in state["tensors"].values():
            kept["step"] = 7
        compressor.load_state_dict(state)
    return optimizer, compressor


def scaled() -> Any:
    """A GradScaler's state was restored on the first rank only."""
    scale = 8.0 if first() else 16.0
    return wrap(Given(), OPTIONS, attach={"loss_scale": lambda: scale})


def frozen() -> Any:
    """The first rank does not train a tensor that the others do."""
    model = Given()
    model.other.requires_grad_(not first())
    return wrap(model, OPTIONS)


@variants(
    density={"make": options(density=0.1), "words": ["density"]},
    bits={"make": options(bits=2), "words": ["quantizer", "bits"]},
    warm_up={"make": options(warmup_steps=8), "words": ["schedule"]},
    seed={"make": attach(seed=3), "words": ["seed", "3"]},
    loss_scale={"make": attach(loss_scale=lambda: 1.0), "words": ["loss_scale"]},
    scale={"make": scaled, "words": ["loss_scale", "8.0", "16.0"]},
    policy={"make": attach(policy=[("bias", methods.dense())]), "words": ["bias", "method"]},
    shape={"make": shapes(matrix=(48, 33), other=(30, 50)), "words": ["matrix", "33"]},
    missing={"make": shapes(matrix=(48, 32)), "words": ["other", "missing"]},
    another={"make": shapes(matrix=(48, 32), others=(30, 50)), "words": ["other", "missing"]},
    momentum={"make": moved(momentum=0.8), "words": ["momentum", "0.8", "0.9"]},
    weight_decay={"make": moved(weight_decay=0.2), "words": ["weight_decay", "0.2", "0.1"]},
    frozen={"make": frozen, "words": ["other", "requires_grad"]},
    resumed={"make": resumed, "words": ["steps so far", "7"]},
)
def case_settings(make: Callable[[], Any], words: list[str]) -> None:
    """The first backward pass says on every rank what differs, and between which ranks."""
    optimizer, _ = make()
    model = {group["params"][0].shape: group["params"] for group in optimizer.param_groups}
    loss = sum(p.sum() for parameters in model.values() for p in parameters if p.requires_grad)
    raises(ValueError, ["same settings", "rank 0", "rank 1", *words], loss.backward)


def failing(rank: int, name: str, error: Exception) -> Any:
    """Codecs of one name that raise on one rank."""
    encode = Codec.encode

    def broken(self: Codec, *arguments: Any, **keywords: Any) -> Any:
        if self.name == name and hvd.rank() == rank:
            raise error
        return encode(self, *arguments, **keywords)

    return mock.patch.object(Codec, "encode", broken)


@variants(
    first_step={"after": 0}, later={"after": 2}, last_rank={"after": 1, "rank": -1}, groups={"groups": 2}
)
def case_failure(after: int = 0, rank: int = 0, groups: int | None = None) -> None:
    """What one rank could not do, all ranks report, with the rank and the tensor."""
    model = Given()
    optimizer, compressor = wrap(model, OPTIONS, groups=groups)
    for _ in reduced(optimizer, backward(model), range(after)):
        pass
    rank %= hvd.size()
    before = None if not after else slot(compressor, "matrix").codec.residual.copy()
    with failing(rank, "other", MemoryError("no more")):
        model.loss(after).backward()
        words = [f"rank {rank}", "'other'", "MemoryError", "no more"]
        raises(hgc.CompressionError, words, optimizer.synchronize)
    if before is not None:  # an elastic job goes on from a commit; nothing is left in flight
        compressor._reset()
        assert abs(slot(compressor, "matrix").codec.residual - before).max() < 1e-5


def _in_place(gradient: torch.Tensor) -> None:
    gradient.mul_(0.5)


def _elsewhere(gradient: torch.Tensor) -> None:
    gradient.data = gradient.data.clamp(-0.1, 0.1)


@variants(in_place={"change": _in_place}, elsewhere={"change": _elsewhere})
def case_changed_in_flight(change: Callable[[torch.Tensor], None]) -> None:
    """A gradient that is clipped or unscaled before it was synchronized, here on one rank."""
    model = Given()
    optimizer, _ = wrap(model, OPTIONS)
    model.loss(0).backward()
    if first():
        change(model.other.grad)
    words = ["rank 0", "'other'", "changed", "synchronize()", "skip_synchronize"]
    raises(hgc.CompressionError, words, optimizer.step)


@variants(memory={}, written={"written": True}, groups={"groups": 2}, passes={"backward_passes_per_step": 2})
def case_going_on_after_a_failure(written: bool = False, **horovod: Any) -> None:
    """discard() drops what a failed step has left, and the steps after it are as if it had not been."""
    model, codecs = Given(), Codecs(OPTIONS)
    optimizer, compressor = wrap(model, OPTIONS, **horovod)
    passes = horovod.get("backward_passes_per_step", 1)

    fill, given = accumulating(model, passes)
    for step in reduced(optimizer, fill, range(2)):
        check(model, codecs, step, given=given)
    for _ in range(2):
        optimizer.zero_grad()
        with failing(1, "none" if written else "other", MemoryError("no more")):
            fill(7)
            if written:
                model.other.grad.mul_(1.0)
            raises(hgc.CompressionError, ["'other'"], optimizer.step)
        compressor.discard(optimizer)
    for step in reduced(optimizer, fill, range(2, 4)):
        check(model, codecs, step, given=given)


def case_payload_that_cannot_be_counted() -> None:
    """Payloads of more bytes than Horovod's int counts are refused, not sent, and what was kept stays."""
    model, codecs = Given(), Codecs(OPTIONS)
    optimizer, compressor = wrap(model, OPTIONS)
    with mock.patch.object(payloads, "_MOST_BYTES", 150 * hvd.size()):
        model.loss(0).backward()
        raises(hgc.CompressionError, ["kernel", "payloads", "count"], optimizer.synchronize)
    compressor.discard(optimizer)
    for step in reduced(optimizer, backward(model)):
        check(model, codecs, step)


def case_tensor_that_cannot_be_counted() -> None:
    huge = torch.nn.Parameter(torch.empty(2**16, 2**15, device="meta"))
    raises(ValueError, ["named_parameters", "2^31"], hgc.Compression.hgc, [("huge", huge)])


def case_join() -> None:
    """A rank that runs out of data is told so before the others wait for it."""
    model = Given()
    optimizer, compressor = wrap(model, OPTIONS)
    for _ in reduced(optimizer, backward(model)):
        pass
    raises(RuntimeError, ["join", "drop_last", "barrier"], hvd.join)
    assert compressor is not None
