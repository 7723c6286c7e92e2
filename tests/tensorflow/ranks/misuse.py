"""What a user may get wrong: an error that names it, on every rank, and no hang."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import keras as keras_3
import tensorflow as tf

import hgc_horovod.tensorflow as hgc
from hgc_horovod import methods
from tests.cases import variants

from .gradients import reducer
from .harness import OPTIONS, given, raises, values, variables


def case_arguments() -> None:
    hgc_ = hgc.Compression
    for words, arguments in (
        (["density"], {"density": 0}),
        (["bits"], {"bits": 9}),
        (["method"], {"method": "hgc"}),
        (["seed"], {"seed": -1}),
        (["process_set"], {"process_set": 1}),
        (["name"], {"name": 3}),
        (["policy"], {"policy": [("a", 1)]}),
        (["loss_scale"], {"loss_scale": 2.0}),
    ):
        make: Any = hgc_.from_method if "method" in arguments else hgc_.hgc
        raises(ValueError, words, lambda make=make, arguments=arguments: make(**arguments))


def case_keras_3() -> None:
    """Horovod wraps it, and never reduces."""
    compression = hgc.Compression.hgc(**OPTIONS)
    optimizer = keras_3.optimizers.SGD(0.1)
    words = ["Keras 3", "TF_USE_LEGACY_KERAS", "DistributedGradientTape"]
    raises(ValueError, words, lambda: hvd.DistributedOptimizer(optimizer, compression=compression))


def case_adasum() -> None:
    trained = variables()
    compression = hgc.Compression.hgc(trained, **OPTIONS)
    raises(ValueError, ["Adasum"], lambda: reducer(trained, compression, op=hvd.Adasum)(given(trained, 0)))


def case_xla() -> None:
    """TensorFlow's compiler knows the operations as little as Horovod's own, and says so."""
    trained = variables()
    reduce = reducer(trained, hgc.Compression.hgc(trained, **OPTIONS), graph=False)
    compiled = tf.function(reduce, jit_compile=True)
    raises(tf.errors.InvalidArgumentError, ["HgcEncode"], lambda: compiled(given(trained, 0)))


def case_eager_tensor_without_a_name() -> None:
    compression = hgc.Compression.hgc(**OPTIONS)
    tensor = tf.constant(values("x", (30, 40)))
    raises(ValueError, ["compressor[name]"], lambda: hvd.allreduce(tensor, compression=compression))


def case_another_shape() -> None:
    compression = hgc.Compression.hgc(**OPTIONS)
    hvd.allreduce(tf.constant(values("x", (30, 40))), compression=compression["x"])
    other = tf.constant(values("x", (40, 40)))
    raises(ValueError, ["x", "(30, 40)"], lambda: hvd.allreduce(other, compression=compression["x"]))


@variants(
    density={"options": {"density": 0.1}, "word": "density"},
    bits={"options": {"bits": 2}, "word": "bits"},
    seed={"options": {"seed": 3}, "word": "seed"},
    policy={"options": {"policy": [("other", methods.hgc(0.2))]}, "word": "other"},
    dense={"options": {"policy": [("matrix", methods.dense())]}, "word": "matrix"},
    found={"options": {"policy": [("matrix", methods.dense())]}, "word": "matrix", "known": False},
    loss_scale={"options": {"loss_scale": lambda: 2.0}, "word": "loss_scale"},
)
def case_settings(options: Any, word: str, known: bool = True) -> None:
    trained = variables()
    options = {**OPTIONS, **(options if hvd.rank() == 0 else {})}
    reduce = reducer(trained, hgc.Compression.hgc(trained if known else None, **options))
    raises(ValueError, ["same settings", word], lambda: reduce(given(trained, 0)))


def case_settings_of_named_tensors() -> None:
    compression = hgc.Compression.hgc(**OPTIONS, seed=hvd.rank())
    tensor = tf.constant(values("x", (30, 40)))
    raises(
        tf.errors.InvalidArgumentError,
        ["same settings"],
        lambda: hvd.allreduce(tensor, compression=compression["x"]),
    )


def case_loss_scale_with_several_passes() -> None:
    """Horovod and Keras let the ranks part there, with or without compression."""
    compression = hgc.Compression.hgc(**OPTIONS, loss_scale=lambda: 8.0)
    sgd = tf.keras.optimizers.SGD(0.1)
    words = ["loss_scale", "backward_passes_per_step"]
    raises(
        ValueError,
        words,
        lambda: hvd.DistributedOptimizer(sgd, compression=compression, backward_passes_per_step=2),
    )


def case_variables_of_keras_3() -> None:
    layer = keras_3.layers.Dense(5)
    layer.build([None, 3])
    raises(ValueError, ["variables", "v.value"], lambda: hgc.Compression.hgc(layer.trainable_variables))
