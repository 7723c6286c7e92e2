"""Mixed precision: what is kept is free of the loss scale, and all ranks skip an overflowing step."""

from __future__ import annotations

from functools import partial
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

import hgc_horovod.torch as hgc
from tests.cases import variants

from .harness import OPTIONS, SHAPES, Given, close, raises, slot, values
from .nonfinite import UNDONE, memory

SCALES = (2.0**16, 2.0**16, 2.0**3, 2.0**-4, 2.0**10, 1.0)  # powers of two: scaling rounds nothing
SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}
OVERFLOW = 3  # the step in which a rank's loss is infinite


def assemble(
    model: torch.nn.Module, options: Any, sgd: Any, loss_scale: Any, op: Any = hvd.Average
) -> tuple[Any, hgc.Compressor]:
    optimizer = torch.optim.SGD(model.parameters(), **sgd)
    compressor = hgc.Compression.hgc(
        model.named_parameters(),
        **OPTIONS,
        **options,
        momentum_from=optimizer if sgd.get("momentum") else None,
        loss_scale=loss_scale,
    )
    return hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compressor, op=op
    ), compressor


@variants(
    plain={"sgd": {"lr": 0.1}},
    moved={"sgd": SGD},
    moved_nesterov={"sgd": {**SGD, "nesterov": True}},
    sum={"sgd": SGD, "op": hvd.Sum},
    clip={"sgd": {"lr": 0.1}, "options": {"clip": 3.0}},
    brain={"sgd": SGD, "dtype": torch.bfloat16},
)
def case_changing_scale(
    sgd: Any, options: Any = None, op: Any = hvd.Average, dtype: torch.dtype = torch.float32
) -> None:
    """Training does not depend on the scale, bit for bit where the scales are powers of two."""
    paths = []
    for scaled in (True, False):
        model, scales = Given(dtype=dtype), list(SCALES if scaled else [1.0] * len(SCALES))
        current = iter(scales)  # asked for once a step
        loss_scale = partial(next, current) if scaled else None
        optimizer, _ = assemble(model, options or {}, sgd, loss_scale, op)
        for step, scale in enumerate(scales):
            optimizer.zero_grad()
            (model.loss(step) * scale).backward()
            optimizer.synchronize()
            for p in model.parameters():
                p.grad.div_(scale)
            with optimizer.skip_synchronize():
                optimizer.step()
        paths.append({name: p.detach().float() for name, p in model.named_parameters()})
    for name, without in paths[1].items():
        close(paths[0][name], without.numpy(), bound=1e-5 if dtype == torch.float32 else 1e-2, what=name)
        # Three ranks' dense tensors Horovod adds in an order that differs from run to run.
        assert torch.equal(paths[0][name], without) or (hvd.size() > 2 and name == "bias"), name


@variants(
    plain={"sgd": {"lr": 0.01}},
    moved={"sgd": {**SGD, "lr": 0.01}},
    moved_nesterov={"sgd": {**SGD, "lr": 0.01, "nesterov": True}},
)
def case_grad_scaler(sgd: Any) -> None:
    """Horovod's recipe; the step in which one rank overflows is as if it had not been."""
    paths = []
    for broken in (True, False):
        model = Given()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)
        optimizer, compressor = assemble(model, {}, sgd, scaler)
        for step in range(7):
            spoiled = step == OVERFLOW
            if spoiled and not broken:
                continue
            kept = {name: memory(compressor, name) for name in SHAPES if step}
            weights = [p.detach().clone() for p in model.parameters()]
            before = scaler.get_scale()
            optimizer.zero_grad()
            loss = model.loss(step) + (model.other.sum() * 1e39 if spoiled and hvd.rank() == 1 else 0)
            scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            if spoiled:
                assert scaler.get_scale() == before / 2
                assert all(map(torch.equal, weights, model.parameters()))
                for name, was in kept.items():
                    for key, now in memory(compressor, name).items():
                        close(torch.from_numpy(now), was[key], bound=UNDONE, what=f"{key} of {name}")
        assert slot(compressor, "matrix").step == slot(compressor, "bias").step == 6
        paths.append([p.detach().clone() for p in model.parameters()])
    for with_overflow, without in zip(*paths, strict=True):
        close(with_overflow, without.numpy(), bound=UNDONE)


