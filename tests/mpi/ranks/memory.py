"""What methods remember beside residual and momentum, in checkpoints."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import hgc_horovod.mpi as hgc
from hgc_horovod import methods
from tests.cases import variants

from .harness import COMM, RANK, SHAPES, SIZE, equal_on_all_ranks, same
from .literature import METHODS, gradient, loss

REMEMBERING = ("adaqs", "aiot_partition", "budget_momentum", "dqsgd", "gradient_dropping_model", "mqgrad")
OTHERS = ("oland_raj", "onebit", "powersgd", "random_k", "terngrad")


@variants(**{label: {"label": label} for label in REMEMBERING + OTHERS})
def case_going_on(label: str) -> None:
    """The same bits as without the interruption."""
    method = METHODS[label]

    def advance(reduce: hgc.Reducer, steps: range) -> list[bytes]:
        results = []
        for step in steps:
            reduce.report_loss(loss(step, RANK))
            results += [reduce.allreduce(name, gradient(name, step)).tobytes() for name in SHAPES]
        return results

    with hgc.Reducer(COMM, method, SHAPES) as reduce:
        advance(reduce, range(4))
        state: Any = pickle.loads(pickle.dumps(reduce.state_dict()))
        expected = advance(reduce, range(4, 8))
    for given in (state, COMM.allgather(state)):
        with hgc.Reducer(COMM, method, SHAPES) as resumed:
            resumed.load_state_dict(given)
            assert advance(resumed, range(4, 8)) == expected


@variants(mean={"other_world": "mean"}, zero={"other_world": "zero"})
def case_memory_of_another_world(other_world: str) -> None:
    """Every rank goes on with rank 0's, and all with the same start of PowerSGD's iteration."""
    of = {"kernel": methods.powersgd(2)}
    method = methods.budget(40, interval=2)
    with hgc.Reducer(COMM.Split(RANK), method, SHAPES, policy=list(of.items())) as alone:
        for name in SHAPES:
            alone.allreduce(name, gradient(name, 0))
        states = COMM.allgather({**alone.state_dict(), "world_size": 2 * SIZE})
    states = [{**one, "rank": rank} for rank, one in enumerate([*states, *states])]
    with hgc.Reducer(COMM, method, SHAPES, policy=list(of.items())) as reduce:
        reduce.load_state_dict(states, other_world=other_world)
        for name, kept in reduce.state_dict()["tensors"].items():
            for key, array in kept["memory"].items():
                same(array, states[0]["tensors"][name]["memory"][key], f"{name}, {key}")
        for name in SHAPES:
            equal_on_all_ranks(reduce.allreduce(name, gradient(name, 1)))


def case_memory_of_another_method() -> None:
    """The bits that one controller remembers are none of the other's."""
    with hgc.Reducer(COMM, methods.budget(40, interval=1), SHAPES) as reduce:
        reduce.allreduce("matrix", gradient("matrix", 0))
        state = reduce.state_dict()
    assert "bits" in state["tensors"]["matrix"]["memory"]
    with hgc.Reducer(COMM, methods.adaqs(3), SHAPES) as other:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other.load_state_dict(state)
        other.allreduce("matrix", gradient("matrix", 1))
        assert other.report().tensors[0].bits == [(1, 3)]
