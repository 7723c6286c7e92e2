"""What all ranks of a process set have to agree on: their settings before the first step, and in every step,
before anything of it is decoded, whether it counts.

A step counts where every rank could compress every gradient, and every gradient was finite. Where it does
not, each rank takes its part back, so that nothing that was kept is lost with the step.
"""

from __future__ import annotations

import json
import math
import time
from typing import Any

import horovod.torch as hvd
import torch

from ..agreement import CompressionError, difference

BYTES = 12  # that a step's agreement sends
PATIENCE = 30.0  # seconds; half of the time after which Horovod warns of a rank that others wait for


class Agreement:
    """One compressor's.

    Args:
        prefix: of the names of the collectives.
        process_set: whose ranks are to agree.
    """

    def __init__(self, prefix: str, process_set: Any) -> None:
        self._prefix, self._process_set = prefix, process_set
        self._handle: int | None = None
        self.compared = False
        self.begin()

    def begin(self) -> None:
        """A new step."""
        self._finite = True
        self._watched: list[torch.Tensor] = []
        self._failure: tuple[str, Exception] | None = None

    def compare(self, settings: dict[str, Any]) -> None:
        """Compare plain data with the other ranks', as soon as they have come so far.

        Gradients come in another order on other ranks, so this rank does not wait for ever: what it did not
        hear of here it waits for in `conclude`. Raises ValueError, on every rank, where two differ.
        """
        self._handle = self._gather_async(settings, "settings")
        self._settle()

    def broken(self) -> None:
        """This step has a gradient here that is not finite."""
        self._finite = False

    def watch(self, gradient: torch.Tensor) -> None:
        """A gradient that is sent as it is, and may not be finite."""
        if gradient.is_floating_point() and gradient.numel():
            self._watched.append(torch.linalg.vector_norm(gradient.detach(), math.inf))

    def failed(self, tensor: str, error: Exception) -> None:
        """The step cannot be made here. `conclude` raises it, since the other ranks have to hear of it."""
        if self._failure is None:
            self._failure = (tensor, error)

    def conclude(self, discard: bool) -> bool:
        """Whether the step counts. Called once a step on every rank, when all its gradients are on their way.

        Raises:
            CompressionError: a rank failed.
            ValueError: the settings differ, or some ranks `discard` the step and others do not.
        """
        if not self.compared and not self._settle():
            raise ValueError(
                f"some ranks did not answer under the name {self._prefix!r}: set a compressor's method, or "
                "load its state, on every rank or on none; give it the process_set that DistributedOptimizer "
                "was given, and a name= where ranks create compressors in different orders"
            )
        finite, failure = self._finite and _all_finite(self._watched), self._failure
        mine = torch.tensor([not finite, failure is not None, discard], dtype=torch.float32)
        name = f"{self._prefix}.step"
        everyones = hvd.allreduce(mine, op=hvd.Sum, name=name, process_set=self._process_set)
        broken, failures, discards = everyones.tolist()
        if failures:
            text = None if failure is None else f"{failure[0]!r}: {failure[1]!r}"
            texts = _read(hvd.synchronize(self._gather_async(text, "failures")))
            told = [f"rank {rank} could not compress {text}" for rank, text in enumerate(texts) if text]
            raise CompressionError("; ".join(told)) from (None if failure is None else failure[1])
        if discards not in (0, self._process_set.size()):
            raise ValueError(
                f"discard must be called on every rank, in place of step; {discards:.0f} of "
                f"{self._process_set.size()} ranks did"
            )
        return not broken and not discards

    def _settle(self) -> bool:
        """Whether the settings have been compared, after some patience."""
        assert self._handle is not None
        end = time.monotonic() + PATIENCE
        while not hvd.poll(self._handle):
            if time.monotonic() > end:
                return False
            time.sleep(0.001)
        everyones = _read(hvd.synchronize(self._handle))
        self._handle = None
        if found := difference(everyones):
            raise ValueError(found)
        self.compared = True
        return True

    def _gather_async(self, value: Any, name: str) -> int:
        """Start to gather every rank's plain data."""
        line = bytearray(json.dumps(value).encode() + b"\n")
        data = torch.frombuffer(line, dtype=torch.uint8)
        handle: int = hvd.allgather_async(data, f"{self._prefix}.{name}", self._process_set)
        return handle


def _read(gathered: torch.Tensor) -> list[Any]:
    """The ranks' plain data, a line of JSON each."""
    return [json.loads(line) for line in gathered.numpy().tobytes().splitlines()]


def _all_finite(norms: list[torch.Tensor]) -> bool:
    if len(norms) > 1 and norms[0].device.type != "cpu":  # one wait for the device, not one for each
        norms = [torch.stack([norm.to(norms[0].device, torch.float64) for norm in norms]).max()]
    return all(math.isfinite(norm) for norm in norms)
