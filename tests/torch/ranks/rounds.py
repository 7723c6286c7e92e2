"""Methods that average vectors in rounds: gradients in any order, steps that fail, and what overflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import horovod.torch as hvd
import numpy as np
import torch

import hgc_horovod.torch as hgc
from hgc_horovod import Codec, Method, methods
from hgc_horovod.core import matrices
from tests.cases import variants

from .harness import SHAPES, STEPS, Given, accumulating, close, everyones, raises, reduced, slot, values, wrap
from .literature import AVERAGED, METHODS, SEED, Ranks, fill, kept

POWER = METHODS["powersgd"]
ATTACH = {"seed": SEED}
MIXED = [("kernel", methods.qsgd()), ("other", METHODS["random_k"].with_feedback(momentum=0.0))]


def backward_in_own_order(model: Given, step: int) -> None:
    """The gradients come in another order on every rank, and one of them on no rank but the first."""
    named = list(model.named_parameters())
    turn = (step + hvd.rank()) % len(named)
    for name, p in named[turn:] + named[:turn]:
        if not name.endswith("other") or hvd.rank() == 0:
            (p * torch.from_numpy(values(name, p.shape, step))).sum().backward()


def given_in_own_order(name: str, shape: Sequence[int], step: int) -> list[np.ndarray]:
    gradients = everyones(name, shape, step)
    if not name.endswith("other"):
        return gradients
    return [gradients[0], *(0 * gradient for gradient in gradients[1:])]


def case_orders() -> None:
    """Two optimizers at once, whose gradients come in another order on every rank; missing ones are zero."""
    runs = []
    for prefix, method in (("first_", POWER), ("second_", methods.powersgd(1))):
        model = Given({prefix + name: shape for name, shape in SHAPES.items()})
        runs.append((model, *wrap(model, method, attach=ATTACH), Ranks(method)))
    for step in range(STEPS):
        turned = step > 0 and (step + hvd.rank()) % 2  # in the first one settings are compared, with patience
        for model, optimizer, *_ in reversed(runs) if turned else runs:
            optimizer.zero_grad()
            backward_in_own_order(model, step)
        for model, optimizer, _, ranks in runs:
            optimizer.synchronize()
            ranks.check(model, step, given=given_in_own_order)
            with optimizer.skip_synchronize():
                optimizer.step()
    for model, _, compressor, _ in runs:
        assert all(slot(compressor, name).step == STEPS for name, _ in model.named_parameters())


@variants(groups={"groups": 2}, passes={"passes": 2}, predivided={"gradient_predivide_factor": 2.0})
def case_horovods_ways(passes: int = 1, **horovod: Any) -> None:
    for method in (POWER, METHODS["random_k"]):
        model, ranks = Given(), Ranks(method)
        optimizer, _ = wrap(model, method, attach=ATTACH, backward_passes_per_step=passes, **horovod)
        make, given = accumulating(model, passes)
        for step in reduced(optimizer, make, range(3)):
            ranks.check(model, step, given=given)


def case_beside_payloads() -> None:
    """Some tensors in two rounds, some in one, some as payloads, one dense; bytes are counted for each."""
    model = Given()
    optimizer, compressor = wrap(model, POWER, attach={**ATTACH, "policy": MIXED})
    by_name = {"matrix": POWER, "kernel": MIXED[0][1], "other": MIXED[1][1], "bias": methods.dense()}
    ranks = {name: Ranks(method) for name, method in by_name.items()}
    for step in reduced(optimizer, lambda step: fill(model, step), range(3)):
        for name, p in model.named_parameters():
            expected = ranks[name].reduce(name, everyones(name, p.shape, step))
            close(p.grad, expected, bound=AVERAGED, what=f"{name}, step {step}")
    rows = {row.name: row for row in compressor.report().tensors}
    control = 8  # bytes that Horovod reduces beside
    assert rows["matrix"].sent_bytes == rows["matrix"].payload_bytes == 3 * (4 * 2 * (48 + 32) + control)
    assert rows["other"].sent_bytes == rows["other"].payload_bytes == 3 * (4 * 75 + control)
    fill(model, 3, "bias")  # NaN: the second round is not begun
    optimizer.synchronize()
    row = next(row for row in compressor.report().tensors if row.name == "matrix")
    assert row.sent_bytes == rows["matrix"].sent_bytes + 4 * 2 * 48 + control


@variants(discard={"ending": "discard"}, failure={"ending": "failure"})
def case_broken_off(ending: str) -> None:
    """A step that the user drops, or that one rank cannot make, leaves no trace on any."""
    model, ranks = Given(), Ranks(POWER)
    optimizer, compressor = wrap(model, POWER, attach=ATTACH)
    for step in reduced(optimizer, lambda step: model.loss(step).backward(), range(2)):
        ranks.check(model, step)
    before = {name: kept(compressor, name) for name in ("matrix", "other")}
    start = Codec.rounds

    def failing(self: Codec, *arguments: Any, **keywords: Any) -> Any:
        if ending == "failure" and self.name == "other" and hvd.rank() == 1:
            raise MemoryError("no more")
        return start(self, *arguments, **keywords)

    optimizer.zero_grad()
    with mock.patch.object(Codec, "rounds", failing):
        model.loss(7).backward()
    if ending == "failure":
        words = ["rank 1", "'other'", "no more"]
        raises(hgc.CompressionError, words, optimizer.synchronize)
    compressor.discard(optimizer)
    for name, was in before.items():
        now = kept(compressor, name)
        assert now.keys() == was.keys() and all(np.array_equal(now[key], was[key]) for key in was), name
    for step in reduced(optimizer, lambda step: model.loss(step).backward(), range(2, 4)):
        ranks.check(model, step)


@variants(
    products={"method": POWER, "scale": 1e38},
    sums={"method": METHODS["random_k"], "scale": 2e38},
)
def case_overflow(method: Method, scale: float) -> None:
    """Where a sum over the ranks is not finite, that tensor is NaN, and as before, on all ranks alike."""
    model, ranks = Given(), Ranks(method)
    optimizer, compressor = wrap(model, method, attach=ATTACH)
    fill(model, 0)
    model.matrix.grad = torch.full_like(model.matrix, scale)
    optimizer.synchronize()
    assert model.matrix.grad.isnan().all() and slot(compressor, "matrix").step == 0
    assert not slot(compressor, "matrix").codec.residual.any()
    assert slot(compressor, "kernel").step == 1 and model.kernel.grad.isfinite().all()
    compressor.load_state_dict(wrap(Given(), method, attach=ATTACH)[1].state_dict())
    for step in reduced(optimizer, lambda step: fill(model, step), range(2)):
        ranks.check(model, step)


def case_failure_between_rounds() -> None:
    """It is raised where it happened; the other ranks do not wait, get NaN, and keep what they had."""
    model = Given({"matrix": SHAPES["matrix"]})
    optimizer, compressor = wrap(model, POWER, attach=ATTACH)
    for _ in reduced(optimizer, lambda step: fill(model, step), range(2)):
        pass
    before = kept(compressor, "matrix")
    fill(model, 2)
    if hvd.rank() == 1:
        with mock.patch.object(matrices, "_orthogonal", side_effect=MemoryError("no more")):
            raises(MemoryError, ["no more"], optimizer.synchronize)
    else:
        optimizer.synchronize()
        assert model.matrix.grad.isnan().all()
    now = kept(compressor, "matrix")
    assert all(np.array_equal(now[key], was) for key, was in before.items())


@variants(heavy_ball={}, nesterov={"nesterov": True})
def case_moved_momentum(**sgd: Any) -> None:
    """With all entries sent, momentum and weight decay that were moved are the optimizer's own."""
    sgd = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05, **sgd}
    exact = methods.memsgd(1.0, selection="random_k", inflate=True, min_elements=0, min_ndim=0)
    paths = []
    for method in (None, exact):
        model = Given()
        inner = torch.optim.SGD(model.parameters(), **sgd)
        compression: Any = hvd.Compression.none
        named = [(f"{method is None}.{name}", p) for name, p in model.named_parameters()]
        if method is not None:
            compression = hgc.Compression.from_method(method, named, momentum_from=inner)
        optimizer = hvd.DistributedOptimizer(inner, named_parameters=named, compression=compression)
        for step in range(STEPS):
            optimizer.zero_grad()
            model.loss(step).backward()
            optimizer.step()
        paths.append([p.detach() for p in model.parameters()])
    for plain, moved in zip(*paths, strict=True):
        close(moved, plain.numpy(), bound=1e-5)
