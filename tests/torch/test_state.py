"""What `TorchState` does with a compressor, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from horovod.torch import mpi_ops
from horovod.torch.elastic.state import get_handler_registry

import hgc_horovod.torch as hgc
from hgc_horovod import Method, methods
from hgc_horovod.torch import elastic

from .elastic_program import same
from .ranks.harness import OPTIONS, Given, wrap


@pytest.fixture(scope="module")
def elastic_job(alone: None) -> Iterator[None]:
    """One rank of an elastic job, on which Horovod reduces like on several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_ELASTIC", "1")
        yield


def train(model: Given, optimizer: Any, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        model.loss(step).backward()
        optimizer.step()


def test_registered_once() -> None:
    elastic.register()
    assert sum(kind is hgc.Compressor for kind, _ in get_handler_registry()) == 1


@pytest.mark.parametrize(
    "method",
    [
        methods.hgc(**OPTIONS, momentum=0.9),
        methods.powersgd(momentum=0.9),
        methods.adaqs(2, decay=0.3),
        methods.gradient_dropping(0.05, threshold="model"),
    ],
    ids=str,
)
def test_restore(elastic_job: None, monkeypatch: pytest.MonkeyPatch, method: Method) -> None:
    """In the middle of a step, back to the commit before the last step: the same two steps again are the same
    to the bit, and nothing of the broken one is left at Horovod."""
    handles, start = [], hvd.allreduce_async if method.by_allreduce else hvd.allgather_async

    def recorded(*args: Any, **named: Any) -> int:
        handles.append(start(*args, **named))
        return handles[-1]

    monkeypatch.setattr(hvd, start.__name__, recorded)
    model = Given()
    optimizer, compressor = wrap(model, method)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, compression=compressor)
    train(model, optimizer, range(3))
    state.save()
    committed = compressor.state_dict()["tensors"]
    paths = []
    for _ in range(2):
        train(model, optimizer, range(3, 5))
        paths.append((compressor.state_dict()["tensors"], [p.detach().clone() for p in model.parameters()]))
        optimizer.zero_grad()
        model.loss(5).backward()
        assert any(handle in mpi_ops._handle_map for handle in handles)
        state.restore()
        assert not any(handle in mpi_ops._handle_map for handle in handles)
        restored = compressor.state_dict()["tensors"]
        assert all(same(entry, restored[name]) for name, entry in committed.items())
    (before, weights), (after, others) = paths
    assert all(same(entry, after[name]) for name, entry in before.items())
    assert not any(same(entry, committed[name]) for name, entry in before.items())
    assert all(torch.equal(one, other) for one, other in zip(weights, others, strict=True))


def test_memory_is_rank_0s() -> None:
    """What a method's parts remember is the same on all ranks, also on a new one."""
    first, own = (state_of(rank, compressed=(7, 1.0, 2.0)) for rank in range(2))
    first["tensors"]["compressed"].update(memory={"q": torch.ones(3)}, memory_of="a method")
    for memory in ({}, {"memory": {"q": torch.zeros(3)}, "memory_of": "a method"}):
        own["tensors"]["compressed"].update(memory)
        (merged,) = elastic._merged(own, elastic._common(first))["tensors"].values()
        assert torch.equal(merged["memory"]["q"], torch.ones(3)) and merged["memory_of"] == "a method"


def test_process_set(elastic_job: None) -> None:
    compressor = hgc.Compression.hgc(Given().named_parameters(), process_set=hvd.ProcessSet([0]))
    with pytest.raises(ValueError, match="process_set"):
        hvd.elastic.TorchState(compression=compressor)


def state_of(rank: int, **tensors: tuple[int, float | None, float | None]) -> dict[str, Any]:
    """A compressor's state: each tensor's step, residual and momentum."""

    def entry(name: str, step: int, *values: float | None) -> dict[str, Any]:
        residual, momentum = (None if value is None else torch.full((2,), value) for value in values)
        compressed = name == "compressed"
        return {"step": step, "compressed": compressed, "residual": residual, "momentum": momentum}

    return {
        "version": 1,
        "rank": rank,
        "world_size": 3,
        "method": "all ranks'",
        "scale": 1.0 + rank,
        "terms": {"of": rank},
        "tensors": {name: entry(name, *values) for name, values in tensors.items()},
    }


FIRST = state_of(0, dense=(7, None, 0.5), compressed=(7, 1.0, 2.0))


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        pytest.param(FIRST, FIRST, id="first"),
        pytest.param(
            state_of(1, dense=(7, None, 0.5), compressed=(7, 3.0, 4.0)),
            state_of(1, dense=(7, None, 0.5), compressed=(7, 3.0, 4.0)),
            id="survivor",
        ),
        pytest.param(
            state_of(1, dense=(0, None, None), compressed=(0, None, None)),
            state_of(1, dense=(7, None, 0.5), compressed=(7, None, None)),
            id="new",
        ),
        pytest.param(
            state_of(1, dense=(8, 5.0, 6.0), compressed=(8, 3.0, 4.0)),
            state_of(1, dense=(7, None, 0.5), compressed=(7, 3.0, 4.0)),
            id="ahead",
        ),
        pytest.param(
            state_of(1, dense=(6, None, 0.25), compressed=(6, None, 0.75)),
            state_of(1, dense=(7, None, 0.5), compressed=(7, None, 0.75)),
            id="behind",
        ),
    ],
)
def test_merged(own: dict[str, Any], expected: dict[str, Any]) -> None:
    """Rank 0's steps, terms and dense momenta, and what is the rank's own."""
    found = elastic._merged(own, elastic._common(FIRST))
    assert found["tensors"].keys() == expected["tensors"].keys()
    for name, entry in expected["tensors"].items():
        assert same(found["tensors"][name], entry), name
    assert (found["scale"], found["terms"]) == (1.0, {"of": 0})
