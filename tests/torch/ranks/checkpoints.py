"""Saving and resuming, in this world and in others, and copies of a compressor."""

from __future__ import annotations

import copy
import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

import hgc_horovod.torch as hgc
from tests.cases import variants

from .equivalence import ALL
from .harness import OPTIONS, Given, close, raises, slot, values

HALF, END = 3, 7  # steps before the checkpoint, and in all
MOVED = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}


class Run:
    """A model in training, with the momentum moved from the optimizer or a method's own; without `options`
    uncompressed."""

    def __init__(self, sgd: Any, options: Any, op: Any = hvd.Average) -> None:
        self.model = Given()
        inner = torch.optim.SGD(self.model.parameters(), **sgd)
        self.compressor: Any = hvd.Compression.none
        if options is not None:
            moved = {"momentum_from": inner} if sgd.get("momentum") else {}
            self.compressor = hgc.Compression.hgc(self.model.named_parameters(), **options, **moved)
        self.optimizer = hvd.DistributedOptimizer(
            inner, named_parameters=self.model.named_parameters(), compression=self.compressor, op=op
        )

    def train(self, steps: range) -> None:
        for step in steps:
            self.optimizer.zero_grad()
            self.model.loss(step).backward()
            self.optimizer.step()

    def weights(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]


@contextmanager
def shared_directory() -> Iterator[Path]:
    """One directory that all ranks of this machine use."""
    with tempfile.TemporaryDirectory() as mine:
        yield Path(hvd.broadcast_object(mine, name="directory"))
        hvd.barrier()


@variants(
    plain={"sgd": {"lr": 0.1}},
    moved={"sgd": MOVED},
    sum={"sgd": {**MOVED, "nesterov": True}, "op": hvd.Sum},
    own_momentum={"sgd": {"lr": 0.1}, "options": {"momentum": 0.9, "masking": True, "clip": 3.0}},
    warm_up={"sgd": MOVED, "options": {"dense_steps": 2, "warmup_steps": 4}},
    still_dense={"sgd": MOVED, "options": {"dense_steps": 5}},
)
def case_resume(sgd: Any, options: Any = None, op: Any = hvd.Average) -> None:
    """A run that goes on from its checkpoint is bit for bit the one that was not interrupted.

    What is sent dense has only Horovod's own guarantees: it adds three ranks' tensors in an order that
    depends on which others it sends with them.
    """
    options = {**OPTIONS, **(options or {})}
    whole = Run(sgd, options, op)
    whole.train(range(END))
    first = Run(sgd, options, op)
    first.train(range(HALF))
    with shared_directory() as directory:
        first.compressor.save(directory / "compression")
        state = copy.deepcopy((first.model.state_dict(), first.optimizer.state_dict()))
        hvd.barrier()
        second = Run(sgd, options, op)
        second.model.load_state_dict(state[0])
        second.optimizer.load_state_dict(state[1])
        second.compressor.load(directory / "compression")
    second.train(range(HALF, END))
    for name, p in whole.model.named_parameters():
        close(getattr(second.model, name), p.detach().numpy(), bound=1e-4, what=name)
        if hvd.size() == 2 or not (name == "bias" or "dense_steps" in options):
            assert torch.equal(getattr(second.model, name), p), name
    for name in ("matrix", "kernel", "other") if "dense_steps" not in options else ():
        codecs = [slot(run.compressor, name).codec for run in (whole, second)]
        assert np.array_equal(codecs[0].residual, codecs[1].residual), name


def case_state_is_plain() -> None:
    """torch.save and a weights-only load give it back; it is a copy, and the run goes on untouched."""
    run = Run(MOVED, OPTIONS)
    run.train(range(HALF))
    state = run.compressor.state_dict()
    torch.save(state, file := io.BytesIO())
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert loaded["rank"] == hvd.rank() and loaded["world_size"] == hvd.size()
    before = loaded["tensors"]["matrix"]["residual"].clone()
    run.train(range(HALF, END))
    assert torch.equal(state["tensors"]["matrix"]["residual"], before)
    run.compressor.load_state_dict(loaded)
    assert np.array_equal(slot(run.compressor, "matrix").codec.residual, before.numpy().ravel())
    run.train(range(1))
    assert torch.equal(loaded["tensors"]["matrix"]["residual"], before)


def case_in_flight() -> None:
    """In the middle of a step there is no state to save."""
    run = Run({"lr": 0.1}, OPTIONS)
    run.model.loss(0).backward()
    raises(ValueError, ["state_dict", "between steps"], run.compressor.state_dict)
    raises(ValueError, ["copied", "middle"], copy.deepcopy, run.compressor)
    run.optimizer.step()


