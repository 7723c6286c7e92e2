"""What the rank programs share: parameters with given gradients, and codecs that tell what they become."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

import hgc_horovod.torch as hgc
from hgc_horovod import Codec, Method, methods
from tests import cases
from tests.cases import raises as raises

Shapes = Mapping[str, tuple[int, ...]]
SHAPES: Shapes = {"matrix": (48, 32), "bias": (40,), "kernel": (8, 4, 7, 9), "other": (30, 50)}
OPTIONS = {"density": 0.05, "bits": 4}
STEPS = 4  # enough for what was not sent to come back
ROUNDING = 1e-6  # of an entry, or of the tensor's largest one where a sum cancels: a few float32 roundings


def values(name: str, shape: Sequence[int], step: int = 0, rank: int | None = None) -> np.ndarray:
    """Standard normal float32 that every rank can compute for every rank; this rank's by default."""
    return cases.values(name, shape, step, hvd.rank() if rank is None else rank)


def everyones(name: str, shape: Sequence[int], step: int) -> list[np.ndarray]:
    """`values` of every rank."""
    return [values(name, shape, step, rank) for rank in range(hvd.size())]


class Given(torch.nn.Module):
    """Parameters of these shapes, and a loss with exactly `values(name, shape, step)` as its gradients."""

    def __init__(self, shapes: Shapes = SHAPES, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        for name, shape in shapes.items():
            start = torch.from_numpy(values(f"start of {name}", shape, rank=0))
            self.register_parameter(name, torch.nn.Parameter(start.to(dtype)))

    def loss(self, step: int, skip: Iterable[str] = ()) -> torch.Tensor:
        return sum(
            (p * torch.from_numpy(values(name, p.shape, step)).to(p.dtype)).sum()
            for name, p in self.named_parameters()
            if name not in skip and p.requires_grad
        )


def tanh_network(seed: int, first: int, second: int) -> torch.nn.Sequential:
    """Three layers for inputs of 20 and outputs of 5; the same on all ranks and in every call."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(20, first),
        torch.nn.Tanh(),
        torch.nn.Linear(first, second),
        torch.nn.Tanh(),
        torch.nn.Linear(second, 5),
    )


class Codecs:
    """One independent codec per rank and tensor, and what they say about the reduced gradients.

    Dense tensors are averaged in float64. Momentum belongs to the method, as in `Compression.hgc(momentum=)`.
    """

    def __init__(self, options: Mapping[str, Any], world: int | None = None) -> None:
        self.method = methods.hgc(**options)
        self.world = hvd.size() if world is None else world
        self.steps: Counter[str] = Counter()
        self.codecs: dict[str, list[Codec]] = {}
        self.buffers: dict[str, np.ndarray] = {}

    def of(self, name: str, size: int) -> list[Codec]:
        """The codecs of a tensor; new ones begin with the momentum of its dense steps."""
        if name not in self.codecs:
            self.codecs[name] = [
                Codec(self.method, size, name, rank=rank, world_size=self.world) for rank in range(self.world)
            ]
            for codec in self.codecs[name]:
                codec.momentum = self.buffers[name].ravel().copy() if name in self.buffers else None
        return self.codecs[name]

    def mean(self, name: str, gradients: Sequence[np.ndarray], itemsize: int = 4) -> np.ndarray:
        """What the average of the ranks' gradients of this tensor becomes in its next step."""
        shape, step = gradients[0].shape, self.steps[name]
        self.steps[name] += 1
        if self.method.is_dense(shape, step, itemsize):
            left = self._hand_over(name, shape)
            return self._with_momentum(name, np.mean(gradients, axis=0, dtype=np.float64)) + left
        codecs = self.of(name, math.prod(shape))
        for codec in codecs:
            codec.step = step
        payloads = [codec.encode(gradient.ravel()) for codec, gradient in zip(codecs, gradients, strict=True)]
        return codecs[0].decode_sum(payloads).reshape(shape) / self.world

    def _hand_over(self, name: str, shape: Sequence[int]) -> np.ndarray | float:
        """What was kept of a tensor that is dense from now on: its mean is applied at once."""
        codecs = self.codecs.pop(name, [])
        if not codecs:
            return 0.0
        if self.method.feedback.momentum:
            self.buffers[name] = np.mean([codec.momentum for codec in codecs], axis=0).reshape(shape)
        return np.mean([codec.residual for codec in codecs], axis=0, dtype=np.float64).reshape(shape)

    def _with_momentum(self, name: str, mean: np.ndarray) -> np.ndarray:
        m, nesterov = self.method.feedback.momentum, self.method.feedback.nesterov
        buffer = m * self.buffers.get(name, np.zeros(mean.shape)) + mean
        if m:
            self.buffers[name] = buffer.astype(np.float32)
        return m * buffer + mean if nesterov else buffer


def wrap(
    model: torch.nn.Module,
    options: Mapping[str, Any] | Method,
    sgd: Mapping[str, Any] | None = None,
    attach: Mapping[str, Any] | None = None,
    **horovod: Any,
) -> tuple[Any, hgc.Compressor]:
    """Horovod's optimizer around an SGD of the model, and the compressor that it was given: of a method, or
    of the hybrid one with these options."""
    if isinstance(options, Method):
        compressor = hgc.Compression.from_method(options, model.named_parameters(), **(attach or {}))
    else:
        compressor = hgc.Compression.hgc(model.named_parameters(), **options, **(attach or {}))
    optimizer = torch.optim.SGD(model.parameters(), **{"lr": 0.1, **(sgd or {})})
    return hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compressor, **horovod
    ), compressor


