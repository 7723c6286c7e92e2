"""Two thousand steps of a tiny model: what they need does not grow, dropped steps included."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from horovod.torch import mpi_ops

from .harness import Given, values, wrap

STEPS, WARM, INTERVAL = 2000, 500, 100
SHAPES = {"one": (40, 50), "other": (30, 70), "bias": (40,)}
EVERY = 50  # of so many steps one is broken and one is discarded
MORE_OBJECTS, MORE_BYTES = 30, 2 * 2**20


def objects_and_bytes() -> tuple[int, int]:
    """What Python holds, and what the process has in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(gc.get_objects()), pages * os.sysconf("SC_PAGE_SIZE")


def one_step(
    model: Given, gradients: dict[str, torch.Tensor], optimizer: Any, compressor: Any, step: int
) -> None:
    optimizer.zero_grad()
    broken, dropped = step % EVERY == 20, step % EVERY == 40
    spoil = float("nan") if broken and hvd.rank() == step // EVERY % hvd.size() else 1.0
    (spoil * sum((p * gradients[name]).sum() for name, p in model.named_parameters())).backward()
    if dropped:
        compressor.discard(optimizer)
        return
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        if broken:
            assert model.one.grad.isnan().all()
        else:
            optimizer.step()


def case_constant_memory() -> None:
    model = Given(SHAPES)
    gradients = {name: torch.from_numpy(values(name, shape)) for name, shape in SHAPES.items()}
    optimizer, compressor = wrap(model, {"density": 0.02, "momentum": 0.9}, {"lr": 1e-4})
    seen = []
    for step in range(STEPS):
        one_step(model, gradients, optimizer, compressor, step)
        if (step + 1) % INTERVAL == 0:
            assert not mpi_ops._handle_map
            seen.append(objects_and_bytes())
    steps = compressor.state_dict()["tensors"]["one"]["step"]
    assert steps == STEPS - 2 * STEPS // EVERY and compressor.report().total.steps == STEPS
    (objects, memory), *later = seen[WARM // INTERVAL - 1 :]
    assert max(each for each, _ in later) <= objects + MORE_OBJECTS, seen
    assert max(each for _, each in later) <= memory + MORE_BYTES, seen
