"""Process sets, and several models in one process."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import hgc_horovod.tensorflow as hgc
from tests.cases import variants

from .gradients import check, reducer
from .harness import OPTIONS, STEPS, Codecs, given, loss_with, name_of, raises, variables


@variants(graph={}, eager={"graph": False})
def case_process_sets(graph: bool = True) -> None:
    """Each of two disjoint sets reduces its own gradients, and a rank outside gets its own back."""
    groups = [[0], list(range(1, hvd.size()))] if hvd.size() > 2 else [[0, 1]]
    subsets = [hvd.add_process_set(ranks) if len(groups) > 1 else hvd.global_process_set for ranks in groups]
    trained = variables()
    for ranks, subset in zip(groups, subsets, strict=True):
        compression = hgc.Compression.hgc(trained, **OPTIONS, process_set=subset)
        reduce = reducer(trained, compression, graph, process_set=subset)
        codecs = Codecs(OPTIONS, ranks)
        for step in range(STEPS):
            reduced = reduce(given(trained, step))
            if hvd.rank() in ranks and len(ranks) > 1:
                check(trained, reduced, codecs, step)
            else:
                assert all(map(np.array_equal, reduced, given(trained, step)))
    hvd.allreduce(tf.zeros(1), name="done")
    for subset in subsets:
        if subset is not hvd.global_process_set:
            hvd.remove_process_set(subset)


def case_another_process_set_than_horovods() -> None:
    alone = hvd.add_process_set([0])
    trained = variables({"matrix": (48, 32)})
    compression = hgc.Compression.hgc(trained, **OPTIONS)
    reduce = reducer(trained, compression, process_set=alone)
    raises(ValueError, ["process_set"], lambda: reduce(given(trained, 0)))
    hvd.allreduce(tf.zeros(1), name="done")
    hvd.remove_process_set(alone)


@variants(graph={"graph": True}, eager={"graph": False})
def case_two_models(graph: bool) -> None:
    """A generator and a critic with equal names, in one function, with a compressor each."""
    models, codecs = [variables() for _ in range(2)], [Codecs(OPTIONS) for _ in range(2)]
    compressors = [hgc.Compression.hgc(model, **OPTIONS) for model in models]

    def step(gradients: Any) -> Any:
        reduced = []
        for model, compression in zip(models, compressors, strict=True):
            with tf.GradientTape() as tape:
                loss = loss_with(model, gradients)
            tape = hvd.DistributedGradientTape(tape, compression=compression)
            reduced.append(tape.gradient(loss, model))
        return reduced

    call = tf.function(step) if graph else step
    for number in range(STEPS):
        for model, its, reduced in zip(models, codecs, call(given(models[0], number)), strict=True):
            check(model, reduced, its, number)


def case_two_models_with_one_compressor() -> None:
    """Where variables were given, others are refused; else each has a place of its own."""
    models = [variables({"matrix": (48, 32)}) for _ in range(2)]
    known = hgc.Compression.hgc(models[0], **OPTIONS)
    raises(ValueError, ["variables"], lambda: reducer(models[1], known)(given(models[1], 0)))
    free = hgc.Compression.hgc(**OPTIONS)
    reducers, codecs = [reducer(model, free) for model in models], [Codecs(OPTIONS) for _ in range(2)]
    for number in range(STEPS):
        for model, reduce, its in zip(models, reducers, codecs, strict=True):
            check(model, reduce(given(model, number)), its, number)
    assert [*free.slots.by_name] == ["matrix", "matrix_1"]
    assert name_of(models[1][0]) == "matrix"
