"""The tensors of a reducer, and what is kept of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..codec import Codec
from ..core import check, wire
from ..core.context import Peers
from ..core.method import Method
from ..core.types import Json
from ..kernels import Kernels
from ..policy import Policy, methods_for
from ..policy import check as check_policy
from ..report import Traffic
from .arrays import Array, size_of
from .flight import Order, Outbox
from .message import MOST_TENSORS

if TYPE_CHECKING:
    from .requests import Request

Shape = tuple[int, ...] | int  # a number: that many entries, of unknown dimensions
Sizes = Mapping[str, Any] | Iterable[tuple[str, Any]]


class World(NamedTuple):
    """The ranks that reduce together, and what is the same for all of their tensors.

    `comm` is for everything but the rounds behind a tensor's first, which are on `later`, a null communicator
    where no method has such. `peers` are this rank's codecs, `order` and `outbox` what is in flight.
    """

    comm: MPI.Intracomm
    later: MPI.Intracomm
    rank: int
    size: int
    seed: int
    kernels: Kernels
    peers: Peers
    order: Order
    outbox: Outbox


class Tensor:
    """One tensor.

    Attributes:
        method: what sends it, with the momentum that all tensors have.
        step: how many of its steps counted.
        codec: the state of its compressed steps, made when it is first needed.
        momentum: float (n,), the momentum buffer of its dense steps, in units of the mean over the ranks.
        compressed: whether it was compressed last, so that there may be a residual on some rank.
        summed: whether its last step was a sum.
        met: whether all ranks were seen to begin this tensor together.
        flying: its request that is not finished. It holds what MPI reads and writes.
    """

    def __init__(self, number: int, name: str, shape: Shape, method: Method) -> None:
        self.number, self.name, self.shape = number, name, shape
        self.size = size_of(shape)
        self.method = method
        self.traffic = Traffic(name)
        self.codec: Codec | None = None
        self.momentum: Array | None = None
        self.step = 0
        self.compressed = self.summed = self.met = False
        self.flying: Request | None = None
        self._dimensions, self._dense = (shape, method) if isinstance(shape, tuple) else ((shape,), method)
        if isinstance(shape, int):  # of unknown dimensions, which must not make it dense
            self._dense = replace(method, dense=replace(method.dense, min_ndim=0))

    def is_dense(self, itemsize: int) -> bool:
        """Whether a gradient, which would take `itemsize` bytes an entry, is sent as it is in this step."""
        return self._dense.is_dense(self._dimensions, self.step, itemsize)

    @property
    def is_finally_dense(self) -> bool:
        """Whether float32 gradients are sent as they are after the warm-up."""
        return self._dense.is_dense(self._dimensions)

    def codec_in(self, world: World) -> Codec:
        """The codec, as of this step."""
        if self.codec is None:
            codec = Codec(
                self.method,
                self.size,
                self.name,
                world.seed,
                world.rank,
                world.size,
                world.kernels,
                shape=self._dimensions,
                peers=world.peers,
            )
            codec.momentum = self.momentum
            self.codec, self.momentum = codec, None
        self.codec.step = self.step
        return self.codec

    @property
    def round_sizes(self) -> tuple[int, ...]:
        """The sizes of the vectors that this step averages, where the method does that; known without a
        codec, which a rank may fail to make."""
        return self.method.round_sizes(self._dimensions, self.step)

    def kept(self) -> tuple[Array, Array]:
        """float (n,) each: what a dense step takes over of compressed ones, residual and momentum."""
        nothing = np.zeros(self.size, np.float32)
        if self.codec is None:
            return nothing, nothing if self.momentum is None else self.momentum
        momentum = self.codec.momentum
        return self.codec.residual, nothing if momentum is None else momentum

    def settings(self, default: Method) -> Json:
        """What has to be the same on all ranks."""
        return {
            "number": self.number,
            "shape" if isinstance(self.shape, tuple) else "size": self.shape,
            "method": {} if self.method == default else self.method.to_json(),
        }


def make(names_and_sizes: Sizes, method: Method, policy: Policy) -> dict[str, Tensor]:
    """The tensors by name, in the order given; ValueError where the arguments are no such thing."""
    if not isinstance(method, Method):
        raise ValueError(f"method must be a hgc_horovod.Method; got {type(method).__name__}")
    named = names_and_sizes.items() if isinstance(names_and_sizes, Mapping) else names_and_sizes
    pairs = [_pair(pair) for pair in named]
    counts = Counter(name for name, _ in pairs)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ValueError(f"names_and_sizes must have unique names; these came twice: {', '.join(twice)}")
    if not 0 < len(pairs) <= MOST_TENSORS:
        raise ValueError(f"names_and_sizes must have 1 to {MOST_TENSORS:,} tensors; got {len(pairs)}")
    chosen = methods_for(pairs, check_policy(policy, method), method)
    feedback = method.feedback
    terms = {"momentum": feedback.momentum, "nesterov": feedback.nesterov}  # one for all tensors
    return {
        name: Tensor(number, name, shape, its if its is method else its.with_feedback(**terms))
        for number, ((name, shape), its) in enumerate(zip(pairs, chosen, strict=True))
    }


def _pair(pair: Any) -> tuple[str, Shape]:
    if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
        raise ValueError(
            f"names_and_sizes must map names to sizes or shapes, or be pairs of the two; got {pair!r:.60}"
        )
    name, shape = pair
    what = f"the size of {name!r}"
    if isinstance(shape, (tuple, list)):
        return name, tuple(check.whole(what, length, 0) for length in shape)
    return name, check.whole(what, shape, 0, wire.MAX_ENTRIES)
