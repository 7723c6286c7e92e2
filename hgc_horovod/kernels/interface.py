"""What a codec asks of its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core import check
from ..core.bits import packed_bytes
from ..core.block import Block, Entries
from ..core.context import Context
from ..core.feedback import Feedback
from ..core.matrices import Rounds
from ..core.method import Method
from ..core.types import Bytes, Floats


@dataclass(eq=False)
class State:
    """What a codec keeps of one tensor from step to step: float32 (n,), contiguous. Kernels may change the
    arrays in place or put others in their place. `plan` is theirs: what they want to find again, in this
    process."""

    residual: Floats
    momentum: Floats | None = None
    plan: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "plan": None}


class Decay(NamedTuple):
    """Weight decay: `factor · weight` is added to a gradient. Float (n,) of any float dtype."""

    weight: Entries
    factor: float


Kept = tuple[Floats, Floats | None]  # residual and momentum


class Sent(NamedTuple):
    """A payload, and what only its sender knows of it: what the gradient was multiplied by, a float32; the
    momentum that masking cleared, float32 (m,) in the order of the payload's entries (empty without masking);
    and what was kept `before`, where the gradient dwarfs that."""

    payload: Bytes
    multiplier: float
    masked_momentum: Floats
    before: Kept | None = None


class Accumulated(NamedTuple):
    """A step that was taken up before anything of it is sent: float32 (n,), the residual itself where the
    feedback rule keeps one; and as of `Sent`."""

    total: Floats
    multiplier: float
    before: Kept | None = None


class Kernels(Protocol):
    """The inner loops of a codec. All implementations give the same bytes and the same state."""

    @property
    def description(self) -> str:
        """Which kernels run, in a few words for a report."""

    def encode(
        self,
        method: Method,
        k: int,
        state: State,
        gradient: Entries,
        decay: Decay | None,
        world_size: int,
        factor: float = 1.0,
        out: Bytes | None = None,
        context: Context | None = None,
    ) -> Sent | None:
        """One step: `state` takes factor · gradient up, and k of its entries leave in the payload.

        The payload is `out`, contiguous uint8 (bytes,), where that is given and of its size. The parts of the
        hybrid method need no `context`.

        None where a value would not be finite. The step is then taken back: what it added to an entry is
        subtracted again, so that the state is as it was to float32 rounding, and entries that would not be
        finite are as they were. (Finding that out before anything is added would cost a pass over memory.)
        Only where the gradient is so large that rounding would leave little of what is kept is that copied
        first, and comes back as it was.
        """

    def accumulate(
        self,
        feedback: Feedback,
        state: State,
        gradient: Entries,
        decay: Decay | None,
        world_size: int,
        factor: float = 1.0,
    ) -> Accumulated | None:
        """The first half of `encode`, for what chooses entries by itself. None as there, with the step taken
        back."""

    def rounds(
        self,
        method: Method,
        k: int,
        state: State,
        gradient: Entries,
        decay: Decay | None,
        world_size: int,
        factor: float,
        context: Context,
    ) -> Rounds | None:
        """One step of a method that averages vectors over the ranks: see `core.matrices`. None where a value
        would not be finite. The state is as it was before until the last mean has been sent in."""

    def take_back(
        self, method: Method, state: State, sent: Sent, gradient: Entries, decay: Decay | None
    ) -> None:
        """Bring back the state of before the step that `sent` came of, to float32 rounding."""

    def decode_sum(
        self, payloads: Bytes | Block, count: int, out: Entries, factor: float, vote: bool = False
    ) -> None:
        """Write Σ factor · value over `count` payloads in order to `out`, float32, float16 or bfloat16 (n,);
        with `vote` its sign times factor · count.

        The payloads stand one behind the other. PayloadError, before anything is written, where one is
        damaged or of another size than n, or their number is another.
        """

    def pack_codes(self, codes: NDArray[np.uint8], bits: int) -> Bytes:
        """Dense bit fields: codes (n,) below 2**bits, bits 1 to 8, as uint8 (⌈n·bits / 8⌉,)."""

    def add_codes(
        self, packed: Bytes, bits: int, levels: Floats, scales: Floats, bucket: int, out: Floats
    ) -> None:
        """out[i] += scales[i div bucket] · levels[code i], for out (n,), ⌈n / bucket⌉ scales and 2**bits
        levels. Product and sum are rounded to float32."""


def check_codes(packed: Bytes, bits: int, levels: Floats, scales: Floats, bucket: int, out: Floats) -> int:
    """Refuse what `add_codes` would read or write beyond an array's end. Returns the bucket, cut to n."""
    n = out.size
    check.whole("bits", bits, 1, 8)
    bucket = min(check.whole("bucket", bucket, 1), max(n, 1))
    for name, array, dtype, size in (
        ("packed", packed, np.uint8, packed_bytes(n, bits)),
        ("levels", levels, np.float32, 2**bits),
        ("scales", scales, np.float32, -(-n // bucket)),
        ("out", out, np.float32, n),
    ):
        if array.dtype != dtype or array.shape != (size,) or not array.flags.c_contiguous:
            raise ValueError(
                f"{name} must be contiguous {np.dtype(dtype)} of shape ({size},); "
                f"got {array.dtype}, {array.shape}"
            )
    if not out.flags.writeable:
        raise ValueError("out must not be read-only")
    return bucket
