"""Wrong arguments: an error at once, which says what would be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import hgc_horovod.mpi as hgc
from hgc_horovod import methods
from tests.cases import variants

from .harness import COMM, SHAPES, Codecs, check_steps, raises, reducer, values

METHOD = methods.hgc()
GRADIENT = np.zeros((48, 32), np.float32)

REDUCTIONS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "unknown name": (["name", "'matrx'"], {"name": "matrx"}),
    "shape": (["'matrix'", "(48, 32)", "(32, 48)"], {"array": GRADIENT.T}),
    "size": (["'flat'", "1500 entries", "(1499,)"], {"name": "flat", "array": np.zeros(1499)}),
    "integers": (["'matrix'", "float32", "int64"], {"array": GRADIENT.astype(np.int64)}),
    "long double": (
        ["'matrix'", "float64", str(np.dtype(np.longdouble))],
        {"array": GRADIENT.astype(np.longdouble)},
    ),
    "op": (["op", "'average'", "'max'"], {"op": "max"}),
    "MPI's op": (["op", "MPI.SUM"], {"op": MPI.MAX}),
    "out of another dtype": (["out", "float32", "(48, 32)"], {"out": GRADIENT.astype(np.float64)}),
    "out of another shape": (["out", "float32", "(48, 32)"], {"out": np.zeros(3, np.float32)}),
    "out that is none": (["out", "3"], {"out": 3}),
    "read-only out": (["read-only"], {"out": np.broadcast_to(np.float32(0), (48, 32))}),
}
REDUCERS: dict[str, tuple[list[str], Callable[[], hgc.Reducer]]] = {
    "no communicator": (["comm", "Intracomm", "int"], lambda: hgc.Reducer(3, METHOD, SHAPES)),
    "no method": (["method", "str"], lambda: hgc.Reducer(COMM, "hgc", SHAPES)),
    "no tensors": (["names_and_sizes", "got 0"], lambda: hgc.Reducer(COMM, METHOD, {})),
    "no pairs": (["names_and_sizes", "'matrix'"], lambda: hgc.Reducer(COMM, METHOD, list(SHAPES))),
    "no size": (["'a'", "2.5"], lambda: hgc.Reducer(COMM, METHOD, {"a": 2.5})),
    "negative": (["'a'", "-3"], lambda: hgc.Reducer(COMM, METHOD, {"a": (2, -3)})),
    "twice": (["'a'"[1:2], "twice"], lambda: hgc.Reducer(COMM, METHOD, [("a", 2), ("a", 3)])),
    "no policy": (["policy"], lambda: hgc.Reducer(COMM, METHOD, SHAPES, policy=[("*", "dense")])),
    "seed": (["seed", "-1"], lambda: hgc.Reducer(COMM, METHOD, SHAPES, seed=-1)),
    "threads": (["threads", "0"], lambda: hgc.Reducer(COMM, METHOD, SHAPES, threads=0)),
}


@variants(**{label: {"label": label} for label in REDUCTIONS})
def case_reduction(label: str) -> None:
    """Nothing was sent or kept: the reducer goes on as without the call."""
    words, wrong = REDUCTIONS[label]
    arguments = {"name": "matrix", "array": GRADIENT, **wrong}
    with reducer() as reduce:
        quoted = [word.replace("'average'", '"average"') for word in words]
        for call in (reduce.allreduce, reduce.iallreduce):
            raises(ValueError, quoted, call, **arguments)
        check_steps(reduce, Codecs(), range(2))


@variants(**{label: {"label": label} for label in REDUCERS})
def case_reducer(label: str) -> None:
    words, make = REDUCERS[label]
    raises(ValueError, words, make)


def case_closed() -> None:
    reduce = reducer()
    reduce.close()
    reduce.close()
    raises(ValueError, ["closed"], reduce.allreduce, "matrix", values("matrix", 0))


def case_an_error_leaves_the_communicator() -> None:
    """Ranks that do not come to the end of a `with` block are not waited for."""
    try:
        with reducer() as reduce:
            raise KeyError("something else")
    except KeyError:
        reduce.allreduce("matrix", values("matrix", 0))
        reduce.close()
