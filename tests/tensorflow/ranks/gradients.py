"""The reduced gradients are what independent codecs say, to the bit, however Horovod is used."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import hgc_horovod.tensorflow as hgc
from tests.cases import variants

from .harness import OPTIONS, SHAPES, STEPS, Codecs, close, given, loss_with, name_of, values, variables


def reducer(trained: Any, compression: Any, graph: bool = True, **horovod: Any) -> Any:
    """A function of given gradients that returns what a tape reduces them to."""

    def step(gradients: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_with(trained, gradients)
        tape = hvd.DistributedGradientTape(tape, compression=compression, **horovod)
        return tape.gradient(loss, trained)

    return tf.function(step) if graph else step


def check(trained: Any, reduced: Any, codecs: Codecs, step: int, scale: float = 1.0) -> None:
    for variable, gradient in zip(trained, reduced, strict=True):
        expected = codecs.reduced(name_of(variable), variable.shape.as_list(), step, scale)
        if codecs.method.is_dense(variable.shape.as_list(), step):
            close(gradient, expected)
        else:
            assert np.array_equal(gradient.numpy(), expected), name_of(variable)


@variants(
    graph={},
    eager={"graph": False},
    sum={"op": hvd.Sum},
    sum_eager={"op": hvd.Sum, "graph": False},
    predivide={"gradient_predivide_factor": 2.0},
    groups={"groups": 2},
    groups_eager={"groups": 2, "graph": False},
    lists=({"groups": "lists"}),
)
def case_tape(**horovod: Any) -> None:
    trained = variables()
    if horovod.get("groups") == "lists":
        horovod["groups"] = [[trained[3], trained[0]], [trained[1]]]
    compression = hgc.Compression.hgc(trained, **OPTIONS)
    reduce, codecs = reducer(trained, compression, **horovod), Codecs(OPTIONS)
    for step in range(STEPS):
        scale = hvd.size() if horovod.get("op") == hvd.Sum else 1
        check(trained, reduce(given(trained, step)), codecs, step, scale)
        for name in ("matrix", "kernel", "other"):
            slot = compression.slots.by_name[name]
            assert np.array_equal(slot.residual.numpy(), codecs.residual(name))
            assert int(slot.step) == step + 1


@variants(
    one_bit={"bits": 1},
    two_bits={"bits": 2},
    eight_bits={"bits": 8},
    bfloat16={"bits": 16},
    float32={"bits": 32},
    one_entry={"density": 1e-9},
    half={"density": 0.5},
    no_feedback={"feedback": False},
    all_compressed={"min_elements": 0, "min_ndim": 0},
    all_sent={"density": 1.0, "bits": 32, "inflate": True},
    momentum={"momentum": 0.9},
    nesterov={"momentum": 0.9, "nesterov": True},
    masking={"momentum": 0.9, "masking": True},
    clip={"clip": 3.0},
    warmup={"warmup_steps": 4, "warmup_stages": 2},
    dense_steps={"dense_steps": 2},
    dense_steps_momentum={"dense_steps": 2, "momentum": 0.9, "op": hvd.Sum},
    dense_steps_nesterov={"dense_steps": 2, "momentum": 0.9, "nesterov": True},
)
def case_method(op: Any = hvd.Average, **options: Any) -> None:
    trained, options = variables(), {**OPTIONS, **options}
    compression = hgc.Compression.hgc(trained, **options)
    reduce, codecs = reducer(trained, compression, op=op), Codecs(options)
    for step in range(2 * STEPS):
        reduced = reduce(given(trained, step))
        for variable, gradient in zip(trained, reduced, strict=True):
            expected = codecs.reduced(
                name_of(variable), variable.shape.as_list(), step, hvd.size() if op == hvd.Sum else 1
            )
            close(gradient, expected)


@variants(half={"dtype": tf.float16}, bfloat16={"dtype": tf.bfloat16}, double={"dtype": tf.float64})
def case_dtype(dtype: Any) -> None:
    """In another dtype than float32 the codecs get the rounded gradients."""
    trained = variables(dtype=dtype)
    compression = hgc.Compression.hgc(trained, **OPTIONS)
    reduce = reducer(trained, compression)
    method = compression.method
    codecs = {name: [hgc_codec(method, shape) for _ in range(hvd.size())] for name, shape in SHAPES.items()}
    for step in range(STEPS):
        for variable, gradient in zip(trained, reduce(given(trained, step)), strict=True):
            assert gradient.dtype == dtype
            name, shape = name_of(variable), variable.shape.as_list()
            everyones = [tf.cast(values(name, shape, step, rank), dtype) for rank in range(hvd.size())]
            flat = [tf.cast(tf.reshape(one, [-1]), tf.float32).numpy() for one in everyones]
            if method.is_dense(shape):
                close(tf.cast(gradient, tf.float32), np.mean(flat, 0).reshape(shape), 1e-2)
                continue
            payloads = [codec.encode(one) for codec, one in zip(codecs[name], flat, strict=True)]
            mean = codecs[name][0].decode_sum(payloads, factor=np.float32(1 / hvd.size())).reshape(shape)
            assert np.array_equal(gradient.numpy(), tf.cast(mean, dtype).numpy())


def hgc_codec(method: Any, shape: Any) -> Any:
    from hgc_horovod import Codec

    return Codec(method, int(np.prod(shape)), world_size=hvd.size())


@variants(given={"known": True}, found={"known": False}, found_eager={"known": False, "graph": False})
def case_variables_that_take_no_part(known: bool, graph: bool = True) -> None:
    """What is kept is the variable's, whichever others have a gradient in a step."""
    trained = variables({"first": (40, 30), "second": (40, 30), "third": (40, 30)})
    compression = hgc.Compression.hgc(trained if known else None, **OPTIONS)
    codecs = Codecs(OPTIONS)

    def step(used: Any, gradients: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_with(used, gradients)
        return hvd.DistributedGradientTape(tape, compression=compression).gradient(loss, trained)

    for number, places in enumerate([(0, 1, 2), (0, 2), (1, 2), (1,), (0, 1, 2), (2,)]):
        used = [trained[place] for place in places]

        def reduce(gradients: Any, used: Any = used) -> Any:
            return step(used, gradients)

        reduced = (tf.function(reduce) if graph else reduce)(given(used, number))
        assert [gradient is None for gradient in reduced] == [place not in places for place in range(3)]
        check(used, [reduced[place] for place in places], codecs, number)


def case_retraces() -> None:
    """Another batch size traces the function anew, and continues with what is kept."""
    weight = tf.Variable(tf.zeros([30, 40]), name="weight")
    compression = hgc.Compression.hgc([weight], **OPTIONS)
    codecs = [hgc_codec(compression.method, weight.shape) for _ in range(hvd.size())]

    @tf.function
    def step(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(inputs @ weight)
        return hvd.DistributedGradientTape(tape, compression=compression).gradient(loss, [weight])

    for number, batch in enumerate((8, 8, 3, 8, 3, 5)):
        (reduced,) = step(tf.constant(values("inputs", (batch, 30), number)))
        payloads = []
        for rank, codec in enumerate(codecs):
            inputs = tf.constant(values("inputs", (batch, 30), number, rank))
            own = tf.matmul(inputs, tf.ones([batch, 40]), transpose_a=True)
            payloads.append(codec.encode(tf.reshape(own, [-1]).numpy()))
        mean = codecs[0].decode_sum(payloads, factor=np.float32(1 / hvd.size()))
        close(reduced, mean.reshape(30, 40))
    assert step.experimental_get_tracing_count() == 3


@variants(sparse={}, dense={"sparse_as_dense": True}, eager={"sparse_as_dense": True, "graph": False})
def case_embedding(sparse_as_dense: bool = False, graph: bool = True) -> None:
    table = tf.Variable(tf.zeros([200, 16]), name="table")
    compression = hgc.Compression.hgc([table], **OPTIONS)
    codecs = [hgc_codec(compression.method, table.shape) for _ in range(hvd.size())]

    def step(rows: Any, factors: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows) * factors)
        tape = hvd.DistributedGradientTape(tape, compression=compression, sparse_as_dense=sparse_as_dense)
        return tape.gradient(loss, [table])[0]

    reduce = tf.function(step) if graph else step
    for number in range(STEPS):
        dense = []
        for rank in range(hvd.size()):
            rows = np.random.default_rng([number, rank]).integers(0, 200, 12)
            own = np.zeros([200, 16], np.float32)
            np.add.at(own, rows, values("factors", (12, 16), number, rank))
            dense.append(own)
            if rank == hvd.rank():
                reduced = reduce(tf.constant(rows), tf.constant(values("factors", (12, 16), number)))
        if sparse_as_dense:
            payloads = [codec.encode(one.ravel()) for codec, one in zip(codecs, dense, strict=True)]
            mean = codecs[0].decode_sum(payloads, factor=np.float32(1 / hvd.size())).reshape(200, 16)
            close(reduced, mean)
        else:
            assert isinstance(reduced, tf.IndexedSlices)
            close(tf.convert_to_tensor(reduced), np.mean(dense, 0))


@variants(eager={"graph": False}, graph={"graph": True})
def case_allreduce(graph: bool) -> None:
    """Tensors that are no gradients, by names; in a graph, by their places as well."""
    compression, codecs = hgc.Compression.hgc(**OPTIONS), Codecs(OPTIONS)

    def reduce(one: Any, other: Any) -> Any:
        return (
            hvd.allreduce(one, compression=compression["one"], name="one"),
            hvd.allreduce(other, compression=compression["other"], name="two", op=hvd.Sum),
        )

    call = tf.function(reduce) if graph else reduce
    for step in range(STEPS):
        one, other = (tf.constant(values(name, (30, 40), step)) for name in ("one", "other"))
        reduced = call(one, other)
        assert np.array_equal(reduced[0].numpy(), codecs.reduced("one", (30, 40), step))
        assert np.array_equal(reduced[1].numpy(), codecs.reduced("other", (30, 40), step, hvd.size()))


def case_allreduce_by_place() -> None:
    compression, codecs = hgc.Compression.hgc(**OPTIONS), Codecs(OPTIONS)

    @tf.function(reduce_retracing=False)
    def reduce(one: Any, other: Any, flag: bool) -> Any:
        return [hvd.allreduce(x, compression=compression, name=f"x{i}") for i, x in enumerate((one, other))]

    for step in range(STEPS):
        pair = [tf.constant(values(name, (30, 40), step)) for name in ("one", "other")]
        for name, tensor in zip(("one", "other"), reduce(*pair, step % 2 == 0), strict=True):
            assert np.array_equal(tensor.numpy(), codecs.reduced(name, (30, 40), step))


@variants(int32={"dtype": tf.int32}, int64={"dtype": tf.int64})
def case_whole_numbers(dtype: Any) -> None:
    """They are no gradients, and are summed exactly."""
    compression = hgc.Compression.hgc(**OPTIONS)
    numbers = tf.range(5000, dtype=dtype) + 2**24
    for compressor in (compression["x"], compression):
        total = hvd.allreduce(numbers, op=hvd.Sum, compression=compressor)
        assert np.array_equal(total, hvd.size() * numbers.numpy())


@variants(plain={}, momentum={"momentum": 0.9})
def case_double(**options: Any) -> None:
    """What is sent dense keeps its 64 bits."""
    bias = tf.Variable(tf.zeros([40], tf.float64), name="bias")
    reduce = reducer([bias], hgc.Compression.hgc([bias], **OPTIONS, **options))
    values = np.array([1 + 1e-10, 1e-300, 1e300, *[0.0] * 37])
    (reduced,) = reduce([tf.constant(values)])
    if options:  # velocities are kept in float32
        close(reduced[:2], values[:2], 1e-7)
    else:
        assert np.array_equal(reduced, values)


def case_groups_are_traced_once() -> None:
    trained = variables()
    compression = hgc.Compression.hgc(trained, **OPTIONS)
    reduce = reducer(trained, compression, graph=False, groups=[[trained[0], trained[2]]])
    for step in range(3):
        reduce(given(trained, step))
        for variable in trained:
            variable.assign_add(tf.ones_like(variable))
    assert len(compression.tracing.functions) == 1


@variants(plain={}, warmup={"warmup_steps": 4, "warmup_stages": 2}, bfloat16={"dtype": tf.bfloat16})
def case_report(dtype: Any = tf.float32, **options: Any) -> None:
    """The bytes that were handed to Horovod, headers and control numbers included."""
    trained = variables(dtype=dtype)
    compression = hgc.Compression.hgc(trained, **OPTIONS, **options)
    reduce = reducer(trained, compression)
    for step in range(6):
        reduce(given(trained, step))
    sizes = [int(np.prod(SHAPES[name])) for name in ("matrix", "kernel", "other")]
    payloads = sum(compression.method.payload_bytes(n, step) for n in sizes for step in range(6))
    control = 6 * 4 * (3 * 4 + 16)  # four numbers for each tensor, and with one of them the digest
    total = compression.report().total
    assert total.payload_bytes == payloads + control
    assert total.sent_bytes == payloads + control + 6 * 4 * 40
    assert total.compressed_steps == 6
