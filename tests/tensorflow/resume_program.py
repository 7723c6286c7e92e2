"""Run on every rank: `python tests/tensorflow/resume_program.py PART DIRECTORY`. Trains a network, all its
steps ("whole"), the first half ("first", which ends with a checkpoint) or the rest ("second", from the
checkpoint), and writes its weights to DIRECTORY/PART-RANK.npz."""

from __future__ import annotations

import sys
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import hgc_horovod.tensorflow as hgc
from hgc_horovod import methods
from tests.tensorflow.ranks.harness import values

HALF, END = 12, 24  # the checkpoint lies in the warm-up


def main(part: str, folder: str) -> None:
    hvd.init()
    directory = Path(folder)
    tf.keras.utils.set_random_seed(0)
    layers = [tf.keras.layers.Dense(size, "tanh") for size in (48, 40)] + [tf.keras.layers.Dense(32)]
    model = tf.keras.Sequential([tf.keras.layers.Input([64]), *layers])
    options = {"momentum": 0.9, "nesterov": True}
    compression = hgc.Compression.hgc(
        model.trainable_variables,
        density=0.02,
        bits=4,
        warmup_steps=16,
        policy=[("dense_1/kernel", methods.powersgd(2, **options)), ("dense_2/kernel", methods.adaqs(2))],
        **options,
    )
    optimizer = tf.keras.optimizers.SGD(0.05)
    target = tf.constant(values("target", (64, 32), rank=0)) * 0.1

    @tf.function
    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - x @ target) ** 2)
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    # Each rank writes what it keeps itself.
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, compression=compression)
    path = str(directory / f"rank{hvd.rank()}")
    if part == "second":
        checkpoint.read(path)
    for number in range(HALF if part == "second" else 0, HALF if part == "first" else END):
        step(tf.constant(values("x", (16, 64), number)))
    if part == "first":
        checkpoint.write(path)
    np.savez(directory / f"{part}-{hvd.rank()}.npz", *model.get_weights())
    hvd.allreduce(tf.zeros(1), name="end")


if __name__ == "__main__":
    main(*sys.argv[1:])
