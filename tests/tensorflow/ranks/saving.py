"""Checkpoints and exported graphs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import hgc_horovod.tensorflow as hgc
from tests.cases import variants

from .gradients import check, reducer
from .harness import OPTIONS, Codecs, given, raises, variables


@variants(given={"known": True}, found={"known": False}, momentum={"known": True, "momentum": 0.9})
def case_checkpoint(known: bool, **options: Any) -> None:
    """What is restored goes on as the original, also where its variables are created after the restore."""
    trained, options = variables(), {**OPTIONS, **options}
    first = hgc.Compression.hgc(trained if known else None, **options)
    reduce, codecs = reducer(trained, first), Codecs(options)
    for step in range(2):
        check(trained, reduce(given(trained, step)), codecs, step)
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(compression=first).save(Path(folder) / "state")
        second = hgc.Compression.hgc(trained if known else None, **options)
        status = tf.train.Checkpoint(compression=second).restore(path)
        if known:
            status.assert_existing_objects_matched()
        reduce = reducer(trained, second)
        for step in range(2, 4):
            check(trained, reduce(given(trained, step)), codecs, step)
        status.assert_existing_objects_matched()


def case_another_ranks_checkpoint() -> None:
    """Residuals are each rank's own: restoring one rank's on all fails on all."""
    trained = variables()
    first = hgc.Compression.hgc(trained, **OPTIONS)
    reducer(trained, first)(given(trained, 0))
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "state")
        if hvd.rank() == 0:
            path = tf.train.Checkpoint(compression=first).save(path)
        path = hvd.broadcast_object(path, name="path")
        second = hgc.Compression.hgc(trained, **OPTIONS)
        tf.train.Checkpoint(compression=second).restore(path)
        hvd.allreduce(tf.zeros(1), name="restored")
    reduce = reducer(trained, second)
    raises(tf.errors.AbortedError, ["could not encode", "log"], lambda: reduce(given(trained, 1)))
    second.reset()
    check(trained, reduce(given(trained, 0)), Codecs(OPTIONS), 0)


class Trainer(tf.Module):
    """A training step as part of a model that can be exported."""

    def __init__(self) -> None:
        self.trained = variables({"matrix": (48, 32)})
        self.compression = hgc.Compression.hgc(self.trained, **OPTIONS)

    @tf.function(input_signature=[tf.TensorSpec([48, 32])])
    def step(self, gradient: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.trained[0] * gradient)
        tape = hvd.DistributedGradientTape(tape, compression=self.compression)
        return tape.gradient(loss, self.trained)[0]


def case_exported() -> None:
    """A saved model's training step compresses, and goes on with what was kept when it was saved."""
    trainer, codecs = Trainer(), Codecs(OPTIONS)

    def expect(step: Any, number: int) -> None:
        (gradient,) = given(trainer.trained, number)
        reduced = step(gradient).numpy()
        assert np.array_equal(reduced, codecs.reduced("matrix", (48, 32), number))

    for number in range(2):
        expect(trainer.step, number)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(trainer, folder)
        loaded = tf.saved_model.load(folder)
        for number in range(2, 4):
            expect(loaded.step, number)
