"""Run on every rank: `python tests/torch/resume_program.py PART DIRECTORY`. Trains a network, all its steps
("whole"), the first half ("first", which ends with a checkpoint) or the rest ("second", from the checkpoint),
and writes its parameters to DIRECTORY/PART-RANK.pt."""

from __future__ import annotations

import sys
from pathlib import Path

import horovod.torch as hvd
import torch

import hgc_horovod.torch as hgc
from tests.torch.ranks.harness import values

HALF, END = 12, 24  # the checkpoint lies in the warm-up


def main(part: str, folder: str) -> None:
    torch.set_num_threads(1)
    hvd.init()
    directory = Path(folder)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.Tanh(), torch.nn.Linear(48, 32))
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)
    compression = hgc.Compression.hgc(
        model.named_parameters(), density=0.02, bits=4, momentum_from=sgd, warmup_steps=16
    )
    optimizer = hvd.DistributedOptimizer(
        sgd, named_parameters=model.named_parameters(), compression=compression
    )
    if part == "second":
        checkpoint = torch.load(directory / "checkpoint.pt", weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        compression.load(directory / "compression")
    target = torch.from_numpy(values("target", (64, 32), rank=0)) * 0.1
    for step in range(HALF if part == "second" else 0, HALF if part == "first" else END):
        x = torch.from_numpy(values("x", (16, 64), step))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), x @ target).backward()
        optimizer.step()
    if part == "first":
        compression.save(directory / "compression")
        if hvd.rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, directory / "checkpoint.pt")
    torch.save(model.state_dict(), directory / f"{part}-{hvd.rank()}.pt")
    hvd.barrier()
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