def case_wrong_states() -> None:
    """Another rank's residuals, another model's, and what is no state."""
    run = Run({"lr": 0.1}, OPTIONS)
    run.train(range(HALF))
    load, state = run.compressor.load_state_dict, run.compressor.state_dict()
    first = hvd.broadcast_object(state, name="state")
    if hvd.rank():
        raises(ValueError, ["state of rank 0", f"rank {hvd.rank()}"], load, first)
    raises(ValueError, ["version", "2"], load, {**state, "version": 2})
    raises(ValueError, ["version"], load, [3])
    raises(ValueError, ["state"], load, [])
    raises(ValueError, ["other_world", "refuse", "mena"], load, state, other_world="mena")
    fewer = {name: kept for name, kept in state["tensors"].items() if name != "kernel"}
    raises(ValueError, ["same parameters", "kernel"], load, {**state, "tensors": fewer})
    wrong = {**state["tensors"], "matrix": {**state["tensors"]["matrix"], "residual": torch.zeros(3)}}
    raises(ValueError, ["matrix", "shape", "(48, 32)"], load, {**state, "tensors": wrong})
    spoiled = {**state["tensors"]["matrix"], "residual": torch.full((48, 32), float("nan"))}
    broken = {**state, "tensors": {**state["tensors"], "matrix": spoiled}}
    raises(ValueError, ["matrix", "NaN"], load, broken)
    elsewhere = {**state, "world_size": 99}
    raises(ValueError, ["99 ranks", "mean", "zero"], load, elsewhere)
    raises(ValueError, ["all 99", "list"], load, elsewhere, other_world="mean")
    with shared_directory() as directory:
        raises(ValueError, ["directory", "none"], run.compressor.load, directory)
        hvd.barrier()
        if hvd.rank() == 0:
            run.compressor.save(directory)
        hvd.barrier()
        raises(ValueError, ["lacks", "rank 1"], run.compressor.load, directory)


@variants(average={}, sum={"op": hvd.Sum}, momentum={"options": {"momentum": 0.9}})
def case_other_world(op: Any = hvd.Average, options: Any = None) -> None:
    """With more or fewer ranks, what the optimizer would still get is the same; or nothing is kept."""
    options = {**OPTIONS, **(options or {})}
    for saved in (1, hvd.size() + 2):
        states = []
        for rank in range(saved):
            run = Run({"lr": 0.1}, options, op)
            run.train(range(1))
            state = run.compressor.state_dict()
            state.update(rank=rank, world_size=saved, scale=1.0 if op == hvd.Average else float(saved))
            for name, kept in state["tensors"].items():
                for key in ("residual", "momentum"):
                    if kept[key] is not None:
                        kept[key] = torch.from_numpy(values(f"{key} {name}", kept[key].shape, rank, rank=0))
            states.append(state)
        run = Run({"lr": 0.1}, options, op)
        run.compressor.load_state_dict(states, other_world="mean")
        for key in ("residual", "momentum") if "momentum" in options else ("residual",):
            kept = [state["tensors"]["matrix"][key].numpy().astype(np.float64) for state in states]
            mine = torch.from_numpy(getattr(slot(run.compressor, "matrix").codec, key)).view(48, 32)
            everyones = hvd.allreduce(mine, op=hvd.Sum, name=f"everyones {key}")
            summed = op == hvd.Sum and saved > 1
            # What the optimizer gets: the sum with op=Sum, else the mean.
            expected = sum(kept) if summed else sum(kept) * hvd.size() / saved
            close(everyones, expected, bound=1e-5, what=f"{key} of {saved}")
        assert slot(run.compressor, "matrix").step == 1
        run.train(range(1, 3))
        run.compressor.load_state_dict(states[0], other_world="zero")
        assert slot(run.compressor, "matrix").step == 1
        assert not slot(run.compressor, "matrix").codec.residual.any()
        run.train(range(1, 3))


@variants(
    moved={"sgd": MOVED},
    nesterov={"sgd": {**MOVED, "nesterov": True}},
    maximize={"sgd": {**MOVED, "maximize": True}},
    sum={"sgd": {"lr": 0.1, "momentum": 0.9}, "op": hvd.Sum},  # decay: known after the first step's reduction
)
def case_plain_checkpoint(sgd: Any, op: Any = hvd.Average) -> None:
    """A run without compression goes on with it: its momentum buffers are taken over."""
    whole = Given()
    plain = hvd.DistributedOptimizer(
        torch.optim.SGD(whole.parameters(), **sgd), named_parameters=whole.named_parameters(), op=op
    )
    run = Run(sgd, ALL, op)  # everything is sent, in float32
    for step in range(END):
        if step == HALF:
            run.model.load_state_dict(whole.state_dict())
            run.optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
        if step >= HALF:
            run.train(range(step, step + 1))
        plain.zero_grad()
        whole.loss(step).backward()
        plain.step()
    assert not any("momentum_buffer" in kept for kept in run.optimizer.state.values())
    for name, p in whole.named_parameters():
        close(getattr(run.model, name), p.detach().numpy(), bound=1e-5, what=name)


def case_saved_twice() -> None:
    """A second save replaces the first, and two worlds' files in one directory are not guessed between."""
    run = Run({"lr": 0.1}, OPTIONS)
    with shared_directory() as directory:
        for steps in (range(1), range(1, 3)):
            run.train(steps)
            run.compressor.save(directory)
        hvd.barrier()
        assert sorted(path.name for path in directory.iterdir()) == [
            f"rank{rank}-of-{hvd.size()}.pt" for rank in range(hvd.size())
        ]
        run.compressor.load(directory)
        assert slot(run.compressor, "matrix").step == 3
        hvd.barrier()
        if hvd.rank() == 0:
            (directory / "rank0-of-9.pt").write_bytes(b"")
        hvd.barrier()
        raises(ValueError, ["directory", str(hvd.size()), "9"], run.compressor.load, directory)
