"""What the TensorFlow scripts have in common: the network, its optimizer, its data and its test."""

import argparse
import os
from collections.abc import Iterator

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from datasets import load
from training import Log, parse_arguments, steps_in_epoch

import hgc_horovod.tensorflow as hgc

# Keras scales the weight decay by the learning rate alone, and not by the momentum's 1 / (1 - 0.9) as well.
DEFAULTS = {"lr": 0.1, "weight_decay": 5e-3}


class Task:
    """All that one training run is made of, as the command line says.

    Attributes:
        args: the options.
        model: a network with logits as its output.
        optimizer: SGD, not yet wrapped by Horovod. Its learning rate rises for a quarter of the steps and
            then falls along a cosine.
        compression: what Horovod is to be given.
        log: to be told of each step and, with what `test` returns, of each epoch.
    """

    def __init__(self, description: str) -> None:
        self.args = args = parse_arguments(description, **DEFAULTS)
        hvd.init()
        tf.config.threading.set_intra_op_parallelism_threads(
            max(1, (os.cpu_count() or 1) // hvd.local_size())
        )
        tf.keras.utils.set_random_seed(args.seed)
        self.data = load(args.dataset, args.data, args.limit)
        self._train_x, self._test_x = (x.transpose(0, 2, 3, 1) for x in (self.data.train_x, self.data.test_x))
        self.steps_per_epoch = steps_in_epoch(args, len(self._train_x), hvd.size())

        self.model = network(self._train_x.shape[1:], self.data.classes)
        self.compression = compression(args, self.model, self.steps_per_epoch)
        self.optimizer = sgd(args, args.epochs * self.steps_per_epoch)
        self.log = Log(
            args,
            self.compression,
            self.model.count_params(),
            self.steps_per_epoch,
            hvd.rank(),
            hvd.size(),
            untimed=1,  # which traces the graph
        )

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """This rank's images and labels of all steps: each epoch is a permutation that the ranks share."""
        args, noise = self.args, np.random.default_rng([self.args.seed, hvd.rank()])
        for epoch in range(args.epochs):
            order = np.random.default_rng([args.seed, epoch]).permutation(len(self._train_x))
            mine = order[hvd.rank() :: hvd.size()][: self.steps_per_epoch * args.batch_size]
            for batch in mine.reshape(self.steps_per_epoch, args.batch_size):
                yield augment(self._train_x[batch], self.data.shift, noise), self.data.train_y[batch]

    def test(self) -> tuple[float, float]:
        """Mean loss and accuracy on the test images; each rank takes its share of them."""
        x, y = self._test_x[hvd.rank() :: hvd.size()], self.data.test_y[hvd.rank() :: hvd.size()]
        logits = self.model.predict(x, batch_size=500, verbose=0)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits).numpy()
        sums = tf.constant([losses.sum(), (logits.argmax(1) == y).sum(), len(y)], tf.float32)
        loss, correct, count = hvd.allreduce(sums, op=hvd.Sum, name="test").numpy().tolist()
        return loss / count, correct / count


def network(shape: tuple[int, ...], classes: int) -> tf.keras.Model:
    """Images (n, height, width, channels) to logits (n, classes)."""
    layers = tf.keras.layers
    convolutions = [
        layers.Conv2D(width, 3, strides=2, padding="same", activation="relu", kernel_initializer="he_normal")
        for width in (32, 64, 128)
    ]
    head = [layers.Flatten(), layers.Dense(128, "relu"), layers.Dense(classes)]
    return tf.keras.Sequential([layers.Input(shape), *convolutions, *head])


def compression(args: argparse.Namespace, model: tf.keras.Model, steps_per_epoch: int):
    """What Horovod is given as its `compression`."""
    if args.compression != "hgc":
        return getattr(hvd.Compression, args.compression)
    return hgc.Compression.hgc(
        model.trainable_variables,
        density=args.density,
        bits=args.bits,
        momentum=args.momentum,
        warmup_steps=round(args.warmup_epochs * steps_per_epoch),
    )


def sgd(args: argparse.Namespace, steps: int) -> tf.keras.optimizers.Optimizer:
    """SGD; its momentum is the compressor's where there is one."""
    rise = steps // 4
    rate = tf.keras.optimizers.schedules.CosineDecay(
        args.lr / 25, steps - rise, warmup_target=args.lr, warmup_steps=rise
    )
    momentum = 0.0 if args.compression == "hgc" else args.momentum
    return tf.keras.optimizers.SGD(rate, momentum, weight_decay=args.weight_decay)


def augment(x: np.ndarray, shift: int, noise: np.random.Generator) -> np.ndarray:
    """Flip half of a batch left to right and move each image by up to `shift` pixels."""
    n, height, width, _ = x.shape
    x = np.where(noise.random((n, 1, 1, 1)) < 0.5, x[:, :, ::-1], x)
    x = np.pad(x, ((0, 0), (shift, shift), (shift, shift), (0, 0)))
    top, left = noise.integers(0, 2 * shift + 1, (2, n, 1))
    rows, columns = top + np.arange(height), left + np.arange(width)
    return x[np.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]
