"""The reduced gradients are what independent codecs say, however Horovod is used."""

from __future__ import annotations

import gc
from functools import partial
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
    values,
    wrap,
)


@variants(
    average={"op": hvd.Average},
    sum={"op": hvd.Sum},
    predivide={"gradient_predivide_factor": 2.0},
    groups={"groups": 2},
    groups_of_two={"groups": [["matrix", "other"], ["bias"]]},
)
def case_horovod(**horovod: Any) -> None:
    """Each option of DistributedOptimizer; listed groups give the parameters' names here."""
    model, codecs = Given(), Codecs(OPTIONS)
    if isinstance(horovod.get("groups"), list):
        horovod["groups"] = [[getattr(model, name) for name in group] for group in horovod["groups"]]
    optimizer, _ = wrap(model, OPTIONS, **horovod)
    for step in reduced(optimizer, backward(model)):
        check(model, codecs, step, scale=hvd.size() if horovod.get("op") == hvd.Sum else 1)


@variants(
    one_bit={"bits": 1},
    two_bits={"bits": 2},
    eight_bits={"bits": 8},
    bfloat16={"bits": 16},
    float32={"bits": 32},
    one_entry={"density": 1e-9},
    half={"density": 0.5},
    no_feedback={"feedback": False},
    all_compressed={"min_elements": 0, "min_ndim": 0},
    momentum={"momentum": 0.9},
    nesterov={"momentum": 0.9, "nesterov": True},
    deep_gradient_compression={"momentum": 0.9, "masking": True, "clip": 3.0},
    warm_up={"warmup_steps": 3, "warmup_stages": 3},
    stated_warm_up={"warmup_steps": 2, "warmup": [0.2, 0.1]},
    dense_at_first={"warmup_steps": 4, "warmup": [1.0, 0.1]},
)
def case_method(**options: Any) -> None:
    """Each option of the method. In a warm-up the payload's size changes from step to step."""
    model, codecs = Given(), Codecs({**OPTIONS, **options})
    optimizer, _ = wrap(model, {**OPTIONS, **options})
    for step in reduced(optimizer, backward(model), range(STEPS + 2)):
        check(model, codecs, step)


@variants(plain={}, momentum={"momentum": 0.9}, nesterov={"momentum": 0.9, "nesterov": True})
def case_dense_steps(**options: Any) -> None:
    """The first steps go dense, and the momentum that they build moves on into the compressed ones."""
    options = {**OPTIONS, **options, "dense_steps": 3}
    model, codecs = Given(), Codecs(options)
    optimizer, compressor = wrap(model, options)
    for step in reduced(optimizer, backward(model), range(7)):
        check(model, codecs, step)
        assert compressor.report().total.compressed_steps == max(0, step - 2)


def case_several_passes() -> None:
    """With backward_passes_per_step the sum of the passes is what a step compresses."""
    model, codecs = Given(), Codecs(OPTIONS)
    optimizer, _ = wrap(model, OPTIONS, backward_passes_per_step=2)

    def two_passes(step: int) -> None:
        model.loss(2 * step).backward()
        model.loss(2 * step + 1).backward()

    def sums(name: str, shape: Any, step: int) -> list[np.ndarray]:
        parts = everyones(name, shape, 2 * step), everyones(name, shape, 2 * step + 1)
        return [first + second for first, second in zip(*parts, strict=True)]

    for step in reduced(optimizer, two_passes):
        check(model, codecs, step, given=sums)


@variants(without_first={"first": 1, "stride": 1}, without_middle={"first": 0, "stride": 2})
def case_process_set(first: int, stride: int) -> None:
    """Members of a process set compress among themselves; everyone else's gradients are untouched."""
    members = list(range(first, hvd.size(), stride))
    model, subset = Given(), hvd.add_process_set(members)
    codecs = Codecs(OPTIONS, world=len(members))
    optimizer, compressor = wrap(model, OPTIONS, attach={"process_set": subset}, process_set=subset)
    for step in reduced(optimizer, backward(model)):
        if hvd.rank() in members:
            check(
                model,
                codecs,
                step,
                given=lambda name, shape, step: [values(name, shape, step, rank) for rank in members],
            )
        else:
            for name, p in model.named_parameters():
                assert np.array_equal(p.grad, values(name, p.shape, step))
    assert compressor.report().total.steps == (STEPS if hvd.rank() in members else 0)
    hvd.barrier()
    hvd.remove_process_set(subset)


