"""Keras models and optimizers (tf_keras), and TensorFlow 1's, with compression."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import numpy as np
import tensorflow as tf

import hgc_horovod.tensorflow as hgc
from tests.cases import variants

from .harness import (
    OPTIONS,
    Codecs,
    close,
    equal_on_all_ranks,
    given,
    loss_with,
    name_of,
    raises,
    values,
    variables,
)

EXACT = {"density": 1.0, "bits": 32, "inflate": True, "min_elements": 0}


def model(seed: int = 5) -> Any:
    tf.keras.utils.set_random_seed(seed)
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input([20]),
            tf.keras.layers.Dense(64, "tanh"),
            tf.keras.layers.Dense(48, "tanh"),
            tf.keras.layers.Dense(5),
        ]
    )


def data(batches: int, size: int = 16) -> tuple[np.ndarray, np.ndarray]:
    return values("inputs", (batches * size, 20)), values("targets", (batches * size, 5))


@variants(
    average={},
    adam={"optimizer": "adam"},
    accumulating={"backward_passes_per_step": 2},
    eager={"run_eagerly": True},
)
def case_fit(optimizer: str = "sgd", run_eagerly: bool = False, **horovod: Any) -> None:
    """200 steps of `fit`: the ranks' weights stay equal to the bit, and the loss falls."""
    net = model()
    compression = hgc.Compression.hgc(net.trainable_variables, **OPTIONS)
    made = {"sgd": lambda: tf.keras.optimizers.SGD(0.05), "adam": lambda: tf.keras.optimizers.Adam(1e-3)}
    wrapped = hvd_keras.DistributedOptimizer(made[optimizer](), compression=compression, **horovod)
    net.compile(wrapped, "mse", run_eagerly=run_eagerly)
    inputs, targets = data(10 if run_eagerly else 50)
    history = net.fit(inputs, targets, batch_size=16, epochs=4, verbose=0, shuffle=False)
    losses = history.history["loss"]
    assert losses[-1] < losses[0]
    equal_on_all_ranks(net.get_weights(), "weights")
    steps = 4 * (10 if run_eagerly else 50) // horovod.get("backward_passes_per_step", 1)
    compressed = [slot for slot in compression.slots.by_name.values() if slot.compressed]
    assert [int(slot.step) for slot in compressed] == [steps] * 2
    assert all(np.abs(slot.residual.numpy()).max() > 0 for slot in compressed)


@variants(average={}, momentum={"momentum": 0.9}, nesterov={"momentum": 0.9, "nesterov": True})
def case_equivalence(**options: Any) -> None:
    """With everything sent exactly, `fit` is plain Horovod's to rounding; momentum in the compressor is
    that of SGD at a constant rate."""
    weights = []
    for compressed in (True, False):
        net = model()
        compression, own = hvd.Compression.none, options
        if compressed:
            compression = hgc.Compression.hgc(net.trainable_variables, **EXACT, min_ndim=0, **options)
            own = {}
        wrapped = hvd_keras.DistributedOptimizer(
            tf.keras.optimizers.SGD(0.05, **own), compression=compression
        )
        net.compile(wrapped, "mse")
        net.fit(*data(8), batch_size=16, epochs=1, verbose=0, shuffle=False)
        weights.append(net.get_weights())
    for one, other in zip(*weights, strict=True):
        close(one, other, 1e-5)


@variants(graph={}, eager={"graph": False}, legacy={"legacy": True})
def case_minimize(graph: bool = True, legacy: bool = False) -> None:
    """A loop of one's own with Horovod's optimizer; what it would apply unreduced is refused."""
    trained = variables()
    compression, codecs = hgc.Compression.hgc(trained, **OPTIONS), Codecs(OPTIONS)
    kind = tf.keras.optimizers.legacy.SGD if legacy else tf.keras.optimizers.SGD
    optimizer = hvd.DistributedOptimizer(kind(1.0), compression=compression)
    unreduced = list(zip(given(trained, 0), trained, strict=True))
    raises(ValueError, ["apply_gradients", "Tape"], lambda: optimizer.apply_gradients(unreduced))
    if not legacy:
        optimizer.build(trained)

    def step(gradients: Any) -> None:
        optimizer.minimize(lambda: loss_with(trained, gradients), trained)

    call = tf.function(step) if graph else step
    expected = {name_of(v): np.zeros(v.shape) for v in trained}
    for number in range(4):
        call(given(trained, number))
        for variable in trained:
            name = name_of(variable)
            expected[name] = expected[name] - codecs.reduced(name, variable.shape.as_list(), number)
            close(variable.numpy(), expected[name], 1e-5)


@variants(graph={"eager": False}, eager={"eager": True})
def case_tensorflow_1_optimizer(eager: bool) -> None:
    """`tf.compat.v1` optimizers, in a session's graph and eagerly."""
    compression_of: Any = hgc.Compression.hgc
    codecs, expected = Codecs(OPTIONS), np.zeros([48, 32])

    def check(number: int, actual: np.ndarray) -> None:
        nonlocal expected
        expected = expected - codecs.reduced("matrix", (48, 32), number)
        close(actual, expected, 1e-5)

    if eager:
        matrix = tf.Variable(tf.zeros([48, 32]), name="matrix")
        compression = compression_of([matrix], **OPTIONS)
        optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(1.0), compression=compression
        )
        for number in range(4):
            gradient = tf.constant(values("matrix", (48, 32), number))
            optimizer.minimize(lambda gradient=gradient: tf.reduce_sum(matrix * gradient), var_list=[matrix])
            check(number, matrix.numpy())
        return
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        matrix = tf.compat.v1.get_variable("matrix", [48, 32], initializer=tf.zeros_initializer())
        gradient = tf.compat.v1.placeholder(tf.float32, [48, 32])
        compression = compression_of([matrix], **OPTIONS)
        optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(1.0), compression=compression
        )
        train = optimizer.minimize(tf.reduce_sum(matrix * gradient), var_list=[matrix])
        session.run(tf.compat.v1.global_variables_initializer())
        for number in range(4):
            session.run(train, {gradient: values("matrix", (48, 32), number)})
            check(number, session.run(matrix))