def case_overflow_of_every_dtype() -> None:
    """A scaler that starts far too high comes down; half precision then trains as without compression."""
    model = Given(dtype=torch.float16)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=1000)
    optimizer, compressor = assemble(model, {}, {"lr": 0.1}, scaler)
    steps = 0
    while slot(compressor, "matrix").step < 4:
        optimizer.zero_grad()
        scaler.scale(model.loss(steps).float()).backward()
        optimizer.synchronize()
        finite = [bool(p.grad.isfinite().all()) for p in model.parameters()]
        if all(finite):
            for p in model.parameters():
                p.grad.div_(scaler.get_scale())
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            assert slot(compressor, "matrix").step == 0
            scaler.update(scaler.get_scale() / 2)
        steps += 1
        assert steps < 40
    residual = memory(compressor, "matrix")["residual"]
    assert 0 < np.abs(residual).max() < 20  # of gradients of about 1, not of 2^14


def case_recipe_not_followed() -> None:
    """scaler.step before the gradients were reduced would lose the division by the scale."""
    model = Given()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    optimizer, _ = assemble(model, {}, {"lr": 0.1}, scaler)
    scaler.scale(model.loss(0)).backward()
    raises(ValueError, ["synchronize()", "skip_synchronize"], scaler.step, optimizer)
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    optimizer, _ = assemble(Given(), {}, {"lr": 0.1}, disabled)
    disabled.step(optimizer)


def case_bad_scale() -> None:
    """A scale that is no factor is named, on every rank."""
    model = Given()
    optimizer, _ = assemble(model, {}, {"lr": 0.1}, lambda: 0.0)
    try:
        model.loss(0).backward()
        optimizer.synchronize()
    except ValueError as error:
        assert "loss_scale" in str(error) and "0.0" in str(error)
    else:
        raise AssertionError("a loss scale of 0 was accepted")


@variants(autocast={"autocast": True}, pure={"autocast": False})
def case_bfloat16(autocast: bool) -> None:
    """A network under bf16 autocast, or of bf16 weights, learns, and the ranks stay equal."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    net = net if autocast else net.to(torch.bfloat16)
    optimizer, _ = assemble(net, {}, {"lr": 0.05, "momentum": 0.9}, None)
    target = torch.from_numpy(values("target", (32, 32), rank=0)) * 0.1
    losses = []
    for step in range(60):
        x = torch.from_numpy(values("x", (16, 32), step))
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = net(x if autocast else x.to(torch.bfloat16))
            loss = torch.nn.functional.mse_loss(y.float(), x @ target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-10:]) < 0.6 * np.mean(losses[:10]), losses
    for name, p in net.named_parameters():
        everyones = hvd.allgather(p.detach().float().reshape(1, -1), name=f"everyones {name}")
        assert (everyones == everyones[0]).all()


def case_small_numbers_in_half_precision() -> None:
    """What is kept, and a dense gradient with momentum, do not underflow free of the scale."""
    model = Given({"matrix": (64, 64), "bias": (64,)}, torch.float16)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    compressor = hgc.Compression.hgc(
        model.named_parameters(), density=0.01, momentum_from=inner, loss_scale=lambda: 4096.0
    )
    optimizer = hvd.DistributedOptimizer(
        inner, named_parameters=model.named_parameters(), compression=compressor
    )
    small = 2e-8
    for step in range(2):
        for p in model.parameters():
            p.grad = torch.full_like(p, 4096 * small)
        optimizer.synchronize()
        expected = small * 4096 * (1 if step == 0 else 1.9)
        close(model.bias.grad.float(), np.full(64, expected, np.float32), bound=1e-2)
    compressor.method = hgc.methods.dense()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.synchronize()
    # In the first step 1, then 1.9 and 1.71 of the gradient; 41 of 4096 entries were sent twice.
    left = model.matrix.grad.float().median()
    assert abs(left / (4096 * small) - 4.61) < 0.05, left / (4096 * small)
