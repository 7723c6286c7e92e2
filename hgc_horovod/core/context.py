"""What a method's parts are told beside the values, what they keep, and what tensors tell each other."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .passes import NumPyPasses, Passes
from .random import Draw
from .types import Floats

if TYPE_CHECKING:
    from ..codec import Codec

Memory = dict[str, NDArray[Any]]  # what parts keep from step to step; arrays are replaced, never written to


class Peers:
    """The tensors of one model on one rank, whose parts may ask for each other's numbers.

    Attributes:
        loss: what the user has reported last, for controllers that steer by it.
    """

    def __init__(self) -> None:
        self.loss: float | None = None
        self._codecs: weakref.WeakValueDictionary[str, Codec] = weakref.WeakValueDictionary()

    def join(self, codec: Codec) -> None:
        self._codecs[codec.name] = codec

    def report_loss(self, value: Any) -> None:
        """Set the loss. ValueError where the value is no number."""
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise ValueError(f"value must be a number; got {value!r:.80}")
        self.loss = float(value)

    def __getstate__(self) -> dict[str, Any]:
        return {"loss": self.loss}  # copies of the codecs join the copy

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.loss, self._codecs = state["loss"], weakref.WeakValueDictionary()

    def heard(self, key: str, step: int) -> list[NDArray[Any]]:
        """What every tensor remembers under a key of its last step before `step`, in the order of names."""
        told = []
        for _, codec in sorted(self._codecs.items()):
            memory = codec.memory if codec.step <= step else codec.memory_before
            if key in memory:
                told.append(memory[key])
        return told


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor's matrix: its dimensions in two groups, as square as that can be."""
    n = int(np.prod(shape, dtype=np.int64))
    rows = [int(np.prod(shape[:cut], dtype=np.int64)) for cut in range(1, max(len(shape), 2))]
    best = min(rows, key=lambda r: r + n // max(r, 1))
    return best, n // max(best, 1)


@dataclass
class Context:
    """One step of one tensor.

    Attributes:
        draw: random words of this tensor, step and rank; parts that need several streams number them.
        shape: rows and columns of the tensor's matrix.
        memory: what parts keep; written for the next step, and dropped where this step fails.
        update: gives what this step adds to the residual, float32 (n,).
        passes: loops over the tensor.
    """

    draw: Draw
    step: int
    shape: tuple[int, int]
    memory: Memory
    peers: Peers
    passes: Passes = field(default_factory=NumPyPasses)
    update: Callable[[], Floats] | None = None
