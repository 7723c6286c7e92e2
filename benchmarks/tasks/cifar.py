"""CIFAR-10 with a small ResNet, and CIFAR-100 with a small VGG; crops and flips, all 10,000 test images."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from .task import Task, share, shuffled

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
from datasets import load
from resnet import ResNet

SHIFT = 4  # pixels that an image may be moved by


class VGG(nn.Module):
    """3×3 convolutions with batch normalization, a halved resolution where the width grows, and two linear
    layers (Simonyan & Zisserman, 2015), narrow enough for one core."""

    def __init__(self, classes: int, widths: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for depth, width in enumerate(widths):
            for _ in range(1 if depth < 2 else 2):
                convolution = nn.Conv2d(before, width, 3, padding=1, bias=False)
                nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
                layers += [convolution, nn.BatchNorm2d(width), nn.ReLU()]
                before = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.hidden = nn.Linear(4 * before, 2 * before)
        self.head = nn.Linear(2 * before, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.hidden(self.features(x).flatten(1))))


@dataclass
class Cifar(Task):
    """`limit`: only so many training images, which are the first."""

    metric: ClassVar[str] = "accuracy"
    classes: ClassVar[int]
    limit: int | None = None
    tested: int = 2000  # test images that the curve is of

    def load(self, data: Path) -> None:
        images = load(self.name, data, self.limit)
        channels_last = {"memory_format": torch.channels_last}
        train = F.pad(torch.from_numpy(images.train_x), (SHIFT, SHIFT, SHIFT, SHIFT))
        self._train = train.permute(0, 2, 3, 1).contiguous(), torch.from_numpy(images.train_y)
        self._test = (
            torch.from_numpy(images.test_x).contiguous(**channels_last),
            torch.from_numpy(images.test_y),
        )

    def steps(self, world: int) -> int:
        return len(self._train[1]) // (self.batch * world)

    def begin(self, epoch: int, seed: int) -> None:
        self._order = shuffled(len(self._train[1]), epoch, seed)

    def loss(self, model: nn.Module, step: int, rank: int, world: int) -> torch.Tensor:
        chosen = share(self._order, self.batch, step, rank, world)
        images, labels = self._train
        return F.cross_entropy(model(moved(images, chosen)), labels[chosen])

    @torch.no_grad()
    def test(self, model: nn.Module, final: bool) -> dict[str, float]:
        images, labels = (both if final else both[: self.tested] for both in self._test)
        pairs = zip(images.split(500), labels.split(500), strict=True)
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in pairs)
        return {"accuracy": right / len(labels)}


def moved(images: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The chosen ones of padded images (n, height, width, channels), each cropped somewhere and flipped or
    not, as (batch, channels, height - 8, width - 8), channels last."""
    count, size = len(chosen), images.shape[1] - 2 * SHIFT
    top, left = torch.randint(2 * SHIFT + 1, (2, count, 1))
    along = torch.arange(size)
    columns = torch.where(torch.rand(count, 1) < 0.5, along, along.flip(0))
    rows, columns = top + along, left + columns
    return images[chosen[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@dataclass
class Cifar10(Cifar):
    name: ClassVar[str] = "cifar10"
    classes: ClassVar[int] = 10
    epochs: int = 6
    batch: int = 32
    lr: float = 0.2
    weight_decay: float = 5e-4

    def model(self) -> nn.Module:
        return ResNet(self.classes, channels=3)


@dataclass
class Cifar100(Cifar):
    name: ClassVar[str] = "cifar100"
    classes: ClassVar[int] = 100
    epochs: int = 6
    batch: int = 32
    lr: float = 0.1
    weight_decay: float = 5e-4

    def model(self) -> nn.Module:
        return VGG(self.classes)
