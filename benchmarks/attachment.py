"""The PyTorch attachment on one rank, without the time that Horovod's own calls take."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import horovod.torch as hvd
import torch
from timing import Operation, clock

import hgc_horovod.torch as hgc
from hgc_horovod.torch import payloads

CALLS = ("allgather_async", "synchronize", "allreduce")
ROWS = (
    *("compress", "decompress", "compress + decompress", "both, with Horovod's calls"),
    *("both, without Horovod's thread", "the same, with warm caches"),
)


@contextmanager
def horovod() -> Iterator[None]:
    """Horovod with one rank and no launcher."""
    with mock.patch.dict(os.environ, HOROVOD_CONTROLLER="gloo", HOROVOD_CPU_OPERATIONS="gloo"):
        hvd.init()
    yield
    hvd.shutdown()


def same(tensor: Any, *_: Any, **__: Any) -> Any:
    return tensor


class Attachment:
    """A compressor with `batch` parameters of n entries, whose gradients take the same way as in training.

    With one rank Horovod's allreduce would return what it is given, so `decompress` gets just that, and
    one payload to decode.
    """

    def __init__(self, batch: int, n: int, density: float, bits: int) -> None:
        parameters = [torch.nn.Parameter(torch.empty(2, n // 2)) for _ in range(batch)]
        self.gradients = [torch.zeros(2, n // 2) for _ in range(batch)]
        for parameter, gradient in zip(parameters, self.gradients, strict=True):
            parameter.grad = gradient
        names = [f"weight{i}" for i in range(batch)]
        self.compressor = hgc.Compression.hgc(
            list(zip(names, parameters, strict=True)), density=density, bits=bits
        )
        self.sent: list[tuple[torch.Tensor, Any]] = []
        self.inside = 0.0  # seconds in Horovod's calls

    def run(self, gradient: torch.Tensor) -> list[float]:
        """Seconds of each of ROWS."""
        timed = {name: self._timed(getattr(payloads.hvd, name)) for name in CALLS}
        with self._fresh(gradient, timed):
            compress, within = clock(self._compress), self.inside
            decompress = clock(self._decompress)
        own = [compress - within, decompress - (self.inside - within)]
        # What Horovod would do with one rank, at once: its thread then does not run beside us.
        with self._fresh(gradient, dict.fromkeys(CALLS, same)):
            alone = clock(self._compress) + clock(self._decompress)
        with self._fresh(gradient, dict.fromkeys(CALLS, same)):
            start = time.perf_counter()
            self._compress()
            self._decompress()
            warm = time.perf_counter() - start
        return [*own, sum(own), compress + decompress, alone, warm]

    @contextmanager
    def _fresh(self, gradient: torch.Tensor, calls: dict[str, Callable[..., Any]]) -> Iterator[None]:
        """With gradients to compress, and `calls` in place of Horovod's."""
        for mine, given in zip(self.gradients, gradient, strict=True):
            mine.copy_(given.view_as(mine))  # `decompress` is going to write there
        self.inside = 0.0
        with ExitStack() as patches:
            for name, call in calls.items():
                patches.enter_context(mock.patch.object(payloads.hvd, name, call))
            yield

    def _compress(self) -> None:
        self.sent = [self.compressor.compress(gradient) for gradient in self.gradients]

    def _decompress(self) -> None:
        for gradient, (reduced, context) in zip(self.gradients, self.sent, strict=True):
            assert reduced.numel() < gradient.numel()  # it was compressed
            self.compressor.decompress(reduced, context)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            start = time.perf_counter()
            result = call(*arguments, **keywords)
            self.inside += time.perf_counter() - start
            return result

        return timed


def attachment(batch: int, n: int, row: dict[str, Any]) -> Operation:
    """All ROWS of the density and bits in `row`."""
    measured = Attachment(batch, n, row["density"], row["bits"])
    return Operation([{**row, "operation": name} for name in ROWS], measured.run)
