"""Copies and pickles of a compressor, and of Horovod's optimizer."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import horovod.torch as hvd
import torch

import hgc_horovod.torch as hgc
from tests.cases import variants

from .checkpoints import END, HALF, MOVED, Run
from .harness import OPTIONS, Given, raises, wrap


@variants(
    deepcopy={"duplicate": copy.deepcopy}, pickled={"duplicate": lambda run: pickle.loads(pickle.dumps(run))}
)
def case_copies(duplicate: Any) -> None:
    """A copy of model and compressor, in a wrapper of its own, goes on as the original does.

    Horovod's optimizer itself can be neither pickled nor used after a copy, with or without compression.
    """
    run = Run(MOVED, OPTIONS)
    run.train(range(HALF))
    state = run.optimizer.state_dict()
    model, compressor = duplicate((run.model, run.compressor))
    inner = torch.optim.SGD(model.parameters(), **MOVED)
    twin = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters(), compression=compressor)
    twin.load_state_dict(state)
    for step in range(HALF, END):
        run.train(range(step, step + 1))
        twin.zero_grad()
        model.loss(step).backward()
        twin.step()
    assert all(map(torch.equal, run.weights(), model.parameters()))
    assert compressor.report().total.sent_bytes == run.compressor.report().total.sent_bytes


def case_copies_of_horovods_optimizer() -> None:
    """What Horovod's wrapper can do with copies and pickles, it can do with compression, and no less."""
    outcomes = []
    for compression in (hvd.Compression.none, None):
        model = Given()
        inner = torch.optim.SGD(model.parameters(), **MOVED)
        optimizer = hvd.DistributedOptimizer(
            inner,
            named_parameters=model.named_parameters(),
            compression=compression or hgc.Compression.hgc(model.named_parameters(), momentum_from=inner),
        )
        model.loss(0).backward()
        optimizer.step()
        seen: list[Any] = []
        for attempt in (
            copy.deepcopy,
            copy.copy,
            pickle.dumps,
            lambda wrapper: copy.deepcopy(wrapper).step(),
        ):
            try:
                attempt(optimizer)
                seen.append(None)
            except (AttributeError, pickle.PicklingError) as error:
                seen.append((type(error), str(error)))
        assert pickle.loads(pickle.dumps(optimizer.state_dict())).keys() == optimizer.state_dict().keys()
        outcomes.append(seen)
    assert outcomes[0] == outcomes[1]


def case_loss_scale_of_a_copy() -> None:
    """A copy is not scaled by a copy of the GradScaler that nobody updates: it has to be given one."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    model = Given()
    _, compressor = wrap(model, OPTIONS, attach={"loss_scale": scaler})
    twin, copied = copy.deepcopy((model, compressor))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(twin.parameters(), lr=0.1),
        named_parameters=twin.named_parameters(),
        compression=copied,
    )
    raises(ValueError, ["loss_scale"], (4.0 * twin.loss(0)).backward)
    optimizer.load_state_dict(optimizer.state_dict())  # Horovod's way out of an exception
    copied.loss_scale = scaler
    (4.0 * twin.loss(0)).backward()
    optimizer.synchronize()
    assert copied._step.loss_scale == 4.0
