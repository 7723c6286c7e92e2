"""Every method of the literature under Horovod, against every rank's codecs in this process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from hgc_horovod import Codec, Method, NonFiniteError, methods
from hgc_horovod.core.context import Peers
from tests.cases import variants

from .harness import SHAPES, Given, close, everyones, reduced, slot, values, wrap

EXTRA = 100  # the number that `values` gets for a step that does not count
AVERAGED = 1e-4  # Horovod adds vectors in an order of its own, which orthogonalization may enlarge
SEED = 5
CONTROLLED: dict[str, Method] = {
    "adaqs": methods.adaqs(2, decay=0.3),
    "dqsgd": methods.dqsgd(2.5),
    "dqsgd_fixed": methods.dqsgd(t=0.2, p=1),
    "dqsgd_convex": methods.dqsgd(t=0.2, p=math.inf, steps=6, mu=0.5, smoothness=1.0, eta=0.5),
    "oland_raj": methods.oland_raj(),
    "mqgrad": methods.mqgrad(interval=1, epsilon=1.0),
    "budget": methods.budget(40, interval=2),
}
METHODS: dict[str, Method] = {
    **CONTROLLED,
    "aiot_partition": methods.aiot_partition(64),
    "qsgd": methods.qsgd(3, bucket=100),
    "terngrad": methods.terngrad(),
    "signsgd": methods.signsgd(),
    "ef_signsgd": methods.ef_signsgd(momentum=0.9, clip=30.0),
    "onebit": methods.onebit(),
    "strom": methods.strom(2.0),
    "gradient_dropping": methods.gradient_dropping(0.05),
    "gradient_dropping_model": methods.gradient_dropping(0.05, threshold="model"),
    "dgc": methods.dgc(0.02, momentum=0.9),
    "memsgd": methods.memsgd(0.05, bits=8),
    "random_k": methods.memsgd(0.05, selection="random_k", momentum=0.9),
    "adacomp": methods.adacomp(50),
    "eightbit": methods.eightbit(feedback=True),
    "atomo": methods.atomo(),
    "wangni": methods.wangni(0.05),
    "natural": methods.natural(),
    "powersgd": methods.powersgd(2),
}


class Ranks:
    """The codecs of all ranks of a world, of as many tensors as come."""

    def __init__(self, method: Method, world: int | None = None) -> None:
        self.method, self.world = method, hvd.size() if world is None else world
        self.peers = [Peers() for _ in range(self.world)]
        self.codecs: dict[str, list[Codec]] = {}
        self.buffers: dict[str, np.ndarray] = {}

    def of(self, name: str, shape: Sequence[int]) -> list[Codec]:
        if name not in self.codecs:
            self.codecs[name] = [
                Codec(
                    *(self.method, math.prod(shape), name, SEED, rank, self.world), shape=shape, peers=peers
                )
                for rank, peers in enumerate(self.peers)
            ]
        return self.codecs[name]

    def reduce(self, name: str, gradients: Sequence[np.ndarray], scale: float = 1.0) -> np.ndarray:
        """`scale` times the mean of the ranks' gradients, as it arrives."""
        shape = gradients[0].shape
        if self.method.is_dense(shape):
            return scale * self.dense(name, np.mean(gradients, axis=0, dtype=np.float64))
        codecs = self.of(name, shape)
        flat = [gradient.ravel() for gradient in gradients]
        if self.method.by_allreduce:
            return np.float32(scale) * averaged(codecs, flat).reshape(shape)
        payloads = [codec.encode(gradient) for codec, gradient in zip(codecs, flat, strict=True)]
        sums = [codec.decode_sum(payloads, factor=scale / self.world) for codec in codecs]
        return sums[0].reshape(shape)

    def dense(self, name: str, mean: np.ndarray) -> np.ndarray:
        """With the momentum of a tensor that is sent as it is."""
        self.buffers[name] = self.method.feedback.momentum * self.buffers.get(name, 0.0) + mean
        return self.buffers[name]

    def break_off(self, name: str, gradients: Sequence[np.ndarray]) -> None:
        """A step of which all ranks take back what they could make."""
        if self.method.is_dense(gradients[0].shape):
            return
        for codec, gradient in zip(self.of(name, gradients[0].shape), gradients, strict=True):
            try:
                if self.method.by_allreduce:
                    next(codec.rounds(gradient.ravel()))
                else:
                    codec.encode(gradient.ravel())
                    codec.undo(gradient.ravel())
            except NonFiniteError:
                pass

    def check(self, model: Given, step: int, scale: float = 1.0, given: Any = everyones) -> None:
        """The model's gradients are these codecs': to the bit where payloads are added up."""
        for name, p in model.named_parameters():
            expected = self.reduce(name, given(name, p.shape, step), scale)
            what = f"{name}, step {step}"
            if self.method.is_dense(p.shape):
                close(p.grad, expected, what=what)
            elif self.method.by_allreduce:
                close(p.grad, expected, bound=AVERAGED, what=what)
            else:
                assert torch.equal(p.grad, torch.from_numpy(expected)), what


def averaged(codecs: Sequence[Codec], gradients: Sequence[np.ndarray]) -> np.ndarray:
    """One step in rounds: the mean gradient."""
    steps = [codec.rounds(gradient) for codec, gradient in zip(codecs, gradients, strict=True)]
    vectors = [next(step) for step in steps]
    while True:
        mean = np.mean(vectors, axis=0, dtype=np.float64).astype(np.float32)
        vectors, results = [], []
        for step in steps:
            try:
                vectors.append(step.send(mean))
            except StopIteration as end:
                results.append(end.value)
        if results:
            return results[0]


