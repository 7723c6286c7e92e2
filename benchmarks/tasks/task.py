"""A task, as the training loop sees it: data, a model, a loss on one rank's share of a step, and a test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn


@dataclass
class Task(ABC):
    """The hyperparameters, which all methods share. A dataclass, so that its fields identify a run.

    Args:
        epochs: passes over the training data.
        batch: examples per step and rank.
        lr: the largest learning rate; see `rate`.
        momentum, weight_decay: SGD's.
        clip: the largest norm of a rank's whole gradient, before anything else is done to it.
    """

    name: ClassVar[str]
    metric: ClassVar[str]  # of the results of `test`, the one that counts
    epochs: int
    batch: int
    lr: float
    momentum: float = 0.9
    weight_decay: float = 0.0
    clip: float | None = None

    @abstractmethod
    def load(self, data: Path) -> None:
        """Read the data, before anything else is called."""

    @abstractmethod
    def model(self) -> nn.Module:
        """A new model, initialized by torch's generator."""

    @abstractmethod
    def steps(self, world: int) -> int:
        """How many steps an epoch has on `world` ranks."""

    @abstractmethod
    def begin(self, epoch: int, seed: int) -> None:
        """Shuffle the data for an epoch, on all ranks alike."""

    @abstractmethod
    def loss(self, model: nn.Module, step: int, rank: int, world: int) -> torch.Tensor:
        """The mean loss on a rank's share of a step of this epoch."""

    @abstractmethod
    def test(self, model: nn.Module, final: bool) -> dict[str, float]:
        """Named results of a model in evaluation mode; those during training may take fewer examples."""

    def settings(self) -> dict[str, Any]:
        return asdict(self)

    def rate(self, progress: float) -> float:
        """The learning rate when a share of the run is over: up to `lr` in a fifth of it, then down to 0."""
        return self.lr * min(0.1 + 0.9 * progress / 0.2, (1 - progress) / 0.8)

    def gradients(
        self, model: nn.Module, step: int, rank: int, world: int
    ) -> tuple[list[torch.Tensor], float]:
        """A rank's gradients of a step, in the order of the model's parameters, and its loss."""
        loss = self.loss(model, step, rank, world)
        gradients = [g.contiguous() for g in torch.autograd.grad(loss, list(model.parameters()))]
        if self.clip is not None:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
            if norm > self.clip:
                torch._foreach_mul_(gradients, float(self.clip / norm))
        return gradients, loss.item()


def share(order: torch.Tensor, batch: int, step: int, rank: int, world: int) -> torch.Tensor:
    """A rank's `batch` entries of a step's batch · world."""
    first = (step * world + rank) * batch
    return order[first : first + batch]


def shuffled(count: int, epoch: int, seed: int) -> torch.Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(1_000_003 * seed + epoch))
