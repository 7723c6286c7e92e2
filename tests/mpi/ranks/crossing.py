"""Payloads of varying size and averages in rounds, where ranks wait in different orders, fail or differ."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

import hgc_horovod.mpi as hgc
from hgc_horovod import Codec, Method, methods
from hgc_horovod.core import matrices
from tests import cases
from tests.cases import variants

from .harness import COMM, RANK, SHAPES, SIZE, Codecs, equal_on_all_ranks, failing, raises
from .literature import KINDS, agree, follow, gradient, gradients

MIXES: dict[str, dict[str, Method]] = {
    "varying": dict.fromkeys(SHAPES, methods.wangni(0.2)),
    "averaged": dict.fromkeys(SHAPES, methods.powersgd(2)),
    "mixed": {
        "matrix": methods.powersgd(2),
        "kernel": methods.powersgd(3),
        "flat": methods.gradient_dropping(0.05, sample=0.1, threshold="model"),
    },
    "turned": {"matrix": methods.wangni(0.2), "kernel": methods.powersgd(2), "flat": methods.hgc(0.05)},
}
MEMSGD = methods.memsgd(0.1, selection="random_k")


@variants(
    **{
        f"{mix}_{label}": {"mix": mix, "order": order}
        for mix in MIXES
        for label, order in {
            "backwards_on_some": lambda names, step: names[::-1] if RANK % 2 else names,
            "by_rank_and_step": lambda names, step: [names[(RANK + step + i) % 4] for i in range(4)],
            "the_last_first": lambda names, step: names[::-1],
        }.items()
    }
)
def case_orders(mix: str, order: Any) -> None:
    """Several tensors in flight, each rank waiting in an order of its own."""
    of = MIXES[mix]
    codecs = Codecs(methods.hgc(), **of)
    with hgc.Reducer(COMM, codecs.method, SHAPES, policy=list(of.items())) as reduce:
        for step in range(4):
            requests = {name: reduce.iallreduce(name, gradient(name, step)) for name in SHAPES}
            found = {name: requests[name].wait() for name in order(list(SHAPES), step)}
            for name in SHAPES:
                expected = codecs.reduced(name, gradients(name, step))
                agree(found[name], expected, of.get(name, codecs.method).by_allreduce, f"{name}, {step}")
                equal_on_all_ranks(found[name])


@variants(**{mix: {"mix": mix} for mix in MIXES})
def case_wait_at_once_meets_wait_later(mix: str) -> None:
    """In a first step, too, in which starting a tensor waits for all ranks."""
    of = MIXES[mix]
    codecs = Codecs(methods.hgc(), **of)
    with hgc.Reducer(COMM, codecs.method, SHAPES, policy=list(of.items())) as reduce:
        for step in range(3):
            if (RANK + step) % 2:
                found = {name: reduce.allreduce(name, gradient(name, step)) for name in SHAPES}
            else:
                requests = {name: reduce.iallreduce(name, gradient(name, step)) for name in SHAPES}
                found = {name: requests[name].wait() for name in reversed(SHAPES)}
            for name in SHAPES:
                expected = codecs.reduced(name, gradients(name, step))
                agree(found[name], expected, of.get(name, codecs.method).by_allreduce, f"{name}, {step}")


@variants(
    fixed={"method": methods.hgc(0.3, bits=32)},
    varying={"method": methods.wangni(0.5)},
    random_k={"method": methods.memsgd(0.3, selection="random_k")},
)
def case_some_are_elsewhere(method: Method) -> None:
    """What takes one exchange is there once all ranks have started it, be they in another collective."""
    codecs = Codecs(method)
    with hgc.Reducer(COMM, method, SHAPES) as reduce:
        for step in range(3):
            request = reduce.iallreduce("kernel", gradient("kernel", step))
            if step % SIZE == RANK:
                request.wait()
            COMM.Barrier()
            agree(request.wait(), codecs.reduced("kernel", gradients("kernel", step)), method.by_allreduce)


def case_interleaved_steps() -> None:
    """A tensor's next step begins while others of the step before are in flight."""
    names = ["matrix", "kernel", "flat"]
    of = {**dict.fromkeys(names, methods.wangni(0.2)), "kernel": methods.powersgd(2)}
    codecs = Codecs(methods.hgc(), **of)
    with hgc.Reducer(COMM, codecs.method, SHAPES, policy=list(of.items())) as reduce:
        requests = {name: reduce.iallreduce(name, gradient(name, 0)) for name in names}
        for step in range(4):
            found: dict[str, np.ndarray] = {}
            for name in names:  # all ranks start in this order; what they wait for beside that differs
                for other in [name, *(names if RANK % 2 else [])]:
                    if other not in found:
                        found[other] = requests[other].wait()
                requests[name] = reduce.iallreduce(name, gradient(name, step + 1))
            for name in names:
                expected = codecs.reduced(name, gradients(name, step))
                agree(found[name], expected, of[name].by_allreduce, f"{name}, {step}")
        for name in names[:: -1 if RANK % 2 else 1]:
            requests[name].wait()


