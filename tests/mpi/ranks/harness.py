"""What the rank programs share: gradients, and codecs that tell what they become."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
from mpi4py import MPI

import hgc_horovod.mpi as hgc
from hgc_horovod import Codec, Method, NonFiniteError, methods
from hgc_horovod.core.context import Peers
from hgc_horovod.planning import Planner
from tests import cases
from tests.cases import raises as raises

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
SHAPES: Mapping[str, Any] = {"matrix": (48, 32), "bias": (40,), "kernel": (8, 4, 7, 9), "flat": 1500}
OPTIONS = {"density": 0.05, "bits": 4}
STEPS = 4  # enough for what was not sent to come back


def values(name: str, step: int, rank: int = RANK, dtype: Any = np.float32) -> np.ndarray:
    """A rank's gradient of a step. Multiples of 1/256, whose sums come out the same in any order."""
    shape = SHAPES[name]
    normal = cases.values(name, (shape,) if isinstance(shape, int) else shape, step, rank)
    return (np.round(256 * normal) / 256).astype(dtype)


def everyones(name: str, step: int, dtype: Any = np.float32) -> list[np.ndarray]:
    return [values(name, step, rank, dtype) for rank in range(SIZE)]


def reducer(options: Mapping[str, Any] = OPTIONS, comm: MPI.Intracomm = COMM, **more: Any) -> hgc.Reducer:
    return hgc.Reducer(comm, methods.hgc(**options), SHAPES, **more)


class Codecs:
    """One independent codec per rank and tensor, and what they say about the reduced gradients."""

    def __init__(self, method: Mapping[str, Any] | Method = OPTIONS, **of: Method) -> None:
        self.method = method if isinstance(method, Method) else methods.hgc(**method)
        self.of_tensor = of
        self.peers = [Peers() for _ in range(SIZE)]
        self.steps: Counter[str] = Counter()
        self.codecs: dict[str, list[Codec]] = {}
        self.velocity: dict[str, np.ndarray] = {}

    def is_dense(self, name: str, itemsize: int = 4) -> bool:
        shape = SHAPES[name]
        shape = (1, shape) if isinstance(shape, int) else shape
        return self.of_tensor.get(name, self.method).is_dense(shape, self.steps[name], itemsize)

    def reduced(self, name: str, gradients: Sequence[np.ndarray], op: str = "average") -> np.ndarray:
        """What the gradients of the next step become."""
        like = gradients[0]
        wide = np.float64 if like.dtype == np.float64 else np.float32
        if self.is_dense(name, np.dtype(wide).itemsize):
            update = self._dense(name, np.sum([g.astype(wide) for g in gradients], axis=0), op)
        else:
            codecs = self.of(name, like.size)
            if codecs[0].method.by_allreduce:
                update = averaged([c.rounds(g.reshape(-1)) for c, g in zip(codecs, gradients, strict=True)])
                update *= SIZE if op == "sum" else 1
            else:
                payloads = [c.encode(g.reshape(-1)) for c, g in zip(codecs, gradients, strict=True)]
                factor = 1 if op == "sum" else 1 / SIZE
                update, *_ = [codec.decode_sum(payloads, factor=factor) for codec in codecs]
        self.steps[name] += 1
        return update.astype(like.dtype).reshape(like.shape)

    def undone(self, name: str, gradients: Sequence[np.ndarray], without: int | None = None) -> None:
        """A step of a compressed tensor that does not count, and which a rank did not even encode."""
        for rank, (codec, gradient) in enumerate(
            zip(self.of(name, gradients[0].size), gradients, strict=True)
        ):
            if rank == without or codec.method.by_allreduce:  # whose state changes last
                continue
            try:
                codec.encode(gradient.reshape(-1))
            except NonFiniteError:
                continue
            codec.undo(gradient.reshape(-1))

    def of(self, name: str, size: int) -> list[Codec]:
        if name not in self.codecs:
            method = self.of_tensor.get(name, self.method)
            shape = SHAPES[name] if isinstance(SHAPES[name], tuple) else None
            self.codecs[name] = [
                Codec(method, size, name, 0, r, SIZE, shape=shape, peers=self.peers[r]) for r in range(SIZE)
            ]
            for codec in self.codecs[name]:
                velocity = self.velocity.get(name)
                codec.momentum = None if velocity is None else velocity.reshape(-1)
        for codec in self.codecs[name]:
            codec.step = self.steps[name]
        return self.codecs[name]

    def _dense(self, name: str, total: np.ndarray, op: str) -> np.ndarray:
        feedback, mean = self.method.feedback, total / SIZE
        if not feedback.momentum:
            return total if op == "sum" else mean
        m = mean.dtype.type(feedback.momentum)
        self.velocity[name] = velocity = m * self.velocity.get(name, np.zeros_like(mean)) + mean
        update = mean + m * velocity if feedback.nesterov else velocity
        return update * SIZE if op == "sum" else update


def averaged(rounds: Sequence[Generator[np.ndarray, np.ndarray, np.ndarray]]) -> np.ndarray:
    """What all ranks' rounds return when each gets the mean of their vectors."""
    steps = [(next(one), False) for one in rounds]
    while not steps[0][1]:
        mean = np.mean([vector for vector, _ in steps], axis=0, dtype=np.float32)
        steps = [_after(one, mean) for one in rounds]
    results = [result for result, _ in steps]
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    return results[0]


def _after(rounds: Generator[np.ndarray, np.ndarray, np.ndarray], mean: np.ndarray) -> tuple[Any, bool]:
    """The next vector, or the result and that it is one."""
    try:
        return rounds.send(mean), False
    except StopIteration as end:
        return end.value, True


def same(actual: np.ndarray, expected: np.ndarray, what: str = "") -> None:
    """Equal in shape, dtype and every bit."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), (what, actual.dtype)
    assert actual.tobytes() == np.ascontiguousarray(expected).tobytes(), what


def check_steps(
    reducer: hgc.Reducer,
    codecs: Codecs,
    steps: Iterable[int] = range(STEPS),
    names: Iterable[str] = tuple(SHAPES),
    dtype: Any = np.float32,
    op: str = "average",
) -> None:
    """Every tensor's reduced gradients are the codecs', to the bit."""
    for step in steps:
        for name in names:
            found = reducer.allreduce(name, values(name, step, dtype=dtype), op)
            same(found, codecs.reduced(name, everyones(name, step, dtype), op), f"{name}, step {step}")


def equal_on_all_ranks(array: np.ndarray) -> None:
    """Bitwise."""
    everyones = COMM.allgather(array.tobytes())
    assert all(other == everyones[0] for other in everyones)


def failing(name: str, rank: int, error: Exception) -> Any:
    """While this holds, a rank cannot encode the gradients of a tensor."""
    plan = Planner.plan

    def broken(self: Planner, *step: Any) -> Any:
        if self.name == name and rank == RANK:
            raise error
        return plan(self, *step)

    return mock.patch.object(Planner, "plan", broken)
