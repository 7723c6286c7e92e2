"""Mixed precision and gradients that are not finite."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import hgc_horovod.tensorflow as hgc
from tests.cases import variants

from .fitting import data, model
from .gradients import reducer
from .harness import OPTIONS, close, equal_on_all_ranks, given, name_of, raises, variables

NAMES = ("matrix", "kernel", "other")


def kept(compression: Any, trained: Any) -> dict[str, np.ndarray]:
    """Residuals and velocities."""
    slots = {name_of(v): compression.slots.by_name[name_of(v)] for v in trained}
    return {
        f"{key} of {name}": getattr(slot, key).numpy()
        for name, slot in slots.items()
        for key in ("residual", "velocity")
    }


@variants(
    plain={}, momentum={"momentum": 0.9}, masking={"momentum": 0.9, "masking": True}, sum={"op": hvd.Sum}
)
def case_not_finite(op: Any = hvd.Average, **options: Any) -> None:
    """One rank's NaN makes a tensor NaN on all ranks, and what is kept of it is as before."""
    trained = variables()
    compression = hgc.Compression.hgc(trained, **OPTIONS, **options)
    reduce = reducer(trained, compression, op=op)
    for step in range(2):
        reduce(given(trained, step))
    for bad in (np.nan, np.inf, -np.inf):
        before, gradients = kept(compression, trained), given(trained, 9)
        if hvd.rank() == 1:
            gradients[0] = tf.tensor_scatter_nd_update(gradients[0], [[5, 7]], [bad])
        reduced = reduce(gradients)
        assert np.isnan(reduced[0]).all() and np.isfinite(reduced[2]).all()
        after = kept(compression, trained)
        for key in ("residual of matrix", "velocity of matrix"):
            close(after[key], before[key], 1e-5)
        assert not np.array_equal(after["residual of other"], before["residual of other"])
    reduced = reduce(given(trained, 3))
    assert all(np.isfinite(one).all() for one in reduced)
    equal_on_all_ranks([one.numpy() for one in reduced], "reduced")


@variants(
    plain={}, momentum={"momentum": 0.9}, nesterov={"momentum": 0.9, "nesterov": True}, clip={"clip": 2.0}
)
def case_changing_scale(**options: Any) -> None:
    """With `loss_scale` all is to the bit as without a scale, powers of two."""
    scale = tf.Variable(1.0)
    plain, scaled = variables(), variables()
    reduce = reducer(plain, hgc.Compression.hgc(plain, **OPTIONS, **options))
    compression = hgc.Compression.hgc(scaled, **OPTIONS, **options, loss_scale=lambda: scale)
    other = reducer(scaled, compression)
    for step, power in enumerate((16, 16, 3, -4, 10)):
        scale.assign(2.0**power)
        expected = reduce(given(plain, step))
        reduced = other([g * scale for g in given(scaled, step)])
        for one, two in zip(expected, reduced, strict=True):
            close(two / scale, one.numpy(), 1e-6)
            if one.shape.rank > 1:
                assert np.array_equal(one, two / scale)


@variants(
    graph={}, eager={"graph": False}, momentum={"momentum": 0.9}, dense={"dense_steps": 9, "momentum": 0.9}
)
def case_dropped_step(graph: bool = True, **options: Any) -> None:
    """With `loss_scale`, a step in which any tensor is not finite leaves what is kept of all as it was."""
    trained = variables()
    compression = hgc.Compression.hgc(trained, **OPTIONS, **options, loss_scale=lambda: tf.constant(8.0))
    reduce = reducer(trained, compression, graph)
    for step in range(2):
        reduce(given(trained, step))
    before, steps = kept(compression, trained), [int(s.step) for s in compression.slots.by_name.values()]
    for place in (0, 1):  # of a compressed tensor and of a dense one
        gradients = given(trained, 5)
        if hvd.rank() == 1:
            gradients[place] *= np.nan
        assert not np.isfinite(reduce(gradients)[place]).any()
        after = kept(compression, trained)
        for key, was in before.items():
            close(after[key], was, 1e-5)
        assert steps == [int(s.step) for s in compression.slots.by_name.values()]
    assert all(np.isfinite(one).all() for one in reduce(given(trained, 6)))


def case_loss_scale_optimizer() -> None:
    """Keras's LossScaleOptimizer in `fit`, with float16 layers: all ranks skip overflows together."""
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        net = model()
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    compression = hgc.Compression.hgc(
        net.trainable_variables, **OPTIONS, loss_scale=lambda: optimizer.loss_scale
    )
    inner = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.05), compression=compression)
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=2.0**24)
    net.compile(optimizer, "mse")
    inputs, targets = data(50)
    history = net.fit(inputs, targets, batch_size=16, epochs=2, verbose=0, shuffle=False)
    scale = float(optimizer.loss_scale)
    assert scale < 2.0**24, "no step overflowed"
    skipped = 24 - int(np.log2(scale))
    compressed = [slot for slot in compression.slots.by_name.values() if slot.compressed]
    assert [int(slot.step) for slot in compressed] == [100 - skipped] * 2
    # Residuals are in units of the gradient, not of the scale.
    assert all(0 < np.abs(slot.residual.numpy()).max() < 10 for slot in compressed)
    assert history.history["loss"][-1] < history.history["loss"][0]
    equal_on_all_ranks([*net.get_weights(), np.float32(scale)], "weights")


def case_loss_scale_that_is_no_function() -> None:
    raises(ValueError, ["loss_scale", "function"], lambda: hgc.Compression.hgc(loss_scale=1024.0))
