"""W ranks in one process: what `hgc_horovod.torch` does with op=Average, with the same codecs and no network.

For fewer cores than ranks. The codecs of each rank, their order, the momentum of dense tensors and what is
counted are those of the attachment; tests/test_accuracy.py holds both against each other.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

import numpy as np
import torch

from hgc_horovod import Codec, Method, kernels, methods
from hgc_horovod.core.context import Peers
from hgc_horovod.core.types import Floats
from hgc_horovod.report import Traffic
from hgc_horovod.torch.agreement import BYTES
from hgc_horovod.torch.flight import apply_terms
from hgc_horovod.torch.momentum import Terms
from hgc_horovod.torch.parameters import Slot

CONTROL = 8  # bytes that Horovod reduces in place of a compressed tensor
Gradients = Sequence[torch.Tensor]


class Workers:
    """The codecs of `world` ranks for all parameters of a model.

    Args:
        method: what is sent; None for Horovod alone, without a compressor.
        fp16: without a method, Horovod's own compression to half precision.
        terms: momentum and weight decay that `momentum_from` would have moved out of the optimizer.
        seed: as for `Compression.from_method`.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.Tensor]],
        world: int,
        method: Method | None,
        *,
        fp16: bool = False,
        terms: Terms | None = None,
        seed: int = 0,
    ) -> None:
        if terms is None:
            terms = (
                Terms() if method is None else Terms(method.feedback.momentum, 0.0, method.feedback.nesterov)
            )
        self._terms, self._world, self._method, self._fp16, self._seed = terms, world, method, fp16, seed
        plain = methods.dense() if method is None else method
        self.slots = [Slot(name, parameter, plain) for name, parameter in named_parameters]
        self._codecs: list[list[Codec]] = [[] for _ in self.slots]
        self._kernels = kernels.get(threads=torch.get_num_threads())
        self._agreed = Traffic("(agreement)")
        self._peers = [Peers() for _ in range(world)]

    def average(self, everyones: Sequence[Gradients]) -> list[torch.Tensor]:
        """The gradients that each rank's optimizer is given, from those of all ranks (W lists)."""
        if self._method is not None:
            self._agreed.count(0, self._world * BYTES)
        pairs = zip(self.slots, self._codecs, zip(*everyones, strict=True), strict=True)
        return [self._average(slot, codecs, gradients) for slot, codecs, gradients in pairs]

    def _average(self, slot: Slot, codecs: list[Codec], gradients: Gradients) -> torch.Tensor:
        if slot.is_dense(gradients[0]):
            assert not codecs, f"{slot.name} was compressed and is dense now"
            mean = self._dense(slot, gradients)
            apply_terms(slot, mean, self._terms, 1.0)
        else:
            mean = self._compressed(slot, self._bound(slot, codecs), gradients)
        slot.step += 1
        return mean

    def _dense(self, slot: Slot, gradients: Gradients) -> torch.Tensor:
        """What Horovod's allreduce gives: the sum in the dtype on the wire, and then the mean."""
        fp16 = self._fp16 if self._method is None else slot.method.dense.fp16
        wire = [gradient.to(torch.float16) if fp16 else gradient for gradient in gradients]
        total = wire[0].clone()
        for other in wire[1:]:
            total += other
        slot.traffic.count(self._world * total.numel(), self._world * total.nbytes)
        return total.mul_(1 / self._world).to(torch.float32)

    def _compressed(self, slot: Slot, codecs: list[Codec], gradients: Gradients) -> torch.Tensor:
        decay = self._terms.weight_decay
        weight = flat(slot.parameter) if decay else None
        pairs = list(zip(codecs, map(flat, gradients), strict=True))
        if slot.method.by_allreduce:
            sent = 4 * self._world * sum(codecs[0].round_sizes)
            mean = in_rounds([codec.rounds(gradient, weight, decay) for codec, gradient in pairs])
        else:
            payloads = [codec.encode(gradient, weight, decay) for codec, gradient in pairs]
            sent = sum(payload.nbytes for payload in payloads)
            # Each rank decodes for itself, and its controller learns from that.
            decoding = self._that_learn(codecs)
            mean, *_ = [codec.decode_sum(payloads, factor=1 / self._world) for codec in decoding]
        sent += self._world * CONTROL
        slot.traffic.count(self._world * slot.parameter.numel(), sent, sent)
        return torch.from_numpy(mean).view(gradients[0].shape)

    @staticmethod
    def _that_learn(codecs: list[Codec]) -> list[Codec]:
        """Those that have to decode: without a controller all would only get the same."""
        return codecs if codecs[0].method.controller is not None else codecs[:1]

    def _bound(self, slot: Slot, codecs: list[Codec]) -> list[Codec]:
        """The ranks' codecs, made when they are first needed, with the momentum of the dense steps before."""
        if not codecs:
            method = slot.method_with(self._terms.momentum, self._terms.nesterov)
            size = slot.parameter.numel()
            for rank in range(self._world):
                codec = Codec(
                    *(method, size, slot.name, self._seed, rank, self._world, self._kernels),
                    shape=slot.parameter.shape,
                    peers=self._peers[rank],
                )
                codec.step = slot.step
                if slot.momentum is not None:
                    codec.momentum = flat(slot.momentum)
                codecs.append(codec)
            slot.momentum = None
        return codecs

    def traffic(self) -> dict[str, float]:
        """The bytes that `Compressor.report().total` has, so far: the ranks' mean."""
        rows = [*(slot.traffic for slot in self.slots), self._agreed]
        return {key: sum(getattr(row, key) for row in rows) / self._world for key in COUNTED}

    def report_losses(self, losses: Sequence[float]) -> None:
        """Each rank's, for methods that steer by them."""
        for peers, loss in zip(self._peers, losses, strict=True):
            peers.loss = loss

    def bits(self) -> float | None:
        """The bits of a value in the last step: the tensors' mean, weighted by entries."""
        firsts = [codecs[0] for codecs in self._codecs if codecs]
        entries = sum(codec.size for codec in firsts)
        return sum(codec.bits * codec.size for codec in firsts) / entries if entries else None


COUNTED = ("dense_bytes", "sent_bytes", "compressed_dense_bytes", "payload_bytes")


def flat(tensor: torch.Tensor) -> np.ndarray:
    """The entries in logical order (n,)."""
    return tensor.detach().contiguous().view(-1).numpy()


def in_rounds(ranks: Sequence[Generator[Floats, Floats, Floats]]) -> Floats:
    """Average what each rank yields, and send all of them the mean, until they return the mean gradient."""
    vectors = [next(rank) for rank in ranks]
    while True:
        mean = vectors[0].copy()
        for other in vectors[1:]:
            mean += other
        mean *= np.float32(1 / len(ranks))
        vectors, results = [], []
        for rank in ranks:
            try:
                vectors.append(rank.send(mean))
            except StopIteration as stop:
                results.append(stop.value)
        if results:
            return results[0]
