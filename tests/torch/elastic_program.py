"""One rank of an elastic job: `python tests/torch/elastic_program.py DIRECTORY DEATH WORLDS…`.

The ranks train in one world after the other, of these numbers of ranks. A world lasts until the test changes
it, and the last one STEPS steps. In step DEATH, if there is one, the first world's rank 0 dies. Each
process checks by itself what it can, and writes what happens to it to DIRECTORY/PID.jsonl, a line per event.
An error ends it, after a line with the traceback.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

import hgc_horovod.torch as hgc
from tests.torch.ranks.training import batch, fingerprint, perceptron

COMMIT = 5  # steps from one commit to the next
STEPS = 12
CHANGE, DENSER = 3, 0.05  # the step in which another density is set
PATIENCE = 120.0  # seconds within which a world must change
PAUSE = 0.02  # seconds that leave the cores to a rank that is about to start


class Job:
    """What one process trains, and what it knows of it."""

    def __init__(self, directory: str, death: str, *worlds: str) -> None:
        self.log = Path(directory) / f"{os.getpid()}.jsonl"
        self.death, self.worlds = int(death), [int(world) for world in worlds]
        torch.manual_seed(hvd.rank())
        self.model = perceptron(48)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)
        self.compressor = hgc.Compression.hgc(
            self.model.named_parameters(),
            density=0.02,
            min_elements=0,
            momentum_from=optimizer,
            dense_steps=2,
        )
        self.optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=self.model.named_parameters(), compression=self.compressor
        )
        self.state = hvd.elastic.TorchState(
            model=self.model, optimizer=self.optimizer, compression=self.compressor, step=0, world=0
        )
        self.committed: dict[str, Any] | None = None  # by this process: a new one has nothing yet
        self.latest = self.tensors()

    def run(self) -> None:
        """What Horovod calls again in every world, after it has synchronized the state."""
        self.begin()
        last, left = self.state.world == len(self.worlds) - 1, STEPS
        patience = time.monotonic() + PATIENCE
        while left:
            self.step()
            if self.state.step % COMMIT == 0:
                self.commit()
            if last:
                left -= 1
            else:
                time.sleep(PAUSE)
                assert time.monotonic() < patience, "the world does not change"
        self.check_equal()
        self.write("end")
        hvd.barrier()

    def begin(self) -> None:
        """Check the state that a world begins with."""
        state, tensors, old = self.state, self.tensors(), self.committed
        kept = [
            n for n, entry in tensors.items() if entry["residual"] is not None and entry["residual"].any()
        ]
        if old is None:
            assert not kept, "a new rank has a residual"
        else:
            different = [name for name, entry in old.items() if not same(entry, tensors[name])]
            assert not different, f"{different} are not as they were committed"
        assert all(entry["step"] == state.step for entry in tensors.values()), f"not all are at {state.step}"
        self.check_equal()
        state.world += state.step > 0
        assert hvd.size() == self.worlds[state.world]
        self.write(
            "begin",
            survivor=old is not None,
            undone=old is not None and not all(same(entry, self.latest[name]) for name, entry in old.items()),
            residuals=kept,
        )

    def step(self) -> None:
        images, labels = batch(self.state.step, hvd.rank())
        if self.state.step == CHANGE and self.compressor.method.selector.density != DENSER:
            self.compressor.method = hgc.methods.hgc(DENSER, min_elements=0)  # which a new rank has to learn
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        if (self.state.world, self.state.step, hvd.rank()) == (0, self.death, 0):
            # The last layer's gradients are on their way by then.
            self.model[1].weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        loss.backward()
        self.optimizer.step()
        self.state.step += 1
        self.latest = self.tensors()

    def commit(self) -> None:
        self.check_equal()
        self.committed = self.tensors()
        self.write("commit")
        self.state.commit()

    def tensors(self) -> dict[str, Any]:
        return self.compressor.state_dict()["tensors"]

    def check_equal(self) -> None:
        """All ranks have the same parameters, to the bit."""
        everyones = hvd.allgather_object(fingerprint(self.model))
        assert len(set(everyones)) == 1, f"the ranks' parameters differ after step {self.state.step}"

    def write(self, event: str, **facts: Any) -> None:
        now = {"world": self.state.world, "step": self.state.step, "rank": hvd.rank()}
        with self.log.open("a") as lines:
            print(json.dumps({"event": event, **now, **facts}), file=lines)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two tensors' states are the same, to the bit."""
    return bits(one) == bits(other)


def bits(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.numpy().tobytes()
        if torch.is_tensor(value)
        else bits(value)
        if isinstance(value, dict)
        else value
        for key, value in entry.items()
    }


def main(*args: str) -> None:
    torch.set_num_threads(1)
    hvd.init()
    job = Job(*args)

    @hvd.elastic.run
    def train(state: Any) -> None:
        try:
            job.run()
        except (HorovodInternalError, HostsUpdatedInterrupt) as change:  # for Horovod to handle
            job.write(type(change).__name__)
            raise

    try:
        train(job.state)
    except Exception:
        job.write("error", traceback=traceback.format_exc())
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
