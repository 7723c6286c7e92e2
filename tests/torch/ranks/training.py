"""Two hundred steps of training: the ranks stay equal to the bit, and the model learns."""

from __future__ import annotations

import hashlib
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

import hgc_horovod.torch as hgc
from tests.cases import variants

from .harness import values

STEPS = 200
CLASSES = 10


def perceptron(width: int = 128) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, CLASSES)
    )


def convolutional() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(256, CLASSES),
    )


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images that are a class's pattern and noise: no two ranks or steps see the same."""
    labels = np.random.default_rng([step, rank]).integers(0, CLASSES, 16)
    patterns, noise = values("patterns", (CLASSES, 1, 8, 8), 0, 0), values("noise", (16, 1, 8, 8), step, rank)
    images = patterns[labels] + noise
    return torch.from_numpy(images), torch.from_numpy(labels)


def fingerprint(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(p.detach().numpy().tobytes())
    return digest.hexdigest()


@variants(
    warm_up={"options": {"warmup_steps": 60}, "nesterov": True},
    one_cycle={
        "options": {"bits": 2, "dense_steps": 5},
        "make": convolutional,
        "one_cycle": True,
        "weight_decay": 1e-3,
    },
)
def case_training(options: Any, one_cycle: bool = False, make: Any = perceptron, **sgd: Any) -> None:
    torch.manual_seed(hvd.rank())
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), **{"lr": 0.02, "momentum": 0.9, **sgd})
    schedulers = torch.optim.lr_scheduler
    scheduler = schedulers.OneCycleLR(optimizer, max_lr=0.05, total_steps=STEPS + 1) if one_cycle else None
    options = {"density": 0.02, "momentum_from": optimizer, **options}
    compressor = hgc.Compression.hgc(model.named_parameters(), **options)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compressor
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    losses = []
    for step in range(STEPS):
        images, labels = batch(step, hvd.rank())
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if scheduler:
            scheduler.step()
        losses.append(loss.item())
        if step % 50 in (0, 49):
            everyones = hvd.allgather_object(fingerprint(model))
            assert len(set(everyones)) == 1, f"the ranks' parameters differ after step {step}"
    first, last = np.mean(losses[:10]), np.mean(losses[-10:])
    assert last < 0.25 * first, f"the loss fell from {first:.3f} to {last:.3f} only"
    assert compressor.report().total.ratio > 5
