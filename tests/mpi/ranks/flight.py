"""Several reductions at once."""

from __future__ import annotations

import numpy as np

from tests.cases import variants

from .harness import OPTIONS, RANK, SHAPES, STEPS, Codecs, everyones, raises, reducer, same, values


@variants(
    as_started={"order": lambda names: names},
    backwards={"order": lambda names: names[::-1]},
    by_rank={"order": lambda names: names[RANK % 4 :] + names[: RANK % 4]},
)
def case_several(order) -> None:
    """They are waited for in any order, which need not be the other ranks'."""
    options = {**OPTIONS, "momentum": 0.9, "dense_steps": 1}
    codecs = Codecs(options)
    with reducer(options) as reduce:
        for step in range(STEPS):
            requests = {name: reduce.iallreduce(name, values(name, step)) for name in SHAPES}
            found = {name: requests[name].wait() for name in order(list(SHAPES))}
            for name in SHAPES:
                same(found[name], codecs.reduced(name, everyones(name, step)), f"{name}, step {step}")


def case_blocking_meets_non_blocking() -> None:
    """Ranks may wait at once or later."""
    codecs = Codecs()
    with reducer() as reduce:
        for step in range(STEPS):
            gradient = values("matrix", step)
            if RANK == 0:
                found = reduce.allreduce("matrix", gradient)
            else:
                found = reduce.iallreduce("matrix", gradient).wait()
            same(found, codecs.reduced("matrix", everyones("matrix", step)))


def case_waiting_twice() -> None:
    with reducer() as reduce:
        request = reduce.iallreduce("matrix", values("matrix", 0))
        assert request.wait() is request.wait()
        assert reduce.state_dict()["tensors"]["matrix"]["step"] == 1


@variants(
    again={"call": lambda reduce: reduce.iallreduce("matrix", values("matrix", 0)), "words": ["'matrix'"]},
    state={"call": lambda reduce: reduce.state_dict(), "words": ["state_dict", "'matrix'"]},
    load={"call": lambda reduce: reduce.load_state_dict({}), "words": ["load_state_dict", "'matrix'"]},
    close={"call": lambda reduce: reduce.close(), "words": ["close", "'matrix'"]},
)
def case_refused_in_flight(call, words) -> None:
    with reducer() as reduce:
        request = reduce.iallreduce("matrix", values("matrix", 0))
        raises(ValueError, ["in flight", *words], call, reduce)
        same(request.wait(), Codecs().reduced("matrix", everyones("matrix", 0)))


def case_a_forgotten_request() -> None:
    """What MPI reads and writes stays where it is, and the tensor in flight."""
    with reducer() as reduce:
        reduce.iallreduce("matrix", values("matrix", 0))
        garbage = [np.ones(4096, np.uint8) for _ in range(100)]
        reduce.allreduce("bias", values("bias", 0))
        raises(ValueError, ["'matrix'", "in flight"], reduce.allreduce, "matrix", values("matrix", 1))
        reduce._tensors["matrix"].flying.wait()
        assert len(garbage) == 100 and all(one.all() for one in garbage)
