"""Gradients that are not finite, ranks that fail, and ranks whose settings differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

import numpy as np

import hgc_horovod.mpi as hgc
from hgc_horovod import methods
from hgc_horovod.mpi import arrays
from tests.cases import variants

from .harness import (
    COMM,
    OPTIONS,
    RANK,
    SHAPES,
    SIZE,
    Codecs,
    check_steps,
    everyones,
    failing,
    raises,
    reducer,
    same,
    values,
)

MOMENTUM = {**OPTIONS, "momentum": 0.9}


@variants(
    nan={},
    infinity={"value": -np.inf},
    last_rank={"rank": SIZE - 1},
    half={"dtype": np.float16},
    first_step={"after": 0},
    momentum={"options": {**MOMENTUM, "masking": True}},
    clip={"options": {**OPTIONS, "clip": 1.0}},
)
def case_not_finite(
    value: float = np.nan,
    rank: int = 0,
    dtype: Any = np.float32,
    after: int = 2,
    options: Mapping[str, Any] = MOMENTUM,
) -> None:
    """That tensor is NaN on every rank in that step, other tensors and later steps are as without it."""
    codecs = Codecs(options)
    with reducer(options) as reduce:
        check_steps(reduce, codecs, range(after), dtype=dtype)
        spoiled = everyones("matrix", 100, dtype)
        spoiled[rank][3, 5] = value
        requests = {
            "kernel": reduce.iallreduce("kernel", values("kernel", 100, dtype=dtype)),
            "matrix": reduce.iallreduce("matrix", spoiled[RANK]),
        }
        found = requests["matrix"].wait()
        assert found.dtype == dtype and np.isnan(found).all()
        same(requests["kernel"].wait(), codecs.reduced("kernel", everyones("kernel", 100, dtype)))
        codecs.undone("matrix", spoiled)
        assert reduce.state_dict()["tensors"]["matrix"]["step"] == after
        check_steps(reduce, codecs, range(after, after + 3), dtype=dtype)


@variants(nan={"value": np.nan}, infinity={"value": np.inf})
def case_not_finite_dense(value: float) -> None:
    codecs = Codecs(MOMENTUM)
    with reducer(MOMENTUM) as reduce:
        check_steps(reduce, codecs, range(2))
        gradient = values("bias", 100)
        gradient[7] = value if RANK == 0 else 1
        assert np.isnan(reduce.allreduce("bias", gradient, out=gradient)).all()
        assert reduce.state_dict()["tensors"]["bias"]["step"] == 2
        check_steps(reduce, codecs, range(2, 4))


@variants(first_step={"after": 0}, later={}, last_rank={"rank": SIZE - 1})
def case_failure(after: int = 2, rank: int = 0) -> None:
    """Every rank hears which rank failed, at what tensor and why, and the job could go on."""
    codecs = Codecs(MOMENTUM)
    with reducer(MOMENTUM) as reduce:
        check_steps(reduce, codecs, range(after))
        with failing("matrix", rank, MemoryError("no more")):
            request = reduce.iallreduce("matrix", values("matrix", 100))
            error = raises(
                hgc.CompressionError, [f"rank {rank}", "'matrix'", "MemoryError", "no more"], request.wait
            )
        assert isinstance(error.__cause__, MemoryError) == (rank == RANK)
        codecs.undone("matrix", everyones("matrix", 100), without=rank)
        check_steps(reduce, codecs, range(after, after + 2))


def case_failure_dense() -> None:
    codecs = Codecs(MOMENTUM)
    with reducer(MOMENTUM) as reduce:
        check_steps(reduce, codecs, range(1))
        broken = mock.patch.object(arrays, "widen", side_effect=MemoryError("no more"))
        if RANK == 1:
            broken.start()
        raises(hgc.CompressionError, ["rank 1", "'bias'"], reduce.allreduce, "bias", values("bias", 1))
        if RANK == 1:
            broken.stop()
        check_steps(reduce, codecs, range(1, 3))


def case_several_fail() -> None:
    with reducer() as reduce, failing("matrix", RANK, OSError(f"of {RANK}")):
        words = [f"rank {rank} could not compress 'matrix': OSError('of {rank}')" for rank in range(SIZE)]
        raises(hgc.CompressionError, words, reduce.allreduce, "matrix", values("matrix", 0))


def other(**changes: Any) -> dict[str, Any]:
    """The arguments of a reducer, changed on the last rank alone."""
    arguments = {"method": methods.hgc(**OPTIONS), "names_and_sizes": SHAPES, "seed": 1}
    return {**arguments, **(changes if RANK == SIZE - 1 else {})}


@variants(
    density={"words": ["selector.density", "0.05", "0.5"], "method": methods.hgc(density=0.5)},
    seed={"words": ["seed is 1 on rank 0, 2 on rank"], "seed": 2},
    shape={"words": ["matrix.shape"], "names_and_sizes": {**SHAPES, "matrix": (32, 48)}},
    size={"words": ["flat.size is 1500", "1501"], "names_and_sizes": {**SHAPES, "flat": 1501}},
    name={"words": ["more", "missing"], "names_and_sizes": {**SHAPES, "more": 3}},
    order={"words": ["number"], "names_and_sizes": dict(reversed(SHAPES.items()))},
    policy={"words": ["kernel.method"], "policy": [("kernel", methods.dense())]},
)
def case_settings(words: list[str], **changes: Any) -> None:
    raises(ValueError, words, hgc.Reducer, COMM, **other(**changes))


def case_settings_that_are_none() -> None:
    """A wrong argument on one rank is an error on all."""
    words = ["method must be"] if RANK == SIZE - 1 else [f"rank {SIZE - 1}: method must be"]
    raises(ValueError, words, hgc.Reducer, COMM, **other(method="hgc"))
