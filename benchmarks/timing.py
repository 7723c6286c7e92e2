"""Operations measured in turn, as multiples of a unit that is measured beside them."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

ROTATED = 3  # gradients of which one is used in each repetition
DRIFT, JUMP = 0.99, 10.0  # what the gradients' scale is multiplied by: in each step, once in the run
SLACK = 1 << 16  # entries by which a gradient is shifted at most, see Gradients
ALIGNED = 16  # entries in a cache line
ADD = "r.add_(g)"
ZERO = "out.zero_()"

_elsewhere = torch.ones(1 << 24)  # 64 MiB, more than the caches hold


def clock(work: Callable[..., Any], *arguments: Any) -> float:
    """Seconds that the call takes when nothing it touches is in the cache."""
    _elsewhere.sum()
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


class Gradients:
    """Gradients (batch, n) of independent entries, whose scale drifts and jumps.

    All are cut from one array of random numbers, each at another place: to an entry's residual they look
    independent from step to step, and none takes the time to draw n numbers.
    """

    def __init__(self, distribution: str, batch: int, n: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        size = batch * n + SLACK
        if distribution == "normal":
            numbers = self._random.standard_normal(size, np.float32)
        elif distribution == "laplace":
            numbers = self._random.laplace(size=size).astype(np.float32)
        else:
            numbers = self._random.standard_t(3, size).astype(np.float32)
        self._numbers = torch.from_numpy(numbers)
        self._rotated = torch.zeros(ROTATED, batch, n)
        self.shape = (batch, n)

    def steps(self, count: int, jump: int) -> Iterator[torch.Tensor]:
        """Every step's gradient; before the step `jump` the scale jumps."""
        scale = 1.0
        for step in range(count):
            scale *= DRIFT * (JUMP if step == jump else 1)
            place = ALIGNED * int(self._random.integers(SLACK // ALIGNED))
            gradient = self._rotated[step % ROTATED]
            torch.mul(self._numbers[place : place + gradient.numel()].view(self.shape), scale, out=gradient)
            yield gradient


@dataclass(eq=False)
class Operation:
    """Something to measure.

    `run` takes a gradient (batch, n), and returns the seconds of each row that it gives. What is `stateful`
    runs in the discarded steps, too. Of the repetitions, the first `limit` are enough. `kernels`: what
    counts the second passes, if that is wanted.
    """

    rows: list[dict[str, Any]]
    run: Callable[[torch.Tensor], list[float]]
    unit: str = ADD
    stateful: bool = True
    limit: int | None = None
    kernels: Any = None
    ratios: list[list[float]] = field(default_factory=list)
    seconds: list[list[float]] = field(default_factory=list)


def each(work: Callable[..., Any], *tensors: Any) -> Callable[[torch.Tensor], list[float]]:
    """An operation's `run` that calls `work(gradient, ...)` for every tensor of the batch."""

    def loop(gradients: list[torch.Tensor]) -> None:
        for arguments in zip(gradients, *tensors, strict=True):
            work(*arguments)

    return lambda gradient: [clock(loop, list(gradient))]


def units(batch: int, n: int) -> dict[str, Operation]:
    """What the others are multiples of."""
    sums, outs = list(torch.zeros(batch, n)), list(torch.ones(batch, n))
    return {
        ADD: Operation([], each(lambda gradient, sum_: sum_.add_(gradient), sums)),
        ZERO: Operation([], each(lambda _, out: out.zero_(), outs), ZERO),
    }


def measure(
    operations: list[Operation], gradients: Gradients, repetitions: int, discarded: int
) -> list[dict[str, Any]]:
    """Run the operations in turn and return their rows.

    In each repetition all get the same gradient and another one comes first, so that noise from outside hits
    all alike; the ratio is taken within a repetition. The first `discarded` steps are not measured.
    """
    batch, n = gradients.shape
    standard = units(batch, n)
    everything = [*standard.values(), *operations]
    before: dict[Operation, tuple[int, int]] = {}
    for step, gradient in enumerate(
        gradients.steps(discarded + repetitions, jump=discarded + repetitions // 2), -discarded
    ):
        if step == 0:
            before = {operation: _passes(operation) for operation in operations}
        todo = [
            operation
            for operation in everything
            if (operation.stateful if step < 0 else operation.limit is None or step < operation.limit)
        ]
        first = step % len(todo)
        seconds = {operation: operation.run(gradient) for operation in todo[first:] + todo[:first]}
        for operation in operations if step >= 0 else []:
            if operation in seconds:
                (unit,) = seconds[standard[operation.unit]]
                operation.ratios.append([time_ / unit for time_ in seconds[operation]])
                operation.seconds.append([time_ / batch for time_ in [*seconds[operation], unit]])
    return [
        row
        for operation in operations
        for row in _rows(operation, n, batch, before.get(operation, (0, 0)), _passes(operation))
    ]


def _passes(operation: Operation) -> tuple[int, int]:
    """Encodes and second passes so far; the NumPy kernels, which need none, do not count."""
    return getattr(operation.kernels, "encodes", 0), getattr(operation.kernels, "rescans", 0)


def _rows(
    operation: Operation, n: int, batch: int, before: tuple[int, int], after: tuple[int, int]
) -> Iterator[dict[str, Any]]:
    *times, unit = zip(*operation.seconds, strict=True)
    for row, ratios, seconds in zip(operation.rows, zip(*operation.ratios, strict=True), times, strict=True):
        low, ratio, high = (round(value, 4) for value in np.quantile(ratios, (0.25, 0.5, 0.75)).tolist())
        result = {
            "operation": row["operation"],
            "n": n,
            "density": row["density"],
            "bits": row["bits"],
            "distribution": row["distribution"],
            "unit": operation.unit,
            "ratio": ratio,
            "low": low,
            "high": high,
            "repetitions": len(ratios),
            "tensors": batch,
            "microseconds": round(1e6 * statistics.median(seconds), 2),
            "unit_microseconds": round(1e6 * statistics.median(unit), 2),
        }
        if after != before:
            result["encodes"] = after[0] - before[0]
            result["second_passes"] = after[1] - before[1]
        yield result
