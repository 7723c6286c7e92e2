"""One rank of a job that sends the same gradients through a framework: `python bytes_program.py FRAMEWORK
DIRECTORY`. Writes a digest of each payload to DIRECTORY/FRAMEWORK-RANK.json."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hgc_horovod import Codec, Method, methods
from tests import cases

STEPS, FEW_STEPS = 50, 12
SHAPES = {"matrix": (48, 32), "kernel": (7, 9, 4, 8), "other": (120, 70)}
METHODS = {
    "four bits": methods.hgc(0.02, 4),
    "one bit": methods.hgc(0.05, 1, momentum=0.9, masking=True),
    "two bits": methods.hgc(0.01, 2, momentum=0.9, nesterov=True, clip=2.0),
    "bfloat16": methods.hgc(0.05, 16, warmup_steps=20),
    "float32": methods.hgc(0.01, 32, warmup_steps=8, warmup_stages=2),
}
LITERATURE = {
    "qsgd": methods.qsgd(),
    "dgc": methods.dgc(0.05, clip=2.0, warmup_steps=4),
    "adaqs": methods.adaqs(start_bits=2),
    "wangni": methods.wangni(0.05),
    "oland_raj": methods.oland_raj(history=False),
}
Gradients = dict[str, np.ndarray]
Reduce = Callable[[Gradients], object]
Sent = Callable[[], dict[str, bytes]]


def gradients(step: int, rank: int) -> Gradients:
    """Values of several magnitudes."""
    return {
        name: cases.values(name, shape, step, rank) * np.float32(2.0 ** (step % 5 - 2))
        for name, shape in SHAPES.items()
    }


def payloads_of_codecs() -> Sent:
    """The payloads of the last step of every codec of this process."""
    sent: dict[str, bytes] = {}
    encode = Codec.encode

    def recorded(self: Codec, *arguments: Any, **keywords: Any) -> Any:
        payload = encode(self, *arguments, **keywords)
        sent[self.name] = payload.tobytes()
        return payload

    Codec.encode = recorded
    return lambda: sent


def with_torch() -> Iterator[tuple[int, Callable[[Method], tuple[Reduce, Sent]]]]:
    import horovod.torch as hvd
    import torch

    import hgc_horovod.torch as hgc

    hvd.init()
    sent = payloads_of_codecs()

    def made(method: Method) -> tuple[Reduce, Sent]:
        model = torch.nn.ParameterDict({name: torch.zeros(shape) for name, shape in SHAPES.items()})
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.0),
            named_parameters=model.named_parameters(),
            compression=hgc.Compression.from_method(method, model.named_parameters()),
        )

        def reduce(given: Gradients) -> None:
            for name, gradient in given.items():
                model[name].grad = torch.from_numpy(gradient.copy())
            optimizer.step()

        return reduce, sent

    yield hvd.rank(), made
    hvd.barrier()


def with_tensorflow() -> Iterator[tuple[int, Callable[[Method], tuple[Reduce, Sent]]]]:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    import hgc_horovod.tensorflow as hgc

    hvd.init()
    sent_by_codecs = payloads_of_codecs()

    def made(method: Method) -> tuple[Reduce, Sent]:
        trained = [tf.Variable(tf.zeros(shape), name=name) for name, shape in SHAPES.items()]
        compressor = hgc.Compression.from_method(method, trained)

        @tf.function
        def reduce(given: dict[str, tf.Tensor]) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(v * g) for v, g in zip(trained, given.values(), strict=True)])
            return hvd.DistributedGradientTape(tape, compression=compressor).gradient(loss, trained)

        def sent() -> dict[str, bytes]:
            if all(slot.python is not None for slot in compressor.slots.by_name.values()):
                return sent_by_codecs()
            slots = compressor.slots.by_name.items()
            sizes = {
                name: method.payload_bytes(slot.n, int(slot.step) - 1)
                for name, slot in slots
                if slot.compressed
            }
            # Behind a byte that tells that a payload follows, as no step here dwarfs what is kept; see
            # csrc/tensorflow/slot.h.
            return {
                name: compressor.slots.by_name[name].last.numpy().tobytes()[1 : 1 + size]
                for name, size in sizes.items()
            }

        return lambda given: reduce({name: tf.constant(g) for name, g in given.items()}), sent

    yield hvd.rank(), made
    hvd.allreduce(tf.zeros(1), name="end")


def with_mpi() -> Iterator[tuple[int, Callable[[Method], tuple[Reduce, Sent]]]]:
    from mpi4py import MPI

    import hgc_horovod.mpi as hgc

    sent = payloads_of_codecs()

    def made(method: Method) -> tuple[Reduce, Sent]:
        reducer = hgc.Reducer(MPI.COMM_WORLD, method, SHAPES)
        return lambda given: [reducer.allreduce(name, each) for name, each in given.items()], sent

    yield MPI.COMM_WORLD.Get_rank(), made


FRAMEWORKS = {"torch": with_torch, "tensorflow": with_tensorflow, "mpi": with_mpi}


def main(framework: str, directory: str) -> None:
    for rank, made in FRAMEWORKS[framework]():
        digests = {}
        for label, method in (METHODS | LITERATURE).items():
            reduce, sent = made(method)
            for step in range(STEPS if label in METHODS else FEW_STEPS):
                reduce(gradients(step, rank))
                for name, payload in sent().items():
                    digests[f"{label}, {name}, step {step}"] = hashlib.sha256(payload).hexdigest()
        path = Path(directory) / f"{framework}-{rank}.json"
        path.write_text(json.dumps(digests))


if __name__ == "__main__":
    main(*sys.argv[1:])