def fill(model: Given, step: int, spoiled: str = "") -> None:
    """The gradients of a step, one of which the last rank's broken."""
    for name, p in model.named_parameters():
        p.grad = torch.from_numpy(values(name, p.shape, step))
        if name == spoiled and hvd.rank() == hvd.size() - 1:
            p.grad.view(-1)[7] = float("nan")


def broken(name: str, shape: Sequence[int]) -> list[np.ndarray]:
    """What `fill` gives all ranks of the matrix in the step that does not count."""
    gradients = everyones(name, shape, EXTRA)
    if name == "matrix":
        gradients[-1].ravel()[7] = np.nan
    return gradients


def kept(compressor: Any, name: str) -> dict[str, np.ndarray]:
    """Copies of residual, momentum and all that the method's parts remember."""
    codec = slot(compressor, name).codec
    found = {"residual": codec.residual, "momentum": codec.momentum, **codec.memory}
    return {key: np.array(array) for key, array in found.items() if array is not None}


@variants(**{name: {"name": name} for name in METHODS})
def case_method(name: str) -> None:
    """Two steps, one with a NaN on one rank, and two more; then what is kept is the codecs', too."""
    model, ranks = Given(), Ranks(METHODS[name])
    optimizer, compressor = wrap(model, METHODS[name], attach={"seed": SEED})
    for step in reduced(optimizer, lambda step: fill(model, step), range(2)):
        ranks.check(model, step)
    before = kept(compressor, "matrix"), kept(compressor, "kernel")
    fill(model, EXTRA, "matrix")
    optimizer.synchronize()
    for tensor, p in model.named_parameters():
        assert tensor == "bias" or p.grad.isnan().all(), tensor
        ranks.break_off(tensor, broken(tensor, p.shape))
    for tensor, was in zip(("matrix", "kernel"), before, strict=True):
        now = kept(compressor, tensor)
        assert now.keys() == was.keys() and slot(compressor, tensor).step == 2
        for key in now:
            close(torch.from_numpy(now[key]), was[key], bound=1e-5, what=f"{key} of {tensor}")
    for step in reduced(optimizer, lambda step: fill(model, step), range(2, 4)):
        ranks.check(model, step)
    for tensor in ("matrix", "kernel", "other"):
        mine, codec = slot(compressor, tensor).codec, ranks.codecs[tensor][hvd.rank()]
        assert codec.bits == mine.bits and mine.step == codec.step == 4
        close(torch.from_numpy(mine.residual), codec.residual, bound=AVERAGED, what=f"residual of {tensor}")
    assert str(METHODS[name]) in repr(compressor) and "3 of 4 tensors" in repr(compressor)
    total = compressor.report().total
    assert total.compressed_steps == 5 and total.sent_bytes < total.dense_bytes


@variants(**{name: {"name": name} for name in ("powersgd", "signsgd", "wangni", "dqsgd", "random_k")})
def case_sum(name: str) -> None:
    """op=Sum: as many times the mean as there are ranks."""
    model, ranks = Given(), Ranks(METHODS[name])
    optimizer, compressor = wrap(model, METHODS[name], attach={"seed": SEED}, op=hvd.Sum)
    for step in reduced(optimizer, lambda step: fill(model, step), range(3)):
        ranks.check(model, step, scale=hvd.size())
    assert slot(compressor, "matrix").step == 3


@variants(**{name: {"name": name} for name in ("powersgd", "random_k", "adaqs", "gradient_dropping_model")})
def case_process_set(name: str) -> None:
    """All ranks but the first one train."""
    members = list(range(1, hvd.size()))
    subset = hvd.add_process_set(members)
    model, ranks = Given(), Ranks(METHODS[name], len(members))
    attach = {"seed": SEED, "process_set": subset}
    optimizer, compressor = wrap(model, METHODS[name], attach=attach, process_set=subset)
    if subset.included():
        for step in reduced(optimizer, lambda step: fill(model, step), range(3)):
            ranks.check(model, step, given=lambda *given: everyones(*given)[1:])
        assert slot(compressor, "matrix").step == 3
    hvd.barrier()
    hvd.remove_process_set(subset)


@variants(float16={"dtype": torch.float16}, bfloat16={"dtype": torch.bfloat16}, scaled={"loss_scale": 1024.0})
def case_dtypes(dtype: torch.dtype = torch.float32, loss_scale: float = 1.0) -> None:
    """Half precision and scaled losses reach vectors that are averaged as they reach payloads."""
    attach = {"seed": SEED, **({"loss_scale": lambda: loss_scale} if loss_scale != 1 else {})}
    for name in ("powersgd", "random_k", "natural"):
        model, ranks = Given(SHAPES, dtype), Ranks(METHODS[name])
        optimizer, _ = wrap(model, METHODS[name], attach=attach)

        def scaled(step: int, model: Given = model) -> None:
            (loss_scale * model.loss(step)).backward()

        def given(name: str, shape: Sequence[int], step: int) -> list[np.ndarray]:
            return [torch.from_numpy(g).to(dtype).float().numpy() for g in everyones(name, shape, step)]

        for step in reduced(optimizer, scaled, range(2)):
            for tensor, p in model.named_parameters():
                expected = ranks.reduce(tensor, given(tensor, p.shape, step), loss_scale)
                bound = 2 * torch.finfo(dtype).eps + AVERAGED
                close(p.grad, expected, bound=bound, what=f"{tensor} by {name}, step {step}")
