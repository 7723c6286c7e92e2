"""What the cases of methods that go through Python share: the methods, and codecs that tell what gradients
become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import horovod.tensorflow as hvd
import numpy as np

import hgc_horovod.tensorflow as hgc
from hgc_horovod import Codec, Method, methods
from hgc_horovod.core.context import Peers
from hgc_horovod.core.schedule import Warmup

from .harness import close, name_of, values

DENSE_AT_FIRST = Warmup(dense_steps=2)
METHODS: dict[str, Method] = {
    "adacomp": methods.adacomp(100),
    "adaqs": methods.adaqs(start_bits=2),
    "aiot_partition": methods.aiot_partition(64),
    "atomo": methods.atomo(2),
    "budget": methods.budget(30, interval=2, momentum=0.9),
    "dense_at_first": replace(methods.ef_signsgd(momentum=0.9), schedule=DENSE_AT_FIRST),
    "dgc": methods.dgc(0.05, clip=3.0),
    "dgc_warmup": methods.dgc(0.01, nesterov=True, masking=False, fp16=True, warmup_steps=8),
    "dqsgd": methods.dqsgd(3),
    "dqsgd_convex": methods.dqsgd(3, steps=6, mu=0.1, smoothness=1, eta=0.5),
    "ef_signsgd": methods.ef_signsgd(momentum=0.9),
    "eightbit": methods.eightbit(feedback=True),
    "gradient_dropping": methods.gradient_dropping(0.05),
    "gradient_dropping_model": methods.gradient_dropping(0.05, threshold="model", bits=4),
    "memsgd": methods.memsgd(0.05),
    "memsgd_random_k": methods.memsgd(0.05, selection="random_k", momentum=0.9),
    "mqgrad": methods.mqgrad(interval=2),
    "natural": methods.natural(),
    "oland_raj": methods.oland_raj(),
    "oland_raj_last": methods.oland_raj(history=False),
    "onebit": methods.onebit(),
    "powersgd": methods.powersgd(2),
    "powersgd_momentum": methods.powersgd(3, momentum=0.9, nesterov=True),
    "powersgd_dense_at_first": replace(methods.powersgd(2, momentum=0.9), schedule=DENSE_AT_FIRST),
    "qsgd": methods.qsgd(3, norm="max"),
    "signsgd": methods.signsgd(),
    "strom": methods.strom(2.0),
    "terngrad": methods.terngrad(),
    "voted": Method(methods.memsgd(0.05).selector, methods.hgc(bits=4).quantizer, vote=True),
    "wangni": methods.wangni(0.05),
}
BASE = methods.hgc(0.05, momentum=0.9)  # of all tensors else
FORMS = ((48, 32), (7, 9, 4, 8), (30, 50))
SHAPES = {name: FORMS[number % 3] for number, name in enumerate(METHODS)}
ALL = {**SHAPES, "native": (48, 32), "bias": (40,)}
SOME = {name: SHAPES[name] for name in ("adaqs", "dense_at_first", "dgc", "memsgd_random_k", "powersgd")}
ROUNDED = {name: SHAPES[name] for name in ("adaqs", "dgc", "powersgd_dense_at_first", "signsgd")}


def compressor(trained: Any, shapes: Mapping[str, Any] = ALL, **options: Any) -> Any:
    """Of one tensor for each method."""
    policy = [(name, method) for name, method in METHODS.items() if name in shapes]
    return hgc.Compression.from_method(BASE, trained, policy=policy, seed=5, **options)


class Codecs:
    """One independent codec per rank and tensor, and what they say about the reduced gradients."""

    def __init__(self, shapes: Mapping[str, Any] = ALL, ranks: Sequence[int] | None = None) -> None:
        self.ranks = range(hvd.size()) if ranks is None else ranks
        self.peers = [Peers() for _ in self.ranks]
        self.codecs: dict[str, list[Codec]] = {}
        self.sent = dict.fromkeys(shapes, 0)  # bytes of payloads, by this rank
        self._velocity: dict[str, np.ndarray] = {}
        for name, shape in shapes.items():
            size = int(np.prod(shape))
            self.codecs[name] = [
                Codec(METHODS.get(name, BASE), size, name, 5, rank, len(self.ranks), shape=shape, peers=peers)
                for rank, peers in enumerate(self.peers)
            ]

    def own(self, name: str) -> Codec:
        """This rank's."""
        return self.codecs[name][list(self.ranks).index(hvd.rank())]

    def reduced(self, name: str, step: int, scale: float = 1.0, everyones: Any = None) -> np.ndarray:
        """What this step's float32 gradient becomes; to be asked for once a step."""
        codecs, shape = self.codecs[name], self.codecs[name][0].shape
        everyones = everyones or [values(name, shape, step, rank) for rank in self.ranks]
        if codecs[0].method.is_dense(shape, step):
            return self._dense(name, np.mean(everyones, 0, np.float64)) * scale
        pairs = list(zip(codecs, (one.reshape(-1) for one in everyones), strict=True))
        if codecs[0].method.by_allreduce:
            self.sent[name] += 4 * sum(codecs[0].round_sizes)
            return averaged([codec.rounds(gradient) for codec, gradient in pairs]).reshape(shape) * scale
        payloads = [codec.encode(gradient) for codec, gradient in pairs]
        self.sent[name] += payloads[list(self.ranks).index(hvd.rank())].nbytes
        factor = np.float32(scale / len(codecs))
        return next(iter([codec.decode_sum(payloads, factor=factor) for codec in codecs])).reshape(shape)

    def _dense(self, name: str, mean: np.ndarray) -> np.ndarray:
        momentum = self.codecs[name][0].method.feedback.momentum
        velocity = self._velocity[name] = momentum * self._velocity.get(name, 0.0) + mean
        for codec in self.codecs[name]:
            codec.step += 1
            codec.momentum = velocity.reshape(-1) if momentum else None
        return velocity


