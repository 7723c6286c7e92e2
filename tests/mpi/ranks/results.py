"""The reduced gradients are those of independent codecs, to the bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from mpi4py import MPI

import hgc_horovod.mpi as hgc
from hgc_horovod import methods
from tests.cases import variants

from .harness import (
    COMM,
    OPTIONS,
    RANK,
    SHAPES,
    SIZE,
    STEPS,
    Codecs,
    check_steps,
    equal_on_all_ranks,
    everyones,
    reducer,
    same,
    values,
)

MOMENTUM = {"momentum": 0.9}


@variants(
    plain={},
    one_bit={"bits": 1},
    float32={"bits": 32},
    no_feedback={"feedback": False},
    momentum=MOMENTUM,
    nesterov={**MOMENTUM, "nesterov": True},
    masking={**MOMENTUM, "masking": True},
    clip={**MOMENTUM, "clip": 1.0},
    warm_up={**MOMENTUM, "warmup_steps": 3},
    warm_up_list={"warmup_steps": 2, "warmup": [0.5, 0.1]},
    dense_steps={**MOMENTUM, "dense_steps": 2, "nesterov": True},
    all_dense={**MOMENTUM, "min_elements": 10**6},
    dense_fp16={"dense_fp16": True},
    all_entries={"density": 1.0, "bits": 32, "inflate": True, "min_elements": 0, "min_ndim": 0},
)
def case_options(**options: Any) -> None:
    options = {**OPTIONS, **options}
    with reducer(options) as reduce:
        check_steps(reduce, Codecs(options), range(6))


@variants(average={"op": "average"}, sum={"op": "sum"})
def case_op(op: str) -> None:
    options = {**OPTIONS, **MOMENTUM, "dense_steps": 1}
    with reducer(options) as reduce:
        check_steps(reduce, Codecs(options), op=op)


def case_mpi_sum() -> None:
    with reducer() as reduce:
        found = reduce.allreduce("matrix", values("matrix", 0), MPI.SUM)
        same(found, Codecs().reduced("matrix", everyones("matrix", 0), "sum"))


@variants(
    float16={"dtype": np.float16},
    bfloat16={"dtype": ml_dtypes.bfloat16},
    float64={"dtype": np.float64},
)
def case_dtype(dtype: Any) -> None:
    options = {**OPTIONS, **MOMENTUM, "dense_steps": 1}
    with reducer(options) as reduce:
        check_steps(reduce, Codecs(options), dtype=dtype)


def case_the_same_on_all_ranks() -> None:
    """Dense sums, too, of gradients whose sums are rounded."""
    rng = np.random.default_rng(RANK)
    with reducer() as reduce:
        for name, shape in SHAPES.items():
            equal_on_all_ranks(reduce.allreduce(name, rng.standard_normal(shape).astype(np.float32)))


@variants(
    new={"out": lambda gradient: np.empty_like(gradient)},
    itself={"out": lambda gradient: gradient},
    strided={"out": lambda gradient: np.empty((2, *gradient.T.shape), gradient.dtype)[0].T},
)
def case_out(out: Any) -> None:
    codecs = Codecs()
    with reducer() as reduce:
        for step in range(STEPS):
            for name in ("matrix", "bias"):
                gradient = values(name, step)
                where = out(gradient)
                assert reduce.allreduce(name, gradient, out=where) is where
                same(where.copy("C"), codecs.reduced(name, everyones(name, step)))


def case_layouts() -> None:
    """A gradient counts by its entries, wherever they lie; one of a plain size may have any shape."""
    codecs = Codecs()
    with reducer() as reduce:
        for step in range(STEPS):
            gradient = np.asfortranarray(values("matrix", step))
            same(reduce.allreduce("matrix", gradient), codecs.reduced("matrix", everyones("matrix", step)))
            expected = codecs.reduced("flat", everyones("flat", step))
            found = reduce.allreduce("flat", values("flat", step).reshape(30, 50))
            same(found, expected.reshape(30, 50))


def case_the_gradient_is_left_alone() -> None:
    gradient = values("matrix", 0)
    with reducer() as reduce:
        result = reduce.allreduce("matrix", gradient)
    assert not np.shares_memory(result, gradient)
    same(gradient, values("matrix", 0))


def case_policy() -> None:
    """Methods by name and by shape, with the one momentum of all tensors."""
    options = {**OPTIONS, **MOMENTUM}
    coarse, dense = methods.hgc(density=0.2, bits=2), methods.dense()
    policy = [("ker*", coarse), (lambda name, shape: shape == (48, 32), dense)]
    codecs = Codecs(options, kernel=coarse.with_feedback(**MOMENTUM), matrix=dense)
    with reducer(options, policy=policy) as reduce:
        check_steps(reduce, codecs)


def case_dense_again() -> None:
    """What was kept of a tensor that is dense from now on is applied at once, and its momentum goes on."""
    options = {**OPTIONS, **MOMENTUM, "warmup_steps": 3, "warmup": [0.05, 0.05, 1.0], "bits": 32}
    codecs, name = Codecs(options), "matrix"
    with hgc.Reducer(COMM, methods.hgc(**options), {name: SHAPES[name]}) as reduce:
        check_steps(reduce, codecs, range(2), [name])
        kept = codecs.of(name, 48 * 32)
        residual = np.mean([codec.residual for codec in kept], axis=0).reshape(48, 32)
        velocity = np.mean([codec.momentum for codec in kept], axis=0).reshape(48, 32)
        assert codecs.is_dense(name)
        velocity = 0.9 * velocity + np.mean(everyones(name, 2), axis=0)
        found = reduce.allreduce(name, values(name, 2))
        np.testing.assert_allclose(found, velocity + residual, rtol=1e-5, atol=1e-5)
        equal_on_all_ranks(found)
        state = reduce.state_dict()["tensors"][name]
        assert state["residual"] is None and not state["compressed"]
        np.testing.assert_allclose(state["momentum"], velocity.reshape(-1), rtol=1e-5, atol=1e-5)


def case_small_shapes() -> None:
    """Scalars and empty tensors go dense."""
    shapes = {"scalar": (), "empty": (0, 3), "nothing": 0}
    with hgc.Reducer(COMM, methods.hgc(), shapes) as reduce:
        assert reduce.allreduce("scalar", np.float32(RANK)) == np.float32((SIZE - 1) / 2)
        assert reduce.allreduce("empty", np.zeros((0, 3), np.float32)).shape == (0, 3)
        assert reduce.allreduce("nothing", np.zeros(0, np.float64), "sum").dtype == np.float64
