"""Ranks that reduce different tensors: every rank hears of it, and nothing is mixed."""

from __future__ import annotations

import numpy as np

import hgc_horovod.mpi as hgc
from hgc_horovod import methods
from tests.cases import variants

from .harness import COMM, OPTIONS, RANK, SIZE, Codecs, check_steps, everyones, raises, reducer, same, values

TWINS = {"first": (48, 32), "second": (48, 32)}
WORDS = ["same order", "on rank"]


@variants(
    sizes={"mine": "matrix", "others": "kernel"},
    kinds={"mine": "bias", "others": "matrix"},
    dense={"mine": "bias", "others": "bias", "op": "sum"},
    dtype={"mine": "matrix", "others": "matrix", "dtype": np.float64},
)
def case_first_step(mine: str, others: str, op: str = "average", dtype: type = np.float32) -> None:
    """Found before anything of different size could meet, and nothing is kept of it."""
    codecs = Codecs()
    with reducer() as reduce:
        if RANK == 0:
            raises(ValueError, [*WORDS, mine, others], reduce.allreduce, mine, values(mine, 0))
        else:
            gradient = values(others, 0, dtype=dtype)
            raises(ValueError, [*WORDS, mine, others], reduce.allreduce, others, gradient, op)
        check_steps(reduce, codecs)


@variants(compressed={}, dense={"min_elements": 10**6})
def case_later(**options: int) -> None:
    """Two tensors of one size, whose messages look alike to MPI."""
    rank = SIZE - 1
    with hgc.Reducer(COMM, methods.hgc(**{**OPTIONS, **options}), TWINS) as reduce:
        before, gradient = {}, np.asarray(np.random.default_rng(RANK).standard_normal((48, 32)), np.float32)
        for name in TWINS:
            reduce.allreduce(name, gradient)
            before[name] = reduce.state_dict()["tensors"][name]
        names = list(TWINS) if rank != RANK else list(TWINS)[::-1]
        requests = [reduce.iallreduce(name, gradient) for name in names]
        for request, name in zip(requests, names, strict=True):
            raises(ValueError, [*WORDS, f"here it is the average of '{name}'"], request.wait)
            raises(ValueError, WORDS, request.wait)
        for name in TWINS:
            after = reduce.state_dict()["tensors"][name]
            assert after["step"] == before[name]["step"] == 1
            if after["residual"] is not None:
                np.testing.assert_allclose(after["residual"], before[name]["residual"], atol=1e-6)
            reduce.allreduce(name, gradient)


def case_op_of_a_later_step() -> None:
    codecs = Codecs()
    with reducer() as reduce:
        check_steps(reduce, codecs, range(2))
        op = "sum" if RANK == 0 else "average"
        error = raises(
            ValueError, ["the sum of 'matrix'"], reduce.allreduce, "matrix", values("matrix", 2), op
        )
        assert "the average of 'matrix'" in str(error)
        codecs.undone("matrix", everyones("matrix", 2))
        for step in (3, 4):
            found = reduce.allreduce("matrix", values("matrix", step))
            same(found, codecs.reduced("matrix", everyones("matrix", step)))