def case_two_optimizers() -> None:
    """Two models with equal parameter names take turns, as a generator and a discriminator do."""
    sides = []
    for density in (0.02, 0.1):
        model, options = Given(), {"density": density, "bits": 3}
        optimizer, _ = wrap(model, options)
        sides.append((reduced(optimizer, backward(model)), partial(check, model, Codecs(options))))
    for _ in range(STEPS):
        for steps, compare in sides:
            compare(next(steps))


def case_interleaved_optimizers() -> None:
    """Both models' gradients are in flight at once, under names that differ for Horovod's own allreduce."""
    sides = []
    for label in ("generator", "discriminator"):
        model = Given()
        compressor = hgc.Compression.hgc(model.named_parameters(), **OPTIONS)
        named = [(f"{label}.{name}", p) for name, p in model.named_parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named, compression=compressor)
        sides.append((optimizer, model, Codecs(OPTIONS)))
    for step in range(STEPS):
        for _, model, _ in sides:
            model.loss(step).backward()
        for optimizer, model, codecs in reversed(sides):
            optimizer.synchronize()
            check(model, codecs, step)
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()


def case_unfreezing() -> None:
    """A frozen parameter joins under a new DistributedOptimizer; the same compressor keeps its residuals."""
    model, codecs = Given(), Codecs(OPTIONS)
    compressor = hgc.Compression.hgc(model.named_parameters(), **OPTIONS)
    for frozen, steps in ((True, range(3)), (False, range(3, 7))):
        model.other.requires_grad_(not frozen)
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([p for _, p in named], lr=0.1), named_parameters=named, compression=compressor
        )
        for step in reduced(optimizer, backward(model), steps):
            check(model, codecs, step)
        optimizer = None
        gc.collect()  # the hooks of a DistributedOptimizer go with it


def case_skipped_layers() -> None:
    """A layer that a rank skips counts as a zero gradient there, which Horovod fills in, in any order."""
    model, codecs, names = Given(), Codecs(OPTIONS), list(SHAPES)
    optimizer, _ = wrap(model, OPTIONS)

    def skipped(step: int, rank: int) -> set[str]:
        return {names[(step + rank) % len(names)], names[(step + 2 * rank + 1) % len(names)]}

    def given(name: str, shape: Any, step: int) -> list[np.ndarray]:
        parts = enumerate(everyones(name, shape, step))
        return [part * (name not in skipped(step, rank)) for rank, part in parts]

    def fill(step: int) -> None:
        model.loss(step, skipped(step, hvd.rank())).backward()

    for step in reduced(optimizer, fill, range(8)):
        check(model, codecs, step, given=given)


@variants(none={"set_to_none": True}, zero={"set_to_none": False})
def case_zero_grad(set_to_none: bool) -> None:
    """Gradients may be dropped or zeroed between steps; zeroed ones stay in their memory."""
    model, codecs, addresses = Given(), Codecs(OPTIONS), set()
    optimizer, _ = wrap(model, OPTIONS)
    for step in range(STEPS):
        model.zero_grad(set_to_none=set_to_none)
        assert all((p.grad is None) == (set_to_none or step == 0) for p in model.parameters())
        model.loss(step).backward()
        addresses.add(tuple(p.grad.data_ptr() for p in model.parameters()))
        optimizer.synchronize()
        check(model, codecs, step)
        with optimizer.skip_synchronize():
            optimizer.step()
    assert set_to_none or len(addresses) == 1


def case_clipping_after_synchronize() -> None:
    """Horovod's recipe for gradient clipping works: the reduced gradients may be changed in place."""
    model, codecs = Given(), Codecs(OPTIONS)
    optimizer, _ = wrap(model, OPTIONS)
    for step in reduced(optimizer, backward(model)):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        expected = {name: codecs.mean(name, everyones(name, shape, step)) for name, shape in SHAPES.items()}
        norm = np.sqrt(sum(np.square(mean, dtype=np.float64).sum() for mean in expected.values()))
        for name, p in model.named_parameters():  # torch adds 1e-6 to the norm
            close(p.grad, 0.01 * expected[name] / (norm + 1e-6), bound=1e-5, what=f"{name}, step {step}")
