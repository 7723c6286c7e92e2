"""What may stand beside a checkpoint when it is loaded: schedulers, others' files, other methods."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import horovod.torch as hvd
import torch

import hgc_horovod.torch as hgc
from tests.cases import variants

from .checkpoints import END, HALF, MOVED, Run, shared_directory
from .equivalence import ALL
from .harness import OPTIONS, Given, close, slot


@variants(documented={"first": False}, compressor_first={"first": True})
def case_resume_with_a_scheduler(first: bool) -> None:
    """The scheduler, made anew, writes its first momentum into the groups before the checkpoint is loaded,
    of which the compressor's part may be loaded first."""

    def start() -> tuple[Run, Any]:
        run = Run(MOVED, OPTIONS)
        return run, torch.optim.lr_scheduler.OneCycleLR(run.optimizer, 0.1, total_steps=END)

    def train(run: Run, scheduler: Any, steps: range) -> None:
        for step in steps:
            run.train(range(step, step + 1))
            scheduler.step()

    whole, scheduler = start()
    train(whole, scheduler, range(HALF))
    state = copy.deepcopy([each.state_dict() for each in (whole.model, whole.optimizer, scheduler)])
    kept = whole.compressor.state_dict()
    train(whole, scheduler, range(HALF, END - 1))
    second, its = start()
    if first:
        second.compressor.load_state_dict(kept)
    for each, saved in zip((second.model, second.optimizer, its), state, strict=True):
        each.load_state_dict(saved)
    if not first:
        second.compressor.load_state_dict(kept)
    train(second, its, range(HALF, END - 1))
    for one, other in zip(whole.weights(), second.weights(), strict=True):
        assert torch.equal(one, other) or hvd.size() > 2
        close(one, other.numpy(), bound=1e-4)


def case_written_after_loading() -> None:
    """Terms that are written into the groups of a loaded optimizer hold from the next step on."""
    runs = [Run(MOVED, options) for options in (ALL, None)]
    for run in runs:
        run.optimizer.load_state_dict(run.optimizer.state_dict())
        for group in run.optimizer.param_groups:
            group["momentum"], group["weight_decay"] = 0.5, 0.3
        run.train(range(3))
    for one, other in zip(*(run.weights() for run in runs), strict=True):
        close(one, other.numpy(), bound=1e-5)


def case_compressors_share_a_directory() -> None:
    """Two compressors' files need two names, of which they warn; process sets have theirs."""
    options = {"density": 0.05, "min_elements": 0}
    models = [Given({"matrix": (20, 10)}) for _ in range(4)]
    unnamed = [hgc.Compression.hgc(model.named_parameters(), **options) for model in models[:2]]
    named = [
        hgc.Compression.hgc(model.named_parameters(), name=name, **options)
        for model, name in zip(models[2:], ("one/half", "other"), strict=True)
    ]
    alone = hvd.add_process_set([1])
    try:
        outside = hgc.Compression.hgc(models[0].named_parameters(), process_set=alone, **options)
        with shared_directory() as directory:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for compressor in (unnamed[0], unnamed[0], unnamed[1]):
                    compressor.save(directory)
            assert ["name=" in str(warning.message) for warning in caught] == [True]
            for number, compressor in enumerate([*named, outside]):
                slot(compressor, "matrix").step = 10 + number
                compressor.save(directory)
            hvd.barrier()
            for number, compressor in enumerate([*named, outside]):
                slot(compressor, "matrix").step = 0
                compressor.load(directory)
                kept = compressor is not outside or hvd.rank() == 1
                assert slot(compressor, "matrix").step == (10 + number if kept else 0)
    finally:
        hvd.barrier()
        hvd.remove_process_set(alone)


def case_broadcast_of_a_plain_checkpoint() -> None:
    """Horovod's usual recipe: one rank loads, and broadcasts to the others."""
    plain = Run(MOVED, None)
    plain.train(range(HALF))
    saved = copy.deepcopy((plain.model.state_dict(), plain.optimizer.state_dict()))
    runs = [Run({**MOVED, "momentum": 0.5}, options) for options in (ALL, None)]
    for run in runs:
        if hvd.rank() == 0:
            run.model.load_state_dict(saved[0])
            run.optimizer.load_state_dict(saved[1])
        hvd.broadcast_optimizer_state(run.optimizer, root_rank=0)  # a step where there are no buffers
        hvd.broadcast_parameters(run.model.state_dict(), root_rank=0)
        run.train(range(HALF, END))
    for one, other in zip(*(run.weights() for run in runs), strict=True):
        close(one, other.numpy(), bound=1e-5)


def case_another_method_than_saved() -> None:
    """The compressor's own method counts, and it is said that it is another one."""
    run = Run(MOVED, OPTIONS)
    run.train(range(2))
    run.compressor.method = hgc.methods.hgc(0.2, 8)
    state = run.compressor.state_dict()
    other = Run(MOVED, OPTIONS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other.compressor.load_state_dict(state)
    assert any("another method" in str(warning.message) for warning in caught)
