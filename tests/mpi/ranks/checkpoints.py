"""State that is saved and restored, in the same world and in others."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np

from hgc_horovod import methods
from tests.cases import variants

from .harness import (
    COMM,
    OPTIONS,
    RANK,
    SHAPES,
    SIZE,
    Codecs,
    check_steps,
    equal_on_all_ranks,
    raises,
    reducer,
    values,
)

MOMENTUM = {**OPTIONS, "momentum": 0.9, "masking": True}


def advance(reduce: Any, steps: range, op: str = "average") -> list[bytes]:
    """The results of these steps."""
    return [reduce.allreduce(name, values(name, step), op).tobytes() for step in steps for name in SHAPES]


@variants(
    compressed={"saved": 3},
    at_the_start={"saved": 0},
    dense_steps={"saved": 1, "dense_steps": 2},
    warm_up={"saved": 2, "warmup_steps": 4},
    as_a_list={"saved": 3, "everyones": True},
)
def case_going_on(saved: int, everyones: bool = False, **options: Any) -> None:
    """The same bits as without the interruption."""
    options = {**MOMENTUM, **options}
    codecs = Codecs(options)
    with reducer(options) as reduce:
        check_steps(reduce, codecs, range(saved))
        state: Any = pickle.loads(pickle.dumps(reduce.state_dict()))
        expected = advance(reduce, range(saved, saved + 4))
    with reducer(options) as resumed:
        resumed.load_state_dict(COMM.allgather(state) if everyones else state)
        check_steps(resumed, codecs, range(saved, saved + 4))
        resumed.load_state_dict(state)  # once more: loading does not use it up
        assert advance(resumed, range(saved, saved + 4)) == expected


def alone(op: str = "average") -> list[Any]:
    """States as of a world of twice as many ranks: each rank's, who was alone, two times."""
    with reducer(MOMENTUM, COMM.Split(RANK)) as reduce:
        advance(reduce, range(2), op)
        state = reduce.state_dict()
    states = COMM.allgather(state)
    return [{**one, "rank": rank, "world_size": 2 * SIZE} for rank, one in enumerate([*states, *states])]


@variants(average={"op": "average", "factor": 1}, sum={"op": "sum", "factor": 2})
def case_mean_of_another_world(op: str, factor: float) -> None:
    """Every rank gets what keeps the mean, or the sum, of what is not sent yet."""
    states = alone(op)
    with reducer(MOMENTUM) as reduce:
        reduce.load_state_dict(states, other_world="mean")
        tensors = reduce.state_dict()["tensors"]
        assert {state["step"] for state in tensors.values()} == {2}
        for key in ("residual", "momentum"):
            mean = np.mean([one["tensors"]["matrix"][key] for one in states], axis=0)
            np.testing.assert_allclose(tensors["matrix"][key], factor * mean, rtol=1e-5, atol=1e-6)
        velocity = states[0]["tensors"]["bias"]["momentum"]
        np.testing.assert_array_equal(tensors["bias"]["momentum"], factor * velocity)
        for name in SHAPES:
            equal_on_all_ranks(reduce.allreduce(name, values(name, 2), op))


def case_zero_of_another_world() -> None:
    """Residuals and velocities are dropped, the momentum of dense tensors is kept."""
    states = alone()
    with reducer(MOMENTUM) as reduce:
        reduce.load_state_dict(states, other_world="zero")
        state = reduce.state_dict()["tensors"]
        assert state["matrix"]["step"] == 2
        assert state["matrix"]["residual"] is None and state["matrix"]["momentum"] is None
        np.testing.assert_array_equal(state["bias"]["momentum"], states[0]["tensors"]["bias"]["momentum"])
        for name in SHAPES:
            equal_on_all_ranks(reduce.allreduce(name, values(name, 2)))


def change(state: Any, *path: str, value: Any) -> Any:
    for key in path[:-1]:
        state = state[key]
    state[path[-1]] = value
    return state


REFUSED: dict[str, Any] = {
    "version": (["version 1"], {}, lambda state: {**state, "version": 2}),
    "no state": (["version 1", "3"], {}, lambda state: 3),
    "other rank": (["each rank's own"], {}, lambda state: {**state, "rank": (RANK + 1) % SIZE}),
    "other world": (["'mean'", "'zero'"], {}, lambda state: {**state, "world_size": 7}),
    "a part": (["all 7 ranks"], {"other_world": "mean"}, lambda state: {**state, "world_size": 7}),
    "no way": (["other_world", "'men'"], {"other_world": "men"}, lambda state: state),
    "other tensors": (["same tensors", "bias"], {}, lambda state: (state["tensors"].pop("bias"), state)[1]),
    "other shape": (
        ["residual of 'matrix'", "(1536,)"],
        {},
        lambda state: (change(state, "tensors", "matrix", "residual", value=np.zeros(3)), state)[1],
    ),
    "NaN": (
        ["momentum of 'matrix'", "NaN"],
        {},
        lambda state: (change(state, "tensors", "matrix", "momentum", value=np.full(1536, np.nan)), state)[1],
    ),
}


@variants(**{label: {"label": label} for label in REFUSED})
def case_refused(label: str) -> None:
    words, options, spoil = REFUSED[label]
    codecs = Codecs(MOMENTUM)
    with reducer(MOMENTUM) as reduce:
        check_steps(reduce, codecs, range(2))
        state = spoil(reduce.state_dict())
        raises(ValueError, words, reduce.load_state_dict, state, **options)
        check_steps(reduce, codecs, range(2, 4))


def case_steps_that_differ() -> None:
    """A rank that loads another step's state: no rank loads any."""
    codecs = Codecs(MOMENTUM)
    with reducer(MOMENTUM) as reduce:
        early = reduce.state_dict()
        check_steps(reduce, codecs, range(2))
        state = early if RANK == 0 else reduce.state_dict()
        raises(ValueError, ["steps.matrix is 0 on rank 0, 2 on rank 1"], reduce.load_state_dict, state)
        check_steps(reduce, codecs, range(2, 4))


def case_another_method() -> None:
    with reducer(MOMENTUM) as reduce:
        advance(reduce, range(2))
        state = reduce.state_dict()
    with reducer({**MOMENTUM, "bits": 2}) as other:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            other.load_state_dict(state)
        assert ["another method" in str(warning.message) for warning in caught] == [True]
        advance(other, range(2, 3))
        assert other.method == methods.hgc(**{**MOMENTUM, "bits": 2})
