"""Train a small convolutional network with TensorFlow in a loop of one's own, with or without compression.

    horovodrun --gloo -np 2 python examples/tensorflow_loop.py
    horovodrun --gloo -np 2 python examples/tensorflow_loop.py --compression hgc --density 0.01 --bits 4
    horovodrun --gloo -np 2 python examples/tensorflow_loop.py --dataset cifar10 --data DIR

A plain Horovod script but for its `compression`. Rank 0 shows the progress and prints the result.
"""

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported

import horovod.tensorflow as hvd
import tensorflow as tf
from tensorflow_common import Task


def main() -> None:
    task = Task(__doc__)
    model, optimizer, log = task.model, task.optimizer, task.log
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=task.compression)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)
    for images, labels in task.batches():
        train(images, labels)
        log.step()
        if log.steps % task.steps_per_epoch == 0:
            log.epoch(*task.test())
    log.finish()
    hvd.shutdown()


if __name__ == "__main__":
    main()