@variants(as_started={"turn": 1}, backwards={"turn": -1})
def case_large(turn: int) -> None:
    """Messages that MPI does not send before their receiver asks for them, several a rank."""
    shapes = {f"large {i}": (300, 200) for i in range(4)}
    method = methods.wangni(0.5)
    with hgc.Reducer(COMM, method, shapes) as reduce:
        for step in range(2):
            everyones = {n: [cases.values(n, shapes[n], step, r) for r in range(SIZE)] for n in shapes}
            requests = {name: reduce.iallreduce(name, everyones[name][RANK]) for name in shapes}
            found = {name: requests[name].wait() for name in list(shapes)[:: turn if RANK % 2 else 1]}
            for name, results in everyones.items():
                codecs = [Codec(method, 60_000, name, 0, rank, SIZE) for rank in range(SIZE)]
                for codec in codecs:
                    codec.step = step
                payloads = [c.encode(g.reshape(-1)) for c, g in zip(codecs, results, strict=True)]
                assert len({payload.size for payload in payloads}) > 1 and payloads[0].size > 2**16
                expected = codecs[0].decode_sum(payloads, factor=1 / SIZE)
                assert found[name].tobytes() == expected.tobytes(), (name, step)


@variants(
    **{
        f"{label}_{rank}": {"method": method, "rank": rank}
        for label, method in {**KINDS, "random_k": MEMSGD, "budget": methods.budget(20, interval=1)}.items()
        for rank in (0, SIZE - 1)
    }
)
def case_not_finite(method: Method, rank: int) -> None:
    """NaN on every rank, and other tensors and later steps are as without it."""
    codecs = Codecs(method)
    with hgc.Reducer(COMM, method, SHAPES) as reduce:
        follow(reduce, codecs, range(2))
        spoiled = gradients("matrix", 9)
        spoiled[rank][3, 5] = np.inf
        requests = {
            "kernel": reduce.iallreduce("kernel", gradient("kernel", 9)),
            "matrix": reduce.iallreduce("matrix", spoiled[RANK]),
        }
        found = {name: requests[name].wait() for name in sorted(requests, reverse=bool(RANK % 2))}
        assert np.isnan(found["matrix"]).all()
        agree(found["kernel"], codecs.reduced("kernel", gradients("kernel", 9)), method.by_allreduce)
        codecs.undone("matrix", spoiled)
        assert reduce.state_dict()["tensors"]["matrix"]["step"] == 2
        follow(reduce, codecs, range(2, 5))


