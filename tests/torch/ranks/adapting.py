"""Methods that remember: bits that follow the training, checkpoints, and momentum where nothing is kept."""

from __future__ import annotations

import json
import warnings
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

import hgc_horovod.torch as hgc
from tests.cases import variants

from .checkpoints import END, HALF, shared_directory
from .harness import SHAPES, Given, close, everyones, raises, reduced, slot, wrap
from .literature import CONTROLLED, METHODS, SEED, Ranks, fill, kept

ATTACH = {"seed": SEED}
COMPRESSED = ("matrix", "other")
FEW = {name: SHAPES[name] for name in (*COMPRESSED, "bias")}
REMEMBERING = ("powersgd", "adaqs", "aiot_partition", "gradient_dropping_model", "dqsgd", "budget")


def loss_of(step: int, rank: int) -> float:
    return float(np.cos(step)) + rank


@variants(**{name: {"name": name} for name in ("adaqs", "dqsgd", "oland_raj", "mqgrad", "budget")})
def case_bits_over_time(name: str) -> None:
    """The report tells each tensor's bits as the codecs had them, the same on all ranks."""
    model, ranks = Given(FEW), Ranks(CONTROLLED[name])
    optimizer, compressor = wrap(model, CONTROLLED[name], attach=ATTACH)
    runs: dict[str, list[tuple[int, int]]] = {tensor: [] for tensor in COMPRESSED}
    optimizer.zero_grad()
    for step in range(8):
        loss = loss_of(step, hvd.rank())
        compressor.report_loss(loss if step % 2 else torch.tensor([loss], dtype=torch.float64))
        for rank, peers in enumerate(ranks.peers):
            peers.loss = loss_of(step, rank)
        fill(model, step)
        for p in model.parameters():
            p.grad *= 2.0**-step
        optimizer.synchronize()
        ranks.check(model, step, given=lambda *given: [2.0 ** -given[2] * g for g in everyones(*given)])
        with optimizer.skip_synchronize():
            optimizer.step()
        for tensor, told in runs.items():
            bits = ranks.codecs[tensor][0].bits
            if not told or told[-1][1] != bits:
                told.append((step, bits))
    report = compressor.report()
    rows = {row.name: row.bits for row in report.tensors}
    assert {tensor: rows[tensor] for tensor in runs} == runs
    assert rows["bias"] == [] and json.dumps(report.to_dict()["tensors"])
    assert all(told == runs for told in hvd.allgather_object(runs, name="runs"))
    assert len(runs["matrix"]) > 1 and "→" in str(report) and " bits" in str(report), runs


def case_wrong_losses() -> None:
    report = wrap(Given(FEW), METHODS["qsgd"])[1].report_loss
    for wrong in (None, True, "1.0", torch.zeros(2), [1.0], 1j):
        raises(ValueError, ["value", "number"], report, wrong)
    report(float("nan"))  # a training that has failed is not the compressor's to tell
    report(np.float32(1.0))


@variants(**{name: {"name": name} for name in REMEMBERING})
def case_resume(name: str) -> None:
    """A run that goes on from its checkpoint is the one that was not interrupted, to the bit. What Horovod
    averages, three ranks' vectors, it adds in an order that depends on which others it sends with them."""
    exact = hvd.size() == 2 or not METHODS[name].by_allreduce
    runs = []
    for stop in (END, HALF):
        model = Given(FEW)
        optimizer, compressor = wrap(model, METHODS[name], attach=ATTACH)
        for _ in reduced(optimizer, lambda step, model=model: fill(model, step), range(stop)):
            pass
        runs.append((model, compressor))
    (whole, uninterrupted), (half, compressor) = runs
    second = Given(FEW)
    second.load_state_dict(half.state_dict())
    with shared_directory() as directory:
        compressor.save(directory)
        hvd.barrier()
        optimizer, resumed = wrap(second, METHODS[name], attach=ATTACH)
        resumed.load(directory)
    for _ in reduced(optimizer, lambda step: fill(second, step), range(HALF, END)):
        pass
    for tensor in COMPRESSED:
        close(getattr(second, tensor), getattr(whole, tensor).detach().numpy(), bound=1e-4, what=tensor)
        now, was = kept(resumed, tensor), kept(uninterrupted, tensor)
        assert now.keys() == was.keys() and len(now) > 1
        if exact:
            assert torch.equal(getattr(second, tensor), getattr(whole, tensor)), tensor
            assert all(np.array_equal(now[key], was[key]) for key in was), tensor


@variants(**{name: {"name": name} for name in ("powersgd", "adaqs")})
def case_memory_elsewhere(name: str) -> None:
    """In another world all ranks go on with what the first one remembers; another method forgets it."""
    model = Given(FEW)
    optimizer, compressor = wrap(model, METHODS[name], attach=ATTACH)
    for _ in reduced(optimizer, lambda step: fill(model, step), range(3)):
        pass
    state = {**compressor.state_dict(), "world_size": 9}
    states = [{**state, "rank": rank} for rank in range(9)]
    for rank, one in enumerate(states):
        entry = one["tensors"]["matrix"]
        memory = {key: values + rank for key, values in entry["memory"].items()}
        one["tensors"] = {**one["tensors"], "matrix": {**entry, "memory": memory}}
    first = {key: values.numpy() for key, values in states[0]["tensors"]["matrix"]["memory"].items()}
    for given, other_world in ((states, "mean"), (states[0], "zero")):
        compressor.load_state_dict(given, other_world=other_world)
        codec = slot(compressor, "matrix").codec
        assert codec.memory.keys() == first.keys()
        assert all(np.array_equal(codec.memory[key], first[key]) for key in first)
        for _ in reduced(optimizer, lambda step: fill(model, step), range(3, 5)):
            pass
    _, other = wrap(Given(FEW), METHODS["ef_signsgd"].with_feedback(momentum=0.0), attach=ATTACH)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other.load_state_dict(compressor.state_dict())
    assert any("another method" in str(one.message) for one in caught)
    assert slot(other, "matrix").codec.memory == {} and slot(other, "matrix").step == 5


@variants(qsgd={"name": "qsgd"}, signsgd={"name": "signsgd"}, adaqs={"name": "adaqs"})
def case_nothing_to_correct(name: str) -> None:
    """momentum_from leaves the momentum to the optimizer, with a warning, where a method keeps nothing."""
    model, plain = Given(FEW), Given(FEW)
    sgd: Any = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}
    inner, other = (torch.optim.SGD(each.parameters(), **sgd) for each in (model, plain))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compressor = hgc.Compression.from_method(
            METHODS[name], model.named_parameters(), momentum_from=inner, **ATTACH
        )
    (warning,) = (str(one.message) for one in caught)
    assert name in warning and "momentum_from" in warning
    assert inner.param_groups[0]["momentum"] == 0.9 and inner.param_groups[0]["weight_decay"] == 0.05
    optimizer = hvd.DistributedOptimizer(
        inner, named_parameters=model.named_parameters(), compression=compressor
    )
    for _ in reduced(optimizer, lambda step: fill(model, step), range(3)):
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            q.grad = p.grad.clone()
        other.step()
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
