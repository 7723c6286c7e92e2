"""The runs of accuracy.py on Horovod's ranks, as a user trains: each is one process, one after the other."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import horovod.torch as hvd
import torch
from tasks import Task
from torch import nn
from variants import Variant

import hgc_horovod.torch as hgc
from hgc_horovod import Method


class Real:
    """This rank. What it sends is what the attachment makes of the gradients; see `training.Ranks`."""

    def __init__(
        self, model: nn.Module, task: Task, variant: Variant, method: Method | None, world: int, seed: int
    ) -> None:
        self.world, self.ranks, self.models = world, [hvd.rank()], [model]
        self._parameters = list(model.parameters())
        momentum = variant.momentum(task)
        optimizer = torch.optim.SGD(self._parameters, task.lr, momentum, weight_decay=task.weight_decay)
        self._fp16, self._dense_bytes = variant.fp16, 0
        self._compressor: Any = None
        compression: Any = hvd.Compression.fp16 if variant.fp16 else hvd.Compression.none
        if method is not None:
            compression = self._compressor = hgc.Compression.from_method(
                method,
                model.named_parameters(),
                momentum_from=optimizer if variant.moved else None,
                seed=seed,
            )
        self.optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), compression=compression
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def step(self, gradients: Sequence[Sequence[torch.Tensor]], losses: Sequence[float]) -> None:
        """Horovod finds in `step` that no hook has sent the gradients yet, and sends them."""
        if hasattr(self._compressor, "report_loss"):
            self._compressor.report_loss(losses[0])
        for parameter, gradient in zip(self._parameters, gradients[0], strict=True):
            parameter.grad = gradient
        self._dense_bytes += sum(4 * gradient.numel() for gradient in gradients[0])
        self.optimizer.step()

    def traffic(self) -> dict[str, float]:
        if self._compressor is None:
            dense, sent = self._dense_bytes, self._dense_bytes // (2 if self._fp16 else 1)
            return {"dense_bytes": dense, "sent_bytes": sent, "compressed_dense_bytes": 0, "payload_bytes": 0}
        total = self._compressor.report().to_dict()["total"]
        keys = ("dense_bytes", "sent_bytes", "compressed_dense_bytes", "payload_bytes")
        return {key: total[key] for key in keys}

    def bits(self) -> None:
        """Not known: the payloads are out of sight here."""


def carry_out_all(arguments: argparse.Namespace) -> None:
    """What is missing, on all ranks; rank 0 says what that is, and writes the results."""
    from accuracy import append, carry_out, missing

    torch.set_num_threads(1)
    hvd.init()
    arguments.workers = hvd.size()
    for run in hvd.broadcast_object(
        list(missing(arguments, "horovod")) if hvd.rank() == 0 else None, name="runs"
    ):
        row = carry_out(run, Real)
        if hvd.rank() == 0:
            append(arguments.output, row)
            print(f"{row['task']} {row['variant']} {row['seed']}: {row['metric']} {row[row['metric']]:.4f}")