def averaged(rounds: list[Any]) -> np.ndarray:
    """What the rounds of all ranks return, when they are sent the means of what they yield."""
    vectors = [next(one) for one in rounds]
    while True:
        mean, vectors, results = np.mean(vectors, 0, np.float32), [], []
        for one in rounds:
            try:
                vectors.append(one.send(mean))
            except StopIteration as stop:
                results.append(stop.value)
        if results:
            return results[0]


def is_summed_by_horovod(method: Method) -> bool:
    """Whether Horovod's sums are in what is kept: on three ranks their rounding has no order."""
    return method.by_allreduce or method.schedule.dense_steps > 0


def check(trained: Any, reduced: Any, codecs: Codecs, step: int, scale: float = 1.0) -> None:
    """To the bit, where nothing is summed but by the codec."""
    for variable, gradient in zip(trained, reduced, strict=True):
        name = name_of(variable)
        expected, method = codecs.reduced(name, step, scale), codecs.own(name).method
        if is_summed_by_horovod(method) or method.is_dense(expected.shape, step):
            close(gradient, expected, 2e-6)
        else:
            assert np.array_equal(gradient.numpy(), expected), name


def check_kept(compression: Any, codecs: Codecs) -> None:
    """What is kept of each tensor is what its codec keeps."""
    for name, slot in compression.slots.by_name.items():
        if slot.python is None:
            continue
        actual, expected = slot.python.codec.state_dict(), codecs.own(name).state_dict()
        assert int(slot.step) == expected["step"], name
        assert actual.get("memory", {}).keys() == expected.get("memory", {}).keys(), name
        arrays = [(actual[key], expected[key]) for key in ("residual", "momentum")]
        arrays += [(actual["memory"][key], value) for key, value in expected.get("memory", {}).items()]
        for one, other in arrays:
            if is_summed_by_horovod(codecs.own(name).method) or other is None:
                assert (one is None) == (other is None), name
                close(one, other, 1e-5) if one is not None else None
            else:
                assert np.array_equal(one, other), name
