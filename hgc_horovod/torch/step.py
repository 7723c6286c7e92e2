"""Where a compressor stands in its current step, and what holds in it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from .agreement import Agreement
from .loss_scale import LossScale
from .parameters import Slot


class Step:
    """Begins with a step's first gradient to compress, and is concluded by the first that comes back.

    Attributes:
        rank, world: this rank in the process set (-1 outside of it) and the set's size, asked for in every
            step, since an elastic job changes them.
        loss_scale: what this step's gradients were multiplied by.
        op_scale: what the mean over the ranks is multiplied by: 1 for op=Average, W for Sum. Known after the
            first step.
        counts: whether the ranks agreed that this step counts.
        failed: they could not agree, and every rank was told why.
        discarding: the user drops this step.
        repeated: the gradients that come once more and are let pass, as they were reduced in this step: their
            slots, and how often they had been written to.
        unapplied: gradients were reduced, and the optimizer has not stepped yet.
    """

    def __init__(self, prefix: str, process_set: Any, loss_scale: LossScale) -> None:
        self._prefix, self._process_set, self._ask_loss_scale = prefix, process_set, loss_scale
        self.rank = self.world = 0
        self.loss_scale = self.op_scale = 1.0
        self.discarding = False
        self.repeated: dict[Slot, int] = {}
        self._warned: set[str] = set()
        self.restart()

    def restart(self) -> None:
        """Forget the current step, and compare the settings anew."""
        self.agreement = Agreement(self._prefix, self._process_set)
        self.begun = self.concluded = self.counts = self.failed = self.unapplied = False

    def is_repeated(self, slot: Slot) -> bool:
        """Whether the slot's gradient is the one that was reduced, and nothing has been added to it."""
        return slot in self.repeated and slot.holds_reduced() and slot.version() == self.repeated[slot]

    def look_around(self) -> None:
        self.rank = self._process_set.rank() if self._process_set.included() else -1
        self.world = self._process_set.size()

    def begin(self, settings: Callable[[], dict[str, Any]]) -> None:
        """Start a step; `settings` are compared with the other ranks' where they have not been yet."""
        self.look_around()
        if self.rank < 0:
            raise ValueError(
                "process_set must be the one that DistributedOptimizer was given: the compressor's "
                "does not include this rank, and the optimizer reduces here"
            )
        self.loss_scale = self._ask_loss_scale()
        if not self.agreement.compared:
            self.agreement.compare(settings())
        self.agreement.begin()
        self.begun, self.concluded, self.failed = True, False, False
        if self.unapplied:
            self.warn(
                "unapplied",
                "the last step's gradients were reduced, but the optimizer did not step: what they carried "
                "is lost. To drop a step, call compression.discard(optimizer) in place of synchronize(); "
                "with a GradScaler, give the compressor loss_scale=scaler",
            )

    def conclude(self) -> None:
        """Agree with the other ranks whether this step counts."""
        self.failed = True
        self.counts = self.agreement.conclude(self.discarding)
        self.failed = False
        self.begun, self.concluded, self.unapplied = False, True, self.counts

    def warn(self, kind: str, text: str) -> None:
        """Warn once of each kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(text, stacklevel=5)
