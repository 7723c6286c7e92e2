"""Train a small convolutional network with Keras's `fit`, with or without compression.

    horovodrun --gloo -np 2 python examples/tensorflow_fit.py
    horovodrun --gloo -np 2 python examples/tensorflow_fit.py --compression hgc --density 0.01 --bits 4
    horovodrun --gloo -np 2 python examples/tensorflow_fit.py --dataset cifar10 --data DIR

A plain Horovod script but for its `compression`. Rank 0 shows the progress and prints the result.
"""

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # Horovod cannot wrap an optimizer of Keras 3

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from tensorflow_common import Task


def main() -> None:
    task = Task(__doc__)
    optimizer = hvd.DistributedOptimizer(task.optimizer, compression=task.compression)
    task.model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    log = tf.keras.callbacks.LambdaCallback(
        on_batch_end=lambda batch, logs: task.log.step(),
        on_epoch_end=lambda epoch, logs: task.log.epoch(*task.test()),
    )
    task.model.fit(
        task.batches(),
        steps_per_epoch=task.steps_per_epoch,
        epochs=task.args.epochs,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), log],
        verbose=0,
    )
    task.log.finish()
    hvd.shutdown()


if __name__ == "__main__":
    main()