def reduced(
    optimizer: Any, fill: Callable[[int], object], steps: Iterable[int] = range(STEPS)
) -> Iterator[int]:
    """Let `fill` make the gradients of each step, reduce them, yield the step, and apply them."""
    for step in steps:
        optimizer.zero_grad()
        fill(step)
        optimizer.synchronize()
        yield step
        with optimizer.skip_synchronize():
            optimizer.step()


def backward(model: Given) -> Callable[[int], object]:
    return lambda step: model.loss(step).backward()


def accumulating(model: Given, passes: int) -> tuple[Callable[[int], None], Callable[..., Any]]:
    """What makes the gradients of a step of so many equal passes, and what they are on every rank."""

    def fill(step: int) -> None:
        for _ in range(passes):
            model.loss(step).backward()

    def given(name: str, shape: Sequence[int], step: int) -> list[np.ndarray]:
        return [passes * gradient for gradient in everyones(name, shape, step)]

    return fill, given


def check(
    model: torch.nn.Module,
    codecs: Codecs,
    step: int,
    scale: float = 1,
    given: Callable[[str, Sequence[int], int], list[np.ndarray]] = everyones,
) -> None:
    """Every gradient of the model is `scale` times the codecs' mean of what the ranks were `given`."""
    for name, p in model.named_parameters():
        if p.requires_grad:
            expected = scale * codecs.mean(name, given(name, p.shape, step))
            close(p.grad, expected, what=f"{name}, step {step}")


def close(actual: torch.Tensor, expected: np.ndarray, bound: float = ROUNDING, what: str = "") -> None:
    """Equal in shape, and within `bound` relative to each entry or to the largest one."""
    assert actual.shape == expected.shape, (what, actual.shape)
    found = actual.detach().to_dense().to(torch.float64).numpy()
    largest = np.abs(expected).max(initial=0)
    np.testing.assert_allclose(found, expected, rtol=bound, atol=bound * largest, err_msg=what)


def slot(compressor: hgc.Compressor, name: str) -> Any:
    """What the compressor keeps for a parameter: the one place where tests look behind its interface."""
    return next(slot for slot in compressor._parameters.slots if slot.name == name)
