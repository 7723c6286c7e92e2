"""Methods that go through Python: what a step becomes is what independent codecs say, however it is made."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import numpy as np
import tensorflow as tf
from tensorflow.python.ops import script_ops

import hgc_horovod.tensorflow as hgc
from hgc_horovod import methods
from tests.cases import variants

from .composed import ALL, METHODS, ROUNDED, SHAPES, SOME, Codecs, check, check_kept, compressor
from .fitting import data, model
from .gradients import reducer
from .harness import STEPS, close, equal_on_all_ranks, given, name_of, raises, values, variables


def case_all() -> None:
    """Every method, three steps in a graph and two eagerly."""
    trained, codecs = variables(ALL), Codecs()
    compression = compressor(trained)
    in_python = [name for name, slot in compression.slots.by_name.items() if slot.python is not None]
    assert in_python == [name for name in METHODS if name != "memsgd"]
    reducers = [reducer(trained, compression, graph) for graph in (True, False)]
    for step, reduce in enumerate([reducers[0]] * 3 + [reducers[1]] * 2):
        check(trained, reduce(given(trained, step)), codecs, step)
    check_kept(compression, codecs)
    check_report(compression, codecs)


@variants(
    sum={"op": hvd.Sum},
    predivide={"gradient_predivide_factor": 2.0},
    groups={"groups": 4},
)
def case_horovod(**horovod: Any) -> None:
    trained, codecs = variables(SOME), Codecs(SOME)
    compression = compressor(trained, SOME)
    reduce = reducer(trained, compression, **horovod)
    for step in range(STEPS):
        scale = hvd.size() if horovod.get("op") == hvd.Sum else 1
        check(trained, reduce(given(trained, step)), codecs, step, scale)
    check_kept(compression, codecs)


def check_report(compression: Any, codecs: Codecs) -> None:
    """Bytes are those that were sent, and bits those of each step."""
    for row in compression.report().tensors:
        if row.name in METHODS and row.name != "memsgd":
            first = next(iter(compression.slots.by_name)) == row.name
            control = 4 * (4 + 16 * first) * row.compressed_steps
            assert row.payload_bytes == codecs.sent[row.name] + control, row
            dense = row.steps - row.compressed_steps
            size = codecs.own(row.name).size
            assert row.sent_bytes == row.payload_bytes + 4 * size * dense, row
            assert bool(row.bits) == (METHODS[row.name].controller is not None), row
            if row.bits:
                assert row.bits[-1][1] == codecs.own(row.name).bits, row


@variants(known={"known": True}, found={"known": False})
def case_named(known: bool) -> None:
    """Tensors that are no gradients, eagerly and in a graph."""
    shapes = SOME
    trained, codecs = variables(shapes), Codecs(shapes)
    compression = compressor(trained if known else None, shapes)

    def reduce(gradients: Any) -> Any:
        return [
            hvd.allreduce(gradient, compression=compression[name], name=name)
            for name, gradient in zip(shapes, gradients, strict=True)
        ]

    in_graph = tf.function(reduce)
    for step, call in enumerate((reduce, in_graph, reduce, in_graph)):
        check(trained, call(given(trained, step)), codecs, step)


@variants(half={"dtype": tf.float16}, bfloat16={"dtype": tf.bfloat16}, double={"dtype": tf.float64})
def case_dtype(dtype: Any) -> None:
    """In another dtype than float32 the codecs get the rounded gradients."""
    trained, codecs = variables(ROUNDED, dtype), Codecs(ROUNDED)
    reduce = reducer(trained, compressor(trained, ROUNDED))
    for step in range(STEPS):
        for variable, gradient in zip(trained, reduce(given(trained, step)), strict=True):
            assert gradient.dtype == dtype
            name, shape = name_of(variable), variable.shape
            everyones = [tf.cast(values(name, shape, step, rank), dtype) for rank in range(hvd.size())]
            rounded = [tf.cast(one, tf.float32).numpy() for one in everyones]
            expected = tf.cast(codecs.reduced(name, step, 1.0, rounded), dtype)
            if codecs.own(name).method.by_allreduce:
                expected = tf.cast(expected, tf.float64).numpy()
                close(tf.cast(gradient, tf.float64), expected, 1e-2 if dtype.size == 2 else 2e-6)
            else:
                assert np.array_equal(gradient.numpy(), expected.numpy()), name


def case_process_sets() -> None:
    """A rank outside gets its own gradients back."""
    everyone = hvd.size() < 3
    ranks = range(2)
    subset = hvd.global_process_set if everyone else hvd.add_process_set(ranks)
    trained, codecs = variables(SOME), Codecs(SOME, ranks)
    reduce = reducer(trained, compressor(trained, SOME, process_set=subset), process_set=subset)
    for step in range(STEPS):
        reduced = reduce(given(trained, step))
        if hvd.rank() in ranks:
            check(trained, reduced, codecs, step)
        else:
            assert all(map(np.array_equal, reduced, given(trained, step)))
    hvd.allreduce(tf.zeros(1), name="done")
    if not everyone:
        hvd.remove_process_set(subset)


@variants(eager={"graph": False}, graph={"graph": True})
def case_reported_loss(graph: bool) -> None:
    """The loss that is reported before a step's gradients are reduced counts for them, on all ranks as their
    mean: bits follow it."""
    shapes = {"mqgrad": SHAPES["mqgrad"]}
    trained, codecs = variables(shapes), Codecs(shapes)
    compression = compressor(trained, shapes)

    def step(gradients: Any, loss: Any) -> Any:
        compression.report_loss(loss)
        return reducer(trained, compression, False)(gradients)

    call = tf.function(step) if graph else step
    told = set()
    for number in range(16):
        losses = [np.float32(2.0 ** -(number // 2 % 4) + rank) for rank in range(hvd.size())]
        for peers, loss in zip(codecs.peers, losses, strict=True):
            peers.loss = float(loss)
        check(trained, call(given(trained, number), tf.constant(losses[hvd.rank()])), codecs, number)
        told.add(codecs.own("mqgrad").bits)
    assert len(told) > 1
    check_kept(compression, codecs)


def case_tensorflow_1() -> None:
    """In a session."""
    shapes = {name: SHAPES[name] for name in ("dgc", "powersgd")}
    codecs = Codecs(shapes)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        trained = [tf.compat.v1.get_variable(name, shape) for name, shape in shapes.items()]
        gradients = [tf.compat.v1.placeholder(tf.float32, shape) for shape in shapes.values()]
        reduce = reducer(trained, compressor(trained, shapes), graph=False)
        reduced = reduce(gradients)
        session.run(tf.compat.v1.global_variables_initializer())
        for step in range(STEPS):
            given_now = [values(name, shape, step) for name, shape in shapes.items()]
            results = session.run(reduced, dict(zip(gradients, given_now, strict=True)))
            for name, result in zip(shapes, results, strict=True):
                close(result, codecs.reduced(name, step), 2e-6)


def case_fit() -> None:
    """`fit` with two methods, of which one hears of the loss: as many traces after all steps as after one."""
    net = model()
    kernels = [variable for variable in net.trainable_variables if variable.shape.rank == 2]
    policy = [(lambda name, variable: variable is kernels[1], methods.powersgd(2))]
    compression = hgc.Compression.from_method(
        methods.mqgrad(interval=5), net.trainable_variables, policy=policy
    )
    optimizer = hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.05), compression=compression)
    net.compile(optimizer, "mse")
    functions = []

    class Reporting(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            compression.report_loss(logs["loss"])
            functions.append(script_ops._py_funcs.size())

    inputs, targets = data(20)
    history = net.fit(
        inputs, targets, batch_size=16, epochs=3, verbose=0, shuffle=False, callbacks=[Reporting()]
    )
    assert history.history["loss"][-1] < history.history["loss"][0]
    equal_on_all_ranks(net.get_weights(), "weights")
    python = [slot for slot in compression.slots.by_name.values() if slot.python is not None]
    assert [int(slot.step) for slot in python] == [60] * 2
    assert functions[0] == functions[-1]
    assert ["mean loss" in slot.python.codec.memory for slot in python] == [True, False]


def case_nothing_is_left() -> None:
    """Eager steps leave nothing behind, and a compressor that nobody has goes."""
    tensor, counts = tf.constant(values("x", (40, 30))), []

    def run() -> Any:
        compression = hgc.Compression.from_method(methods.dgc(0.05, momentum=0))
        for number in range(60):
            hvd.allreduce(tensor, compression=compression["x"], name="x")
            if number % 20 == 19:
                gc.collect()
                counts.append((script_ops._py_funcs.size(), len(gc.get_objects())))
        tf.function(lambda x: hvd.allreduce(x, compression=compression["x"], name="x"))(tensor)
        return weakref.ref(compression.slots.by_name["x"].python)

    python = run()
    assert counts[0][0] == counts[-1][0] and counts[-1][1] - counts[0][1] < 50, counts
    gc.collect()
    assert python() is None


@variants(graph={"graph": True}, eager={"graph": False})
def case_settings_of_named_tensors(graph: bool) -> None:
    compression = hgc.Compression.from_method(methods.qsgd(), seed=hvd.rank())

    def reduce(tensor: Any) -> Any:
        return hvd.allreduce(tensor, compression=compression["x"], name="x")

    call = tf.function(reduce) if graph else reduce
    kinds = (tf.errors.InvalidArgumentError, ValueError)
    raises(kinds, ["same settings"], lambda: call(tf.constant(values("x", (30, 40)))))


def case_xla() -> None:
    """TensorFlow's compiler knows no Python, and says so."""
    compression = hgc.Compression.from_method(methods.qsgd())

    @tf.function(jit_compile=True)
    def reduce(tensor: Any) -> Any:
        return hvd.allreduce(tensor, compression=compression["x"], name="x")

    raises(tf.errors.InvalidArgumentError, ["PyFunc"], lambda: reduce(tf.constant(values("x", (30, 40)))))
