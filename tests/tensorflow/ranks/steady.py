"""Long runs: as many traces, Python objects and bytes of memory after many steps as after a few."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

import hgc_horovod.tensorflow as hgc
from tests.cases import variants

from .fitting import model
from .harness import OPTIONS, equal_on_all_ranks, values

STEPS, FIRST = 500, 100


def resident() -> int:
    """This process's memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@variants(graph={"graph": True}, eager={"graph": False})
def case_memory_and_traces(graph: bool) -> None:
    net = model()
    trained = net.trainable_variables
    compression = hgc.Compression.hgc(trained, **OPTIONS, momentum=0.9)
    optimizer = tf.keras.optimizers.SGD(0.01)
    optimizer.build(trained)
    traces = 0

    def step(inputs: Any, targets: Any) -> Any:
        nonlocal traces
        traces += graph
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((net(inputs) - targets) ** 2)
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
        return loss

    call = tf.function(step) if graph else step
    after = []
    for number in range(STEPS if graph else STEPS // 2):
        call(tf.constant(values("inputs", (16, 20), number)), tf.constant(values("targets", (16, 5), number)))
        if number % FIRST == FIRST - 1:
            gc.collect()
            after.append((len(gc.get_objects()), resident()))
    objects, memory = zip(*after, strict=True)
    assert objects[-1] - objects[0] < 200, objects
    assert memory[-1] - memory[0] < 8 << 20, memory
    assert traces == graph
    assert len(compression.tracing.functions) == (0 if graph else 1)
    equal_on_all_ranks([v.numpy() for v in trained], "weights")