def case_overflow_in_a_later_round() -> None:
    """A rank's second vector is infinite: the step is taken back by the means."""
    codecs, product = Codecs(KINDS["averaged"]), matrices._product
    products = iter([product, lambda *factors: product(*factors) * np.float32(1 if RANK else np.inf)])
    with hgc.Reducer(COMM, codecs.method, SHAPES) as reduce:
        ours = gradient("matrix", 0)
        with mock.patch.object(matrices, "_product", lambda *factors: next(products)(*factors)):
            assert np.isnan(reduce.allreduce("matrix", ours)).all()
        rounds = sum(4 * (size + SIZE) for size in codecs.of("matrix", ours.size)[RANK].round_sizes)
        assert reduce.report().tensors[0].sent_bytes == rounds, "the first round told already"
        assert reduce.state_dict()["tensors"]["matrix"]["step"] == 0
        follow(reduce, codecs, range(3))


@variants(
    **{
        f"{label}_{after}": {"method": method, "after": after}
        for label, method in {**KINDS, "random_k": MEMSGD}.items()
        for after in (0, 2)
    }
)
def case_failure(method: Method, after: int) -> None:
    """Every rank hears which rank failed, at what tensor and why, and the job could go on."""
    rank, codecs = SIZE - 1, Codecs(method)
    words = [f"rank {rank}", "'matrix'"]
    with hgc.Reducer(COMM, method, SHAPES) as reduce:
        follow(reduce, codecs, range(after))
        with failing("matrix", rank, MemoryError("no more")):
            request = reduce.iallreduce("matrix", gradient("matrix", 9))
            kernel = reduce.iallreduce("kernel", gradient("kernel", 9))
            found = kernel.wait() if RANK else None
            error = raises(
                hgc.CompressionError,
                words if method.by_allreduce else [*words, "MemoryError", "no more"],
                request.wait,
            )
            found = kernel.wait()
        assert isinstance(error.__cause__, MemoryError) == (rank == RANK)
        agree(found, codecs.reduced("kernel", gradients("kernel", 9)), method.by_allreduce)
        codecs.undone("matrix", gradients("matrix", 9), without=rank)
        follow(reduce, codecs, range(after, after + 2))


def case_failure_in_a_later_round() -> None:
    codecs = Codecs(KINDS["averaged"])
    with hgc.Reducer(COMM, codecs.method, SHAPES) as reduce:
        follow(reduce, codecs, range(1))
        broken = mock.patch.object(matrices, "_orthogonal", side_effect=MemoryError("no more"))
        if RANK == 1:
            broken.start()
        requests = {name: reduce.iallreduce(name, gradient(name, 9)) for name in ("matrix", "kernel")}
        for name in sorted(requests, reverse=bool(RANK % 2)):
            raises(hgc.CompressionError, [f"rank 1 could not compress '{name}'"], requests[name].wait)
        if RANK == 1:
            broken.stop()
        follow(reduce, codecs, range(1, 4))


@variants(**{label: {"method": method} for label, method in {**KINDS, "random_k": MEMSGD}.items()})
def case_different_tensors(method: Method) -> None:
    """Found where the messages look alike, too, and nothing is kept of it."""
    shapes = {"first": (48, 32), "second": (48, 32)}
    own = gradient("matrix", 0)
    with hgc.Reducer(COMM, method, shapes) as reduce:
        if RANK == 0:
            raises(ValueError, ["same order", "'first'", "'second'"], reduce.iallreduce, "first", own)
        else:
            raises(ValueError, ["same order", "'first'", "'second'"], reduce.iallreduce, "second", own)
        for name in shapes:
            reduce.allreduce(name, own)
        before = reduce.state_dict()["tensors"]
        names = list(shapes) if RANK < SIZE - 1 else list(shapes)[::-1]
        requests = [reduce.iallreduce(name, own) for name in names]
        for i in (1, 0) if RANK % 2 else (0, 1):
            words = ["same order", "on rank", f"here it is the average of '{names[i]}'"]
            raises(ValueError, words, requests[i].wait)
        for name in shapes:
            after = reduce.state_dict()["tensors"][name]
            assert after["step"] == before[name]["step"] == 1
            np.testing.assert_allclose(after["residual"], before[name]["residual"], atol=1e-6)
            equal_on_all_ranks(reduce.allreduce(name, own))
