"""Every method, against one codec per rank and tensor that is driven in this process alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

import hgc_horovod.mpi as hgc
from hgc_horovod import Method, methods
from tests.cases import variants

from .harness import COMM, RANK, SHAPES, SIZE, Codecs, equal_on_all_ranks, raises, same, values

# Gradients shrink from step to step and differ by tensor, which moves what controllers look at.
SCALES = {"matrix": 1.0, "bias": 1.0, "kernel": 2.0**-3, "flat": 2.0**-5}
VARYING: dict[str, Method] = {
    "adacomp": methods.adacomp(50),
    "adaqs": methods.adaqs(2, decay=0.3),
    "aiot_partition": methods.aiot_partition(64),
    "atomo": methods.atomo(2),
    "budget": methods.budget(40, interval=2),
    "budget_momentum": methods.budget(20, interval=3, momentum=0.9, masking=True),
    "dqsgd": methods.dqsgd(4.5),
    "dqsgd_convex": methods.dqsgd(4, steps=8, mu=0.4, smoothness=1.0, eta=0.5, p=1),
    "dqsgd_t": methods.dqsgd(t=0.5, p=float("inf")),
    "gradient_dropping": methods.gradient_dropping(0.05, sample=0.1, bits=8, momentum=0.9),
    "gradient_dropping_model": methods.gradient_dropping(0.05, sample=0.1, threshold="model"),
    "mqgrad": methods.mqgrad(interval=2, epsilon=1.0),
    "oland_raj": methods.oland_raj(),
    "oland_raj_last": methods.oland_raj(history=False),
    "strom": methods.strom(1.5),
    "wangni": methods.wangni(0.1),
}
FIXED: dict[str, Method] = {
    "dgc": methods.dgc(0.05, warmup_steps=4, clip=1.0),
    "ef_signsgd": methods.ef_signsgd(momentum=0.9, nesterov=True),
    "eightbit": methods.eightbit(bucket=256, feedback=True),
    "hgc": methods.hgc(0.05, momentum=0.9),
    "memsgd": methods.memsgd(0.05, bits=16),
    "natural": methods.natural(),
    "onebit": methods.onebit(clip=1.0),
    "qsgd": methods.qsgd(),
    "signsgd": methods.signsgd(),
    "terngrad": methods.terngrad(),
}
AVERAGED: dict[str, Method] = {
    "powersgd": methods.powersgd(2),
    "powersgd_momentum": methods.powersgd(1, momentum=0.9, nesterov=True),
    "random_k": methods.memsgd(0.05, selection="random_k", momentum=0.9),
}
METHODS = {**VARYING, **FIXED, **AVERAGED}
KINDS = {"varying": methods.wangni(0.1), "averaged": methods.powersgd(2), "fixed": methods.qsgd()}


def gradient(name: str, step: int, rank: int = RANK, dtype: Any = np.float32) -> np.ndarray:
    return (values(name, step, rank) * np.float32(SCALES[name] * 2.0**-step)).astype(dtype)


def gradients(name: str, step: int, dtype: Any = np.float32) -> list[np.ndarray]:
    return [gradient(name, step, rank, dtype) for rank in range(SIZE)]


def loss(step: int, rank: int) -> float:
    return 1 / (1 + step % 5) + rank / 16


def told(codecs: Codecs, step: int) -> None:
    for rank, peers in enumerate(codecs.peers):
        peers.loss = loss(step, rank)


def agree(found: np.ndarray, expected: np.ndarray, averaged: bool, what: str = "") -> None:
    """Equal to the bit, or, where MPI added, to the rounding of sums."""
    if averaged:
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype), what
        scale = float(np.abs(expected.astype(np.float64)).max(initial=0))
        rtol = 1e-2 if found.dtype.itemsize == 2 else 1e-4
        np.testing.assert_allclose(
            found.astype(np.float64), expected.astype(np.float64), rtol, rtol * scale, err_msg=what
        )
    else:
        same(found, expected, what)


def follow(
    reduce: hgc.Reducer,
    codecs: Codecs,
    steps: Iterable[int],
    op: str = "average",
    dtype: Any = np.float32,
) -> None:
    """What the reducer makes of these steps is what the codecs make of them."""
    for step in steps:
        reduce.report_loss(loss(step, RANK))
        told(codecs, step)
        for name in SHAPES:
            averaged = codecs.of_tensor.get(name, codecs.method).by_allreduce
            found = reduce.allreduce(name, gradient(name, step, dtype=dtype), op)
            expected = codecs.reduced(name, gradients(name, step, dtype), op)
            agree(found, expected, averaged, f"{name}, step {step}")
            equal_on_all_ranks(found)


@variants(**{label: {"label": label} for label in METHODS})
def case_method(label: str) -> None:
    """Results, and everything that is kept of the steps."""
    method = METHODS[label]
    codecs = Codecs(method)
    with hgc.Reducer(COMM, method, SHAPES) as reduce:
        follow(reduce, codecs, range(6))
        tensors = reduce.state_dict()["tensors"]
    assert codecs.codecs, "no tensor was compressed"
    for name, everyones in codecs.codecs.items():
        codec, state = everyones[RANK], tensors[name]
        if method.feedback.keep:
            agree(state["residual"], codec.residual, method.by_allreduce, name)
        assert sorted(state["memory"]) == sorted(codec.memory)
        for key, expected in codec.memory.items():
            agree(state["memory"][key], expected, method.by_allreduce, f"{name}, {key}")


def case_every_method_is_here() -> None:
    assert {method.name for method in METHODS.values()} == {*methods.__all__} - {"dense"}
    assert all(method.varies for method in VARYING.values())
    assert not any(method.varies or method.by_allreduce for method in FIXED.values())


@variants(
    signsgd={"label": "signsgd"},
    strom={"label": "strom"},
    dqsgd={"label": "dqsgd"},
    powersgd={"label": "powersgd"},
    random_k={"label": "random_k"},
)
def case_sum(label: str) -> None:
    with hgc.Reducer(COMM, METHODS[label], SHAPES) as reduce:
        follow(reduce, Codecs(METHODS[label]), range(3), "sum")


@variants(
    **{
        f"{kind}_{np.dtype(dtype).name}": {"method": method, "dtype": dtype}
        for kind, method in KINDS.items()
        for dtype in (np.float16, np.float64, ml_dtypes.bfloat16)
    }
)
def case_dtype(method: Method, dtype: Any) -> None:
    with hgc.Reducer(COMM, method, SHAPES) as reduce:
        follow(reduce, Codecs(method), range(3), dtype=dtype)


def case_policy() -> None:
    """A method of each kind side by side."""
    of = {"kernel": KINDS["averaged"], "flat": KINDS["varying"], "matrix": methods.budget(40, interval=2)}
    with hgc.Reducer(COMM, methods.hgc(), SHAPES, policy=list(of.items())) as reduce:
        follow(reduce, Codecs(methods.hgc(), **of), range(4))


@variants(
    adaqs={"label": "adaqs"},
    dqsgd={"label": "dqsgd"},
    oland_raj={"label": "oland_raj"},
    mqgrad={"label": "mqgrad"},
    budget={"label": "budget"},
)
def case_bits_over_time(label: str) -> None:
    codecs = Codecs(METHODS[label])
    with hgc.Reducer(COMM, METHODS[label], SHAPES) as reduce:
        used: dict[str, list[int]] = {}
        for step in range(8):
            follow(reduce, codecs, [step])
            for name, (codec, *_) in codecs.codecs.items():
                used.setdefault(name, []).append(codec.bits)
        rows = {row.name: row.bits for row in reduce.report().tensors}
    assert rows["bias"] == []
    for name, bits in used.items():
        runs = [(n, b) for n, b in enumerate(bits) if not n or b != bits[n - 1]]
        assert rows[name] == runs, (name, rows[name], bits)
    assert any(len(runs) > 1 for runs in rows.values()), rows


def case_bytes() -> None:
    """Messages of varying size count as they were, and all rounds do."""
    of = {"kernel": methods.powersgd(2)}
    codecs = Codecs(methods.strom(1.5), **of)
    with hgc.Reducer(COMM, codecs.method, SHAPES, policy=list(of.items())) as reduce:
        follow(reduce, codecs, range(1))
        rows = {row.name: row for row in reduce.report().tensors}
    payload = Codecs(methods.strom(1.5)).of("matrix", 48 * 32)[RANK].encode(gradient("matrix", 0).reshape(-1))
    assert rows["matrix"].sent_bytes == rows["matrix"].payload_bytes == payload.size + 8
    rounds = sum(4 * (size + SIZE) for size in codecs.of("kernel", 2016)[RANK].round_sizes)
    assert rows["kernel"].sent_bytes == rows["kernel"].payload_bytes == rounds


def case_loss_that_is_none() -> None:
    with hgc.Reducer(COMM, METHODS["mqgrad"], SHAPES) as reduce:
        for value in ("1.0", None, True):
            raises(ValueError, ["value", repr(value)], reduce.report_loss, value)
        reduce.report_loss(np.float32(2))
        assert np.isfinite(reduce.allreduce("matrix", gradient("matrix", 0))).all()
        reduce.report_loss(float("nan"))
        assert np.isfinite(reduce.allreduce("matrix", gradient("matrix", 1))).all()
