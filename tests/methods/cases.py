"""All methods, with the arguments under which small tensors show what they do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hgc_horovod import Codec, methods, parts
from hgc_horovod.core.method import Method
from hgc_horovod.kernels import Kernels

from .definitions import NAME, SEED

NAMES = tuple(name for name in methods.__all__ if name != "dense")
SMALL = {"min_elements": 1, "min_ndim": 1}
DEFAULTS = {name: getattr(methods, name)(**({"tau": 1.5} if name == "strom" else {})) for name in NAMES}
CASES: dict[str, Method] = {
    **DEFAULTS,
    "hgc, masked": methods.hgc(0.05, 3, momentum=0.9, masking=True, clip=1.0),
    "adaqs, max": methods.adaqs(2, decay=0.5, norm="max", bucket=64),
    "dqsgd, given": methods.dqsgd(t=0.3, p=1, bucket=100),
    "dqsgd, convex": methods.dqsgd(steps=10, mu=1.0, smoothness=1.0, eta=0.1, p=float("inf")),
    "oland_raj, last step": methods.oland_raj(history=False),
    "mqgrad, quick": methods.mqgrad(interval=1, epsilon=0.5),
    "aiot_partition, blocks": methods.aiot_partition(16, bits=4, key_entropy=0.9, sparse_entropy=0.9),
    "qsgd, max": methods.qsgd(3, norm="max", bucket=0),
    "qsgd, 8 bits": methods.qsgd(8, bucket=7),
    "terngrad, buckets": methods.terngrad(sigmas=None, bucket=33),
    "ef_signsgd, momentum": methods.ef_signsgd(momentum=0.9, nesterov=True, bucket=50, clip=2.0),
    "onebit, momentum": methods.onebit(momentum=0.9),
    "gradient_dropping, model": methods.gradient_dropping(0.1, threshold="model", bits=8),
    "dgc, warm-up": methods.dgc(0.01, warmup_steps=4, fp16=True, clip=1.0),
    "memsgd, random": methods.memsgd(0.1, selection="random_k", momentum=0.9),
    "memsgd, sign": methods.memsgd(0.1, bits=1),
    "adacomp, bins": methods.adacomp(50),
    "eightbit, feedback": methods.eightbit(bucket=64, feedback=True),
    "wangni, half": methods.wangni(0.5),
    "powersgd, momentum": methods.powersgd(2, momentum=0.9),
    "budget, each step": methods.budget(20, interval=1, momentum=0.5),
}
GATHERED = [case for case, method in CASES.items() if not method.by_allreduce]
REDUCED = [case for case, method in CASES.items() if method.by_allreduce]


def ranks_of(
    method: Method, shape: tuple[int, ...], ranks: int, kernels: Kernels | None = None
) -> list[Codec]:
    n = int(np.prod(shape))
    return [
        Codec(method, n, NAME, SEED, rank, ranks, kernels, shape=shape, peers=reporting(rank))
        for rank in range(ranks)
    ]


def reporting(rank: int) -> parts.Peers:
    """Peers whose user has reported a loss."""
    peers = parts.Peers()
    peers.loss = 2.0 + rank
    return peers


def step(codecs: list[Codec], gradients: list[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """One step of all ranks: what they sent, and what they got."""
    if codecs[0].method.by_allreduce:
        return reduced(codecs, gradients)
    payloads = [codec.encode(gradient) for codec, gradient in zip(codecs, gradients, strict=True)]
    results = [codec.decode_sum(payloads, factor=1 / len(codecs)) for codec in codecs]
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    return payloads, results[0]


def reduced(codecs: list[Codec], gradients: list[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """One step of a method that averages vectors: those that all ranks yielded, and the result."""
    rounds = [codec.rounds(gradient) for codec, gradient in zip(codecs, gradients, strict=True)]
    sizes, sent, results = list(codecs[0].round_sizes), [], []
    vectors = [next(one) for one in rounds]
    while not results:
        size = sizes.pop(0)
        assert all(vector.shape == (size,) and vector.dtype == np.float32 for vector in vectors)
        sent += vectors
        mean = np.mean(vectors, axis=0, dtype=np.float64).astype(np.float32)
        vectors = []
        for one in rounds:
            try:
                vectors.append(one.send(mean.copy()))
            except StopIteration as end:
                results.append(end.value)
    assert not sizes and all(result.tobytes() == results[0].tobytes() for result in results)
    return sent, results[0]


def state(codec: Codec) -> Iterator[tuple[str, bytes]]:
    """Every bit that a codec keeps."""
    yield "step", str(codec.step).encode()
    yield "residual", codec.residual.tobytes()
    yield "momentum", b"" if codec.momentum is None else codec.momentum.tobytes()
    for key, values in sorted(codec.memory.items()):
        yield key, values.tobytes()
