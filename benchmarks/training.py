"""One training run: the same loop for simulated workers and for Horovod's ranks."""

from __future__ import annotations

import copy
import math
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from tasks import Task
from torch import nn
from variants import Variant
from workers import Workers

from hgc_horovod import Method, NonFiniteError
from hgc_horovod.torch.momentum import Terms


class Ranks(Protocol):
    """Those ranks of a run that are in this process, with their models."""

    world: int
    ranks: Sequence[int]
    models: list[nn.Module]
    optimizer: torch.optim.Optimizer

    def step(self, gradients: list[list[torch.Tensor]], losses: list[float]) -> None:
        """Average the gradients of these ranks with all others', and let the optimizer step."""

    def traffic(self) -> dict[str, float]: ...

    def bits(self) -> float | None: ...


class Simulated:
    """All ranks, one after the other. They share the parameters, and each has its own buffers and state."""

    def __init__(
        self, model: nn.Module, task: Task, variant: Variant, method: Method | None, world: int, seed: int
    ):
        self.world, self.ranks = world, range(world)
        self.models = [model, *(replica(model) for _ in range(world - 1))]
        self._parameters = list(model.parameters())
        momentum, decay = variant.momentum(task), task.weight_decay
        terms = None
        if variant.moved:
            terms, momentum, decay = Terms(momentum, decay, False), 0.0, 0.0
        self.optimizer = torch.optim.SGD(self._parameters, task.lr, momentum, weight_decay=decay)
        self._workers = Workers(
            model.named_parameters(), world, method, fp16=variant.fp16, terms=terms, seed=seed
        )
        self.traffic, self.bits = self._workers.traffic, self._workers.bits

    def step(self, gradients: list[list[torch.Tensor]], losses: list[float]) -> None:
        self._workers.report_losses(losses)
        for parameter, mean in zip(self._parameters, self._workers.average(gradients), strict=True):
            parameter.grad = mean
        self.optimizer.step()


def replica(model: nn.Module) -> nn.Module:
    """A copy with the very same parameters and buffers of its own."""
    other = copy.deepcopy(model)
    for theirs, mine in zip(other.modules(), model.modules(), strict=True):
        for name, parameter in mine.named_parameters(recurse=False):
            setattr(theirs, name, parameter)
    return other


def train(
    task: Task,
    variant: Variant,
    seed: int,
    make: Callable[..., Ranks],
    world: int,
    epoch_done: Callable[[dict[str, float]], None] = lambda _: None,
    most_steps: int | None = None,
) -> dict[str, Any]:
    """Train, and tell what was reached and sent; `make` is `Simulated` or what takes its arguments."""
    per_epoch = task.steps(world)
    steps = task.epochs * per_epoch
    method = variant.method(steps)
    torch.manual_seed(seed)
    ranks = make(task.model(), task, variant, method, world, seed)
    curve: list[dict[str, float]] = []
    diverged, start, before, traffic = False, time.process_time(), {}, {}
    for step in range(min(steps, most_steps or steps)):
        epoch, inside = divmod(step, per_epoch)
        if not inside:
            task.begin(epoch, seed)
            losses: list[float] = []
        for group in ranks.optimizer.param_groups:
            group["lr"] = variant.lr * task.rate(step / steps)
        gradients = []
        for rank, model in zip(ranks.ranks, ranks.models, strict=True):
            torch.manual_seed((seed * 1_000_000 + step) * 1000 + rank)  # of dropout, crops and flips
            both = task.gradients(model, inside, rank, world)
            gradients.append(both[0])
            losses.append(both[1])
        try:
            ranks.step(gradients, losses[-len(gradients) :])
        except NonFiniteError:
            diverged = True
        if diverged or not math.isfinite(losses[-1]):
            diverged = True
            break
        before, traffic = traffic, ranks.traffic()
        if inside == per_epoch - 1:
            point = {"loss": sum(losses) / len(losses), **test(task, ranks.models[0], False)}
            point["sent_bytes"], bits = traffic["sent_bytes"], ranks.bits()
            curve.append(point if bits is None else {**point, "bits": bits})
            epoch_done(point)
    last = {key: value - before.get(key, 0) for key, value in traffic.items()}
    return {
        "method": None if method is None else method.to_json(),
        **test(task, ranks.models[0], True),
        "diverged": diverged,
        "curve": curve,
        "steps": step + 1,
        "bytes_per_step": last.get("sent_bytes", 0),
        "bytes_in_all": traffic.get("sent_bytes", 0),
        "ratio": quotient(last, "dense_bytes", "sent_bytes"),
        "ratio_compressed_tensors": quotient(last, "compressed_dense_bytes", "payload_bytes"),
        "ratio_with_warmup": quotient(traffic, "dense_bytes", "sent_bytes"),
        "ratio_compressed_tensors_with_warmup": quotient(traffic, "compressed_dense_bytes", "payload_bytes"),
        "parameters": sum(parameter.numel() for parameter in ranks.models[0].parameters()),
        "checksum": checksum(ranks.models[0]),
        "cpu_seconds": round(time.process_time() - start, 1),
    }


def test(task: Task, model: nn.Module, final: bool) -> dict[str, float]:
    model.eval()
    results = task.test(model, final)
    model.train()
    return results


def checksum(model: nn.Module) -> int:
    """Of the parameters: where two runs have the same, they were equal to the last bit."""
    total = 0
    for parameter in model.parameters():
        total = zlib.crc32(parameter.detach().contiguous().numpy().tobytes(), total)
    return total


def quotient(bytes_of: dict[str, float], above: str, below: str) -> float:
    """A compression ratio; 1 where nothing was sent."""
    return bytes_of[above] / bytes_of[below] if bytes_of.get(below) else 1.0
